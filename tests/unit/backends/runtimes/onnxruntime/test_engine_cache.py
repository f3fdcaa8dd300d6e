"""Engines on disk: opened for exactly what they were built for, built again otherwise.

The provider is OpenVINO's own cache of compiled models, which works on every CPU: its files are
real, and its own word says whether a model came out of them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path

import onnx
import pytest

from ortune.backends.runtimes.onnxruntime import engine_cache
from ortune.backends.runtimes.onnxruntime.engine_cache import (
    EngineKey,
    estimate_build_time,
    evict_engines,
    open_with_engines,
    watch_engines,
)
from ortune.core.atomic_write import hold_lock
from ortune.core.errors import OrtuneError
from ortune.core.event import Event, Progress

openvino = pytest.importorskip("openvino")

KEY = EngineKey(
    model="ab" * 16,
    nodes=3,
    provider="OpenVINO",
    options={"INFERENCE_PRECISION_HINT": "f32"},
    versions={"openvino": "2026.4.1"},
    device="CPU",
    profile="x:1x4..8x4",
)
TEXT = """
<ir_version: 8, opset_import: ["": 17]>
g (float[1,4] x) => (float[1,4] y) <float[4] w = {1,2,3,4}> {
  a = Add(x, w)
  b = Relu(a)
  y = Mul(b, w)
}
"""
Opening = Callable[[Path], AbstractContextManager[bool]]


@pytest.fixture(scope="module")
def compiling(tmp_path_factory: pytest.TempPathFactory) -> Opening:
    """Compile a model with OpenVINO's cache; gives whether it came out of the cache."""
    path = tmp_path_factory.mktemp("model") / "toy.onnx"
    onnx.save(onnx.parser.parse_model(TEXT), path)

    @contextmanager
    def opening(folder: Path) -> Iterator[bool]:
        compiled = openvino.Core().compile_model(str(path), "CPU", {"CACHE_DIR": str(folder)})
        yield bool(compiled.get_property("LOADED_FROM_CACHE"))

    return opening


def loaded(compiling: Opening, root: Path, key: EngineKey = KEY, most: int = 1 << 30) -> bool:
    """Open once; what is told of the cache must be what OpenVINO says."""
    with (
        watch_engines() as watch,
        open_with_engines(key, compiling, root=root, most=most) as found,
    ):
        assert watch.warm == [found]
        return found


def test_built_once_and_opened_afterwards(compiling: Opening, tmp_path: Path) -> None:
    assert [loaded(compiling, tmp_path) for _ in range(3)] == [False, True, True]
    told = json.loads((tmp_path / KEY.digest / "key.json").read_text())
    assert told["key"]["profile"] == "x:1x4..8x4" and told["seconds"] > 0
    assert len(told["files"]) == 1 and len(next(iter(told["files"].values()))) == 64


