"""The programs of target `onnx`, run in every language."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from ortune.backends.cpu import Cpu
from ortune.bundle.target import Source
from ortune.targets.common import plain_session
from ortune.targets.onnx import OnnxFile
from tests.packages.tools import npm, program
from tests.unit import packaged

PLAIN = Cpu(threads=1)
RICH = Cpu(
    threads=2,
    level="extended",
    disable=("BiasGeluFusion",),
    spin=False,
    parallel=True,
    inter_threads=2,
    arena_growth="as-requested",
    memory_pattern=False,
    prepack=False,
    config=("session.force_spinning_stop=1",),
)


@pytest.fixture(scope="module", params=[PLAIN, RICH], ids=["plain", "rich"])
def written(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Source, Path]]:
    folder = tmp_path_factory.mktemp("written")
    with packaged.source(folder, request.param) as source:
        out = folder / "out"
        out.mkdir()
        OnnxFile().write(source, out)
        yield source, out


def answers_like_the_bundle(source: Source, out: Path, command: Sequence[str | Path]) -> None:
    model = out / "model" / "model.onnx"
    found = plain_session.replay_program(source, "it", lambda name: [*command, model], where=out)
    assert found.difference_db == float("inf")


def test_python(written: tuple[Source, Path]) -> None:
    answers_like_the_bundle(*written, [sys.executable, written[1] / "python" / "run.py"])


def test_javascript(written: tuple[Source, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    node = program("node", install="apt-get install nodejs")
    monkeypatch.setenv("NODE_PATH", str(npm("onnxruntime-node").parent))
    answers_like_the_bundle(*written, [node, written[1] / "javascript" / "run.js"])


def test_cpp(written: tuple[Source, Path], tmp_path: Path) -> None:
    compiler = program("g++", "clang++", install="apt-get install g++")
    built = tmp_path / "run"
    for name in ("libonnxruntime.so", "libonnxruntime.so.1"):
        (tmp_path / name).symlink_to(library())
    flags = ["-std=c++17", "-O1", "-Wall", "-Werror", "-L", tmp_path, f"-Wl,-rpath,{tmp_path}"]
    source = written[1] / "cpp" / "run.cc"
    plain_session.run_command(
        [compiler, *flags, source, "-o", built, "-lonnxruntime", "-pthread"], tmp_path
    )
    answers_like_the_bundle(*written, [built])


def library() -> Path:
    """Return the C library of the installed wheel."""
    spec = importlib.util.find_spec("onnxruntime")
    assert spec is not None and spec.origin is not None
    (found,) = (Path(spec.origin).parent / "capi").glob("libonnxruntime.so.*")
    return found
