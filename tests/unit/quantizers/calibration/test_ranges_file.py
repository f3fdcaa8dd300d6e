"""Files of ranges: ortune's JSON and TensorRT's cache, written, read back and refused."""

import json
import struct
from pathlib import Path

import numpy as np
import pytest

from ortune.core.errors import BadData, BadSettings
from ortune.core.observer import Moments, Probe, Range
from ortune.quantizers.calibration import ranges_file
from ortune.quantizers.observers.channels import Channels
from ortune.quantizers.observers.min_max import MinMax


def _document(entries: tuple[ranges_file.Entry, ...]) -> dict[str, object]:
    return ranges_file.build_document(
        entries,
        model=Path("somewhere/model.onnx"),
        digest="abc",
        quantizer="int8-static",
        observer="min-max",
        samples=ranges_file.Samples(2, ("d1", "d2"), "noise"),
        unanswered=("never",),
        version="0.1.0",
    )


def test_ranges_are_read_back_exactly(tmp_path: Path) -> None:
    ranges = {
        "x": Range(-1 / 3, 0.1),
        "y": Range(0.0, 5e-324, channels=((0.0, 1.0), (-0.1, 2.0))),
        "w|moments": Range(0, 0, moments=Moments(1, np.zeros((1, 1)), np.zeros((1, 1, 1)))),
    }
    probes = [
        Probe("x", MinMax()),
        Probe("y", Channels()),
        Probe("w", MinMax(), name="w|moments"),
        Probe("never", MinMax()),
    ]
    kept = ranges_file.make_entries(ranges, probes, "min-max")
    path = tmp_path / "ranges.json"
    path.write_text(json.dumps(_document(kept)), encoding="utf-8")
    found = ranges_file.read_ranges(path)
    assert [entry.range for entry in found.entries.values()] == [ranges["x"], ranges["y"]]
    assert found.entries["y"].observer == "channels"
    assert (found.model, found.model_name, found.observer) == ("abc", "model.onnx", "min-max")
    assert found.samples == ranges_file.Samples(2, ("d1", "d2"), "noise")
    assert found.unanswered == ("never",)
    assert not found.symmetric


def test_the_files_digest_is_of_its_content(tmp_path: Path) -> None:
    one, two = tmp_path / "a.json", tmp_path / "b.json"
    one.write_text(json.dumps(_document((ranges_file.Entry("x", 0.0, 1.0),))), encoding="utf-8")
    two.write_text(json.dumps(_document((ranges_file.Entry("x", 0.0, 1.5),))), encoding="utf-8")
    assert ranges_file.read_ranges(one).digest != ranges_file.read_ranges(two).digest


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"\x18\x00\x00\x00\xff\xfe", "it is not text"),
        (b"{", "neither JSON nor"),
        (b"[]", "something else than ranges"),
        (b'{"format": "ortune-ranges", "version": 2}', "of version 2"),
        (b'{"format": "ortune-ranges", "version": 1}', "'tensors' is missing"),
        (
            b'{"format": "ortune-ranges", "version": 1, "tensors": [{"name": "x", "low": "a"}]}',
            "low",
        ),
        (b"TRT-8601-EntropyCalibration2\nx 3f800000\n", "line 2"),
        (b"TRT-8601-EntropyCalibration2\nx: 7f800000\n", "line 2"),
        (b"TRT-x\nx: 3f800000\n", "does not begin with"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(BadData, match=says):
        ranges_file.read_ranges(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadData, match=r"none\.json"):
        ranges_file.read_ranges(tmp_path / "none.json")


def test_the_cache_holds_the_bits_of_the_step() -> None:
    ranges = {"input": Range(-2.1179039, 2.64), "a:0": Range(0.0, 127.0), "zero": Range(0.0, 0.0)}
    text = ranges_file.format_cache(ranges, "8.6.1")
    bits = struct.unpack(">I", struct.pack(">f", 2.64 / 127))[0]
    assert text.splitlines() == [
        "TRT-8601-EntropyCalibration2",
        f"input: {bits:x}",
        "a:0: 3f800000",
        "zero: 0",
    ]


def test_a_cache_of_tensorrt_is_read_as_symmetric_ranges(tmp_path: Path) -> None:
    path = tmp_path / "model.cache"
    path.write_text("TRT-8401-EntropyCalibration2\ninput: 3caa54fc\n366: 0\n", encoding="utf-8")
    found = ranges_file.read_ranges(path)
    assert found.symmetric
    assert found.model == ""
    # An ImageNet picture, normalized: the brightest blue is 2.64.
    assert found.entries["input"].high == pytest.approx(2.6400, abs=1e-3)
    assert found.entries["input"].low == -found.entries["input"].high
    assert found.entries["366"].range == Range(0.0, 0.0)


def test_the_cache_is_read_back_to_a_float32(tmp_path: Path) -> None:
    ranges = {"x": Range(-3.3, 1.0), "y: z": Range(0.0, 1e-3)}
    found = ranges_file.parse_cache(ranges_file.format_cache(ranges, "10.3.0"), "here")
    assert {n: r.high for n, r in found.items()} == pytest.approx({"x": 3.3, "y: z": 1e-3})


@pytest.mark.parametrize(
    ("version", "number"), [("8.6.1", "8601"), ("10.14.1", "101401"), ("7.1.3.4", "7103")]
)
def test_versions_are_written_as_tensorrt_counts(version: str, number: str) -> None:
    assert ranges_file.format_cache({}, version) == f"TRT-{number}-EntropyCalibration2\n"


def test_a_version_that_is_none_is_refused() -> None:
    with pytest.raises(BadSettings, match="'8'"):
        ranges_file.format_cache({}, "8")
