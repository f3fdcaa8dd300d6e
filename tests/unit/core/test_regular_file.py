"""Pipes, devices and endless files are refused in two lines by everything that reads one."""

from __future__ import annotations

import ast
import io
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ortune
from ortune.analysis.benchmark import compare
from ortune.analysis.conversion import steps
from ortune.analysis.costs import cost
from ortune.bundle.engine import archive, consent
from ortune.core import preprocess, regular_file, settings
from ortune.core.errors import BadData, BadModel, OrtuneError
from ortune.core.facts import TensorSpec
from ortune.core.plugins import user_file
from ortune.core.preprocess import Preprocess
from ortune.data import arrays, images, labels, sources
from ortune.data.formats import rows, sounds
from ortune.data.reading import Reading
from ortune.graph.io import file
from ortune.quantizers.calibration import ranges_file
from ortune.serving.server import listeners

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no named pipes in folders")
X = TensorSpec("x", "float32", (1, 3, 4, 4))


def ignore_note(text: str) -> None:
    """Take a note and do nothing."""


def read_all(path: Path) -> list[arrays.NamedArrays]:
    return list(sources.open_source(path, Reading([X], ignore_note)))


READERS: dict[str, Callable[[Path], Any]] = {
    "a.npz": arrays.open_npz,
    "a.npy": arrays.map_npy,
    "a.jsonl": read_all,
    "samples.npz": read_all,
    "a.parquet": lambda path: list(rows.read_parquet_blocks([path], Reading([X], ignore_note))),
    "a.wav": sounds.open_wav,
    "a.png": lambda path: images.preprocess_picture(path, Preprocess(), X),
    "labels.csv": labels.read_label_file,
    "labels.npy": labels.read_label_file,
    "labels.json": labels.read_label_file,
    "ortune.toml": lambda path: settings.read_settings(path, ["data"]),
    "preprocess.toml": preprocess.read_preprocess_keys,
    "rules.py": user_file.run_file,
    "ranges.json": ranges_file.read_ranges,
    "run.json": compare.read_run,
    "priced.json": cost.read_priced_source,
    "regions.json": lambda path: steps.read_sensitive_layers(path, 0.01),
    "tokens.txt": lambda path: listeners.read_tokens(path, ignore_note),
    "pair.pem": lambda path: listeners.check_certificate(path, path, ignore_note),
    "a.ortune": archive.is_bundle,
    "a.so": consent.is_code,
    "a.onnx": file.load,
}


@pytest.fixture
def alarm() -> Iterator[None]:
    """End what waits for ever."""

    def fail(*_: object) -> None:
        raise TimeoutError("it waits")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(10)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("alarm")
@pytest.mark.parametrize("kind", ["pipe", "device", "link to a pipe"])
@pytest.mark.parametrize("name", READERS)
def test_every_reader_refuses_what_is_no_file(tmp_path: Path, name: str, kind: str) -> None:
    path = tmp_path / name
    if kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        os.mkfifo(tmp_path / "pipe")
        path.symlink_to("pipe")
    with pytest.raises(OrtuneError, match="not a regular file") as caught:
        READERS[name](path)
    assert caught.value.fix


def test_a_folder_and_nothing_are_errors_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        regular_file.open_regular(tmp_path)
    with pytest.raises(FileNotFoundError):
        regular_file.read_bytes(tmp_path / "missing")


def test_no_more_than_the_bound_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b"12345")
    assert regular_file.read_bytes(path, 5) == b"12345"
    with pytest.raises(BadModel, match="larger than 4 bytes"):
        regular_file.read_bytes(path, 4, BadModel)


def test_ends_of_lines_are_one(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"a\r\nb\rc\n")
    assert regular_file.read_text(path) == "a\nb\nc\n"


def test_what_archives_unpack_to_is_bounded_before_it_is_unpacked(tmp_path: Path) -> None:
    for number in range(3):
        np.savez_compressed(tmp_path / f"{number}.npz", x=np.zeros((4, 1 << 16), np.float32))
    inputs = [TensorSpec("x", "float32", (None, 1 << 16))]
    with (
        regular_file.limit_unpacking(2 << 20),
        pytest.raises(BadData, match=r"2\.npz would be unpacked to .* before it") as caught,
    ):
        list(sources.open_source(tmp_path, Reading(inputs, ignore_note)))
    assert "--unpack-limit 1G" in caught.value.fix
    with regular_file.limit_unpacking(3 << 20):
        assert len(list(sources.open_source(tmp_path, Reading(inputs, ignore_note)))) == 3


def test_what_tables_unpack_to_is_bounded_too(tmp_path: Path) -> None:
    """A run of equal values takes a few bytes in the file, whatever its length."""
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    values = [[0.0] * 4096] * 64
    parquet.write_table(arrow.table({"x": values}), tmp_path / "a.parquet")
    assert (tmp_path / "a.parquet").stat().st_size < 1 << 16
    inputs = [TensorSpec("x", "float32", (None, 4096))]
    with regular_file.limit_unpacking(1 << 20), pytest.raises(BadData, match="would be unpacked"):
        list(sources.open_source(tmp_path / "a.parquet", Reading(inputs, ignore_note)))
    with regular_file.limit_unpacking(3 << 20):
        read = list(sources.open_source(tmp_path / "a.parquet", Reading(inputs, ignore_note)))
    assert len(read) == 64