@pytest.mark.parametrize(
    "changed",
    [
        {"model": "cd" * 16},
        {"provider": "Other"},
        {"options": {"INFERENCE_PRECISION_HINT": "bf16"}},
        {"versions": {"openvino": "2026.5"}},
        {"device": "CPU.1"},
        {"compute_capability": "9.0"},
        {"profile": ""},
    ],
    ids=lambda one: next(iter(one)),
)
def test_whatever_differs_is_built(
    compiling: Opening, tmp_path: Path, changed: dict[str, str]
) -> None:
    loaded(compiling, tmp_path)
    assert not loaded(compiling, tmp_path, replace(KEY, **changed))  # type: ignore[arg-type]
    assert loaded(compiling, tmp_path)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def flipped(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize("harm", [cut, flipped, Path.unlink], ids=["cut", "flipped", "gone"])
def test_what_was_harmed_is_built_again(
    compiling: Opening, tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    loaded(compiling, tmp_path)
    place = tmp_path / KEY.digest
    harm(next(one for one in place.iterdir() if one.name != "key.json"))
    assert [loaded(compiling, tmp_path) for _ in range(2)] == [False, True]


def test_what_nobody_kept_is_never_used(compiling: Opening, tmp_path: Path) -> None:
    loaded(compiling, tmp_path)
    place = tmp_path / KEY.digest
    (place / "half.engine").write_bytes(b"of a process that was killed")
    assert not loaded(compiling, tmp_path) and not (place / "half.engine").exists()
    told = json.loads((place / "key.json").read_text())
    (place / "key.json").write_text(json.dumps({**told, "key": {**told["key"], "device": "B"}}))
    assert not loaded(compiling, tmp_path)
    (place / "key.json").write_text("[")
    assert not loaded(compiling, tmp_path)


def test_one_that_does_not_open_is_built_again(compiling: Opening, tmp_path: Path) -> None:
    loaded(compiling, tmp_path)
    tries: list[list[str]] = []

    @contextmanager
    def picky(folder: Path) -> Iterator[bool]:
        tries.append(sorted(one.name for one in folder.iterdir() if one.name != "key.json"))
        if tries[-1]:
            raise RuntimeError("the engine was made by another release")
        with compiling(folder) as found:
            yield found

    assert not loaded(picky, tmp_path)
    assert len(tries) == 2 and tries[0] and not tries[1]
    assert loaded(compiling, tmp_path)


def test_a_build_that_fails_leaves_nothing(compiling: Opening, tmp_path: Path) -> None:
    @contextmanager
    def failing(folder: Path) -> Iterator[bool]:
        (folder / "part.engine").write_bytes(b"half")
        raise OrtuneError("no memory", fix="free some")
        yield False

    with (
        pytest.raises(OrtuneError, match="no memory"),
        open_with_engines(KEY, failing, root=tmp_path),
    ):
        pass
    assert not (tmp_path / KEY.digest).exists()
    assert not loaded(compiling, tmp_path)


def test_what_a_session_adds_is_kept(compiling: Opening, tmp_path: Path) -> None:
    with open_with_engines(KEY, compiling, root=tmp_path):
        (tmp_path / KEY.digest / "other-shape.engine").write_bytes(b"built by the first run")
    assert loaded(compiling, tmp_path)
    assert "other-shape.engine" in (tmp_path / KEY.digest / "key.json").read_text()


def test_a_process_that_is_killed_in_a_build_leaves_it_to_the_next(
    compiling: Opening, tmp_path: Path
) -> None:
    code = f"""
import os
from contextlib import contextmanager
from pathlib import Path
from ortune.backends.runtimes.onnxruntime.engine_cache import open_with_engines
from ortune.backends.runtimes.onnxruntime.engine_cache import EngineKey
@contextmanager
def killed(folder):
    (folder / "half.engine").write_bytes(b"half")
    os._exit(9)
    yield
with open_with_engines({KEY!r}, killed, root=Path({str(tmp_path)!r})):
    pass
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 9
    assert (tmp_path / KEY.digest / "half.engine").exists()
    assert [loaded(compiling, tmp_path) for _ in range(2)] == [False, True]
    assert not (tmp_path / KEY.digest / "half.engine").exists()


def test_the_oldest_go_first(compiling: Opening, tmp_path: Path) -> None:
    keys = [replace(KEY, device=f"CPU.{n}") for n in range(3)]
    for age, key in enumerate(keys):
        loaded(compiling, tmp_path, key)
        os.utime(tmp_path / key.digest / "key.json", (time.time() - 100 + age,) * 2)
    one = sum(each.stat().st_size for each in (tmp_path / keys[0].digest).iterdir())
    assert loaded(compiling, tmp_path, keys[0])  # used: now the youngest
    evict_engines(tmp_path, int(2.5 * one))
    assert [(tmp_path / key.digest).exists() for key in keys] == [True, False, True]
    with hold_lock(tmp_path / ".locks" / keys[2].digest, OrtuneError("held", fix="")):
        evict_engines(tmp_path, 0, spare=tmp_path / keys[0].digest)
    assert [(tmp_path / key.digest).exists() for key in keys] == [True, False, True]
    assert not loaded(compiling, tmp_path, KEY, most=1)
    assert [(tmp_path / key.digest).exists() for key in (*keys, KEY)] == [False] * 3 + [True]


def test_builds_tell_how_long_the_next_takes(tmp_path: Path) -> None:
    assert estimate_build_time(tmp_path, KEY) is None
    for nodes, seconds in ((100, 10.0), (100, 14.0), (100, 11.0), (400, 90.0)):
        key = replace(KEY, nodes=nodes, model=f"{seconds}")
        (tmp_path / key.digest).mkdir()
        engine_cache.record_engine(tmp_path / key.digest, key, seconds)
    assert estimate_build_time(tmp_path, replace(KEY, nodes=100)) == 11.0
    assert estimate_build_time(tmp_path, replace(KEY, nodes=120)) == pytest.approx(13.2)
    assert estimate_build_time(tmp_path, replace(KEY, nodes=300)) == pytest.approx(67.5)
    assert estimate_build_time(tmp_path, replace(KEY, nodes=1000)) is None
    assert estimate_build_time(tmp_path, replace(KEY, nodes=100, device="GPU")) is None
    assert estimate_build_time(tmp_path, replace(KEY, nodes=100, provider="Other")) is None


def test_progress_is_told_while_it_builds(
    compiling: Opening, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ortune.backends.runtimes.onnxruntime.engine_cache.TICK_S", 0.01)
    seen: list[Event] = []

    @contextmanager
    def slow(folder: Path) -> Iterator[bool]:
        time.sleep(0.1)
        with compiling(folder) as found:
            yield found

    with watch_engines(seen.append, tmp_path), open_with_engines(KEY, slow):
        built = len(seen)
    told = [one for one in seen if isinstance(one, Progress)]
    assert built == len(seen) > 2
    assert {one.work for one in told} == {"building an engine for OpenVINO"}
    assert told[0].done == 0 and told[-1].done > 0.02 and told[0].total == 0
    seen.clear()
    with (
        watch_engines(seen.append, tmp_path),
        open_with_engines(replace(KEY, model="ef" * 16), slow),
    ):
        pass
    assert isinstance(seen[0], Progress) and seen[0].total > 0.1
    seen.clear()
    with watch_engines(seen.append, tmp_path), open_with_engines(KEY, slow):
        assert not seen
