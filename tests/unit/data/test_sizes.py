"""Nothing is allocated before it is known to fit: hostile shapes, headers and endless sources."""

from __future__ import annotations

import json
import math
import struct
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest

from ortune.core.errors import BadData
from ortune.core.event import Progress
from ortune.core.facts import TensorSpec
from ortune.core.hardware import memory
from ortune.data import feeds, labels, sizes, stream, synthetic

INPUTS = (TensorSpec("x", "float32", ("N", 3, "H", "W")),)
FLAT = (TensorSpec("x", "float32", ("N", 4)),)


@pytest.fixture(autouse=True)
def bounded():
    """Hold every test to 64 MB beyond what there is."""
    tracemalloc.start()
    yield
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64 * 2**20


def header(shape: tuple[int, ...], dtype: str = "<f4") -> bytes:
    text = repr({"descr": dtype, "fortran_order": False, "shape": shape}).encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def npz(path: Path, member: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", member)
    return path


@pytest.mark.parametrize("side", [20_000, 10**6, 10**12])
@pytest.mark.parametrize("limit", [None, 2**30])
def test_a_made_up_sample_beyond_memory_is_refused(tmp_path, side, limit) -> None:
    if side == 4_000 and limit is None:
        return  # it may fit
    with (
        memory.limit_memory(limit),
        pytest.raises(BadData, match="a made-up sample with x:1x3x") as e,
    ):
        synthetic.generate_feeds(INPUTS, tmp_path, shapes={"x": (1, 3, side, side)}, ranges={})
    assert "--shape x" in e.value.fix
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["x", "mask", "position_ids", "token_type_ids"])
@pytest.mark.parametrize("dtype", ["float32", "int64", "bool", "string", "uint8"])
def test_whatever_is_made_up_is_sized_first(tmp_path, name, dtype) -> None:
    spec = TensorSpec(name, dtype, ("N", "S"))
    with pytest.raises(BadData, match="would take"):
        synthetic.generate_feeds((spec,), tmp_path, shapes={name: (10**6, 10**9)}, ranges={})


def test_made_up_samples_must_fit_the_disk(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(sizes, "disk_room", lambda folder: 2**20)
    with pytest.raises(BadData, match="8 times a made-up sample"):
        synthetic.generate_feeds(INPUTS, tmp_path, shapes={"x": (1, 3, 512, 512)}, ranges={})


@pytest.mark.parametrize("ends", [(0, 1e39), (-1e300, 1e300), (-1e39, 0)])
def test_a_range_that_the_type_cannot_hold(tmp_path, ends) -> None:
    with pytest.raises(BadData, match="does not fit input 'x' of float32"):
        synthetic.generate_feeds(FLAT, tmp_path, shapes={}, ranges={"x": ends})


@pytest.mark.parametrize(
    "shape", [(10**9, 4), (2**62, 4), (-1, 4), (10**12, 0), (4, 10**12), (2**40,) * 30]
)
@pytest.mark.parametrize("kind", ["npz", "npy", "folder"])
def test_headers_that_promise_more_than_there_is(tmp_path, shape, kind) -> None:
    data = header(shape) + b"\0" * 64
    source = tmp_path / f"x.{kind}"
    if kind == "npz":
        npz(source, data)
    elif kind == "npy":
        source.write_bytes(data)
    else:
        source.mkdir()
        (source / "x.npy").write_bytes(data)
    with pytest.raises(BadData) as refused:
        feeds.load_feeds(source, FLAT, tmp_path / "out")
    assert refused.value.fix
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("dtype", ["<U1000000000", "|V2000000000", "|O", "<f4,<f4"])
def test_headers_with_absurd_types(tmp_path, dtype) -> None:
    path = npz(tmp_path / "x.npz", header((2, 4), dtype) + b"\0" * 64)
    with pytest.raises(BadData):
        feeds.load_feeds(path, FLAT, tmp_path / "out")


def test_a_small_zip_of_much_is_read_row_by_row_or_refused(tmp_path) -> None:
    whole = (TensorSpec("x", "float32", (None, "T", 4)),)
    path = tmp_path / "x.npz"
    packed = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED)
    with packed as archive, archive.open("x.npy", "w") as member:
        member.write(header((1, 50 * 2**20, 4)))
        for _ in range(800):
            member.write(bytes(2**20))
    assert path.stat().st_size < 2**20
    with memory.limit_memory(2**30), pytest.raises(BadData, match="is the memory limit"):
        feeds.load_feeds(path, whole, tmp_path / "out")