def test_a_few_bytes_do_not_promise_gigabytes(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    with pytest.raises(BadData, match=r"the limit is 1\.0 GiB"):
        regular_file.require_unpacked((1 << 30) + 1, 4 << 20, path)
    regular_file.require_unpacked(1 << 30, 4 << 20, path)
    regular_file.require_unpacked(50 << 30, 1 << 30, path)


POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 4 4\n%%EndComments\nshowpage\n"


def test_pictures_are_of_the_formats_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pillow would start Ghostscript for PostScript, whatever the file is called."""
    from PIL import EpsImagePlugin

    def start(*_: object, **__: object) -> None:
        raise AssertionError("Ghostscript is started")

    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", start)
    path = tmp_path / "a.png"
    path.write_bytes(POSTSCRIPT)
    with pytest.raises(BadData, match="no picture of PNG, JPEG"):
        images.preprocess_picture(path, Preprocess(), X)
    with pytest.raises(BadData, match="no picture"):
        reading = Reading([X], ignore_note, pictures={})
        reader = rows.make_picture_reader(tmp_path, reading)
        list(rows.make_row_blocks({"x": {"bytes": POSTSCRIPT}}, "row 0", reading, reader))


@pytest.mark.parametrize("suffix", sorted(images.SUFFIXES))
def test_every_suffix_of_pictures_is_read(tmp_path: Path, suffix: str) -> None:
    from PIL import Image

    path = tmp_path / f"a{suffix}"
    Image.new("RGB", (8, 8), (255, 0, 0)).save(path)
    assert images.preprocess_picture(path, Preprocess(dtype="float32"), X).shape[0] == 1


def test_sound_of_another_format_is_not_parsed(tmp_path: Path) -> None:
    soundfile = pytest.importorskip("soundfile")
    content = io.BytesIO()
    soundfile.write(content, np.zeros(100), 16000, format="FLAC")
    (tmp_path / "a.wav").write_bytes(content.getvalue())
    with pytest.raises(BadData, match="no RIFF/WAVE file"):
        sounds.open_wav(tmp_path / "a.wav")


OF_THE_SYSTEM = ("core/hardware/cpus.py", "core/hardware/memory.py", "measurement/peaks.py")
OF_THE_SYSTEM += ("measurement/machine/counters.py",)
OF_THE_SYSTEM += ("cli/doctor.py", "backends/runtimes/onnxruntime/plug_in.py")
PACKAGED = ("cli/main.py", "core/version.py", "reporting/html.py", "search/expectation/priors.py")
PACKAGED += ("serving/protocol/messages.py", "core/plugins/sources.py", "data/zoo/minilm.py")
PACKAGED += ("backends/runtimes/onnxruntime/checks.py",)
CHECKED_BEFORE = ("graph/io/file.py", "graph/io/protobuf.py")
"""Files of a model: `file.parse_outline` and `external.list_files` let regular ones through."""
CHECKED_BEFORE += ("backends/reference.py",)
UNPACKED = ("bundle/engine/consent.py", "bundle/engine/archive.py", "bundle/target.py")
UNPACKED += ("bundle/members.py", "targets/huggingface.py")
KEPT = ("analysis/sensitivity/run.py", "backends/runtimes/onnxruntime/engine_cache.py")
KEPT += ("measurement/environments/installed.py", "measurement/rolled.py", "exporters/export.py")
KEPT += ("search/recipe/built.py", "quantizers/calibration/calibrate.py", "cli/demo.py")
KEPT += ("core/atomic_write.py", "data/stream.py", "backends/runtimes/tensorrt/library.py")
KEPT += ("measurement/devices.py", "measurement/worker/arrival.py")
KEPT += ("bundle/batch.py", "search/recipe/ahead.py")
KEPT += ("search/experiment/ledger.py", "search/optimize.py")
OF_PROCESSES_WE_START = ("analysis/verification/verify.py", "measurement/process.py")
OF_PROCESSES_WE_START += (
    "backends/runtimes/onnxruntime/trace.py",
    "measurement/worker/__main__.py",
)
OF_PROCESSES_WE_START += ("backends/runtimes/onnxruntime/engine_cache.py", "bundle/pack.py")
OF_PROCESSES_WE_START += ("measurement/workloads/loadgen.py", "serving/load_testing/server.py")
OF_PROCESSES_WE_START += ("serving/load_testing/clients.py",)
WRITTEN_BEFORE = ("targets/common/plain_session.py", "targets/kserve.py", "targets/openvino.py")
WRITTEN_BEFORE += ("targets/ort_mobile.py", "targets/ovms.py", "targets/triton.py")
WRITTEN_BEFORE += ("targets/web.py",)
OWN_FILES = {*OF_THE_SYSTEM, *PACKAGED, *CHECKED_BEFORE, *UNPACKED, *KEPT}
OWN_FILES |= {*OF_PROCESSES_WE_START, *WRITTEN_BEFORE}


def list_ways_around() -> dict[str, set[str]]:
    """Return module -> the calls in it that open a file by another way."""
    root = Path(ortune.__file__).parent
    ways: dict[str, set[str]] = {}
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            called = node.func.attr
            mode = [arg.value for arg in node.args[:1] if isinstance(arg, ast.Constant)]
            reads = called in ("read_text", "read_bytes") and not (
                isinstance(node.func.value, ast.Name) and node.func.value.id == "regular_file"
            )
            reads = reads or (called == "open" and mode in (["rb"], ["r"]))
            if reads:
                ways.setdefault(path.relative_to(root).as_posix(), set()).add(called)
    return ways


def test_nothing_reads_files_of_others_by_another_way() -> None:
    """A module that reads a file by itself says here whose it is."""
    ways = list_ways_around()
    assert sorted(ways.keys() - OWN_FILES) == []
    assert sorted(OWN_FILES - ways.keys()) == [], "these do so no more"
