"""The programs of target `onnx` in every language: run where that can be, else compiled."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from ortune.backends.cpu import Cpu
from ortune.bundle.source import Source
from ortune.deployment import check_samples
from ortune.targets.onnx import OnnxFile
from tests.packages.tools import JAR, npm, program
from tests.unit import packaged

STUBS = Path(__file__).parent / "stubs"
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
    found = check_samples.replay(source, "it", lambda name: [*command, model], where=out)
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
    check_samples.run(
        [compiler, *flags, source, "-o", built, "-lonnxruntime", "-pthread"], tmp_path
    )
    answers_like_the_bundle(*written, [built])


def library() -> Path:
    """Return the C library of the installed wheel."""
    spec = importlib.util.find_spec("onnxruntime")
    assert spec is not None and spec.origin is not None
    (found,) = (Path(spec.origin).parent / "capi").glob("libonnxruntime.so.*")
    return found


def test_java(written: tuple[Source, Path], tmp_path: Path) -> None:
    compiler = program("javac", install="apt-get install default-jdk-headless")
    classes = tmp_path / "classes"
    stubs = [] if JAR else sorted((STUBS / "java").rglob("*.java"))
    path = ["-cp", JAR] if JAR else []
    check_samples.run(
        [compiler, "-Xlint:all", "-d", classes, *path, *stubs, written[1] / "java" / "Run.java"],
        tmp_path,
    )
    assert (classes / "Run.class").is_file()
    if JAR:
        java = program("java", install="apt-get install default-jre-headless")
        where = os.pathsep.join([JAR, str(classes)])
        answers_like_the_bundle(*written, [java, "-cp", where, "Run"])


def test_csharp_compiles(written: tuple[Source, Path], tmp_path: Path) -> None:
    compiler = program("mcs", install="apt-get install mono-mcs")
    shutil.copyfile(STUBS / "csharp" / "OnnxRuntime.cs", tmp_path / "OnnxRuntime.cs")
    built = tmp_path / "run.exe"
    command = [compiler, "-warnaserror", f"-out:{built}", "OnnxRuntime.cs"]
    check_samples.run([*command, written[1] / "csharp" / "Run.cs"], tmp_path)
    assert built.is_file()