def test_an_array_that_is_larger_than_what_backs_it(tmp_path) -> None:
    def source():
        yield {"x": np.broadcast_to(np.float32(0), (10**6, 10**6, 4))}

    whole = (TensorSpec("x", "float32", ("time", None, 4)),)
    with pytest.raises(BadData, match="would take"):
        feeds.load_feeds(source, whole, tmp_path / "out")


def test_an_endless_generator_ends_where_the_disk_does(tmp_path, monkeypatch) -> None:
    room = iter([10**9, 10**9, 0])
    monkeypatch.setattr(sizes, "disk_room", lambda folder: next(room))
    monkeypatch.setattr(stream, "LOOK_BYTES", 2**16)

    def source():
        while True:
            yield {"x": np.zeros((1, 4), np.float32)}

    with pytest.raises(BadData, match="samples so far and more") as refused:
        feeds.load_feeds(source, FLAT, tmp_path / "out")
    assert "end the generator" in refused.value.fix
    assert not (tmp_path / "out").exists()


def test_an_endless_generator_of_little_ends_where_memory_does(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(stream, "LOOK_SAMPLES", 256)

    def source():
        while True:
            yield {"x": np.zeros((1, 4), np.float32)}

    with memory.limit_memory(10**6), pytest.raises(BadData, match="their list alone"):
        feeds.load_feeds(source, FLAT, tmp_path / "out")


def test_a_line_beyond_memory(tmp_path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(json.dumps({"x": [[0] * 10**6]}))
    with memory.limit_memory(2**20), pytest.raises(BadData, match="line 1 is longer than"):
        feeds.load_feeds(path, FLAT, tmp_path / "out")


def test_lists_nested_too_deeply(tmp_path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"x": ' + "[" * 100_000 + "]" * 100_000 + "}")
    with pytest.raises(BadData):
        feeds.load_feeds(path, FLAT, tmp_path / "out")


@pytest.mark.parametrize("name", ["labels.npy", "labels.csv"])
def test_labels_beyond_memory(tmp_path, name) -> None:
    path = tmp_path / name
    if name.endswith("npy"):
        np.save(path, np.zeros(2 * 10**6, np.int8))
    else:
        path.write_text("1\n" * 10**6)
    with memory.limit_memory(2**20), pytest.raises(BadData, match="labels in"):
        labels.read_label_file(path)


def test_samples_are_listed_in_little_memory_and_told(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(feeds, "PROGRESS_INTERVAL_S", 0.0)
    told = []
    path = tmp_path / "x.npz"
    np.savez(path, x=np.zeros((4_000, 4), np.float32))
    found = feeds.load_feeds(path, FLAT, tmp_path / "out", sink=told.append)
    assert found.count == len(stream.Stream(found.stream)) == 4_000
    seen = [event for event in told if isinstance(event, Progress)]
    assert len(seen) > 50
    assert seen[-1].done <= 4_000
    assert tracemalloc.get_traced_memory()[0] < 4 * 2**20


def test_streams_of_samples_with_different_arrays_are_read(tmp_path) -> None:
    path = tmp_path / "s.stream"
    stream.write_stream(path, [{"a": np.zeros(2)}, {"a": np.zeros(3), "b": np.ones(1)}])
    read = stream.Stream(path)
    assert [sorted(sample) for sample in read] == [["a"], ["a", "b"]]
    assert read.widest == 3 * 8 + 8
    stream.write_stream(path, [])
    assert len(stream.Stream(path)) == 0


def test_a_limit_is_of_the_block_and_inherits() -> None:
    assert memory.read_limit() is None
    with memory.limit_memory(100), memory.limit_memory(None):
        assert memory.read_limit() == memory.count_allowed_bytes() == 100
    assert memory.read_limit() is None
    assert 0 < memory.count_free_bytes() <= memory.count_allowed_bytes() / 0.9 * 1.2


def test_a_cgroup_bounds_what_is_free(tmp_path) -> None:
    proc = tmp_path / "proc"
    proc.mkdir()
    (proc / "cgroup").write_text("0::/box\n")
    box = tmp_path / "cg" / "box"
    box.mkdir(parents=True)
    (box / "memory.max").write_text("1000\n")
    (box / "memory.current").write_text("900\n")
    (box / "memory.stat").write_text("anon 1\ninactive_file 50\n")
    assert memory.count_free_bytes(tmp_path / "cg", proc) == 150


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (1024, "1 KiB"),
        (1.5 * 2**20, "1.5 MiB"),
        (2**20 - 1, "1024 KiB"),
        (600 * 2**20, "600 MiB"),
        (5 * 2**30, "5 GiB"),
        (2048 * 2**30, "2048 GiB"),
        (math.inf, "unknown"),
    ],
)
def test_bytes_are_written_in_units_of_1024(size, text) -> None:
    assert memory.format_bytes(size) == text
