"""Run near tests on an edited copy of the tree, each run in a process forked for it.

The libraries are imported once, before the forks; ortune and its tests are imported by each fork
anew, from the copy. The working tree is never touched.
"""

from __future__ import annotations

import gc
import importlib
import json
import math
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.mutants.edit import Mutant
from tools.mutants.plan import ROOT, SOURCES, Module

LIBRARIES = (
    *("numpy", "scipy.stats", "onnx", "onnx_ir", "onnxruntime", "onnxscript"),
    *("hypothesis", "pytest"),
)
COPIED = (
    *("src", "tests", "tools", "benchmarks", "examples", "docs", "pyproject.toml", "README.md"),
    *sorted(
        str(path.relative_to(ROOT)) for path in ROOT.glob("benchmarks/results/*/abandoned.json")
    ),
)
OPTIONS = ("-q", "-x", "--no-header", "--tb=no", "--basetemp=tmp")
UNUSED = ("cacheprovider", "unraisableexception", "threadexception")
"""Plugins of pytest that collect garbage and tidy up: half of a short run."""
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
}
PATIENCE = 5.0
"""A run may take this many times as long as on the unchanged module, and 20 s more."""
SURVIVED, USAGE, NO_TESTS = 0, 4, 5
"""Exit statuses of pytest; all others are deaths."""


@dataclass(frozen=True)
class Near:
    """What near tests run of a module, and how long they take.

    Attributes:
        reach: Test -> lines of the module that it runs.
        seconds: Test -> seconds.
        imported: Lines that run when the module is imported.
    """

    reach: dict[str, frozenset[int]]
    seconds: dict[str, float]
    imported: frozenset[int]

    def of(self, lines: Iterable[int]) -> list[str]:
        """Return the tests that run one of these lines, the quickest first."""
        wanted = set(lines)
        everywhere = not self.imported.isdisjoint(wanted)
        found = [t for t, ran in self.reach.items() if everywhere or not ran.isdisjoint(wanted)]
        return sorted(found, key=lambda test: self.seconds[test])


class Copies:
    """Copies of the tree, one for each run at a time."""

    def __init__(self, folder: Path, count: int) -> None:
        self.trees = [folder / f"tree{n}" for n in range(count)]
        for tree in self.trees:
            tree.mkdir(parents=True)
            for name in COPIED:
                source = ROOT / name
                if source.is_dir():
                    ignored = shutil.ignore_patterns("__pycache__", "*.pyc", "results")
                    shutil.copytree(source, tree / name, ignore=ignored)
                elif source.is_file():
                    (tree / name).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(source, tree / name)


def prepare() -> None:
    """Import the libraries that every fork needs."""
    from _pytest.config import default_plugins

    os.environ |= ENVIRONMENT
    for name in (*LIBRARIES, *(f"_pytest.{one}" for one in default_plugins)):
        with suppress(ImportError):
            importlib.import_module(name)
    gc.freeze()


def measure(module: Module, copies: Copies, known: Path | None = None) -> Near:
    """Run the near tests of a module unchanged and watch which lines each of them runs.

    Args:
        known: Where it is kept; what is there is taken, and the tests are imported alone.

    Raises:
        RuntimeError: They do not pass.
    """
    tree, *others = copies.trees
    report = tree / "near.json"
    watch = _Watch(str(tree / SOURCES / module.path), report)
    seen = known is not None and known.is_file()
    job = _start(
        tree, [*(["--collect-only"] * seen), *module.tests], [object() if seen else watch]
    )
    if (status := _wait(job, 600.0)) != SURVIVED:
        raise RuntimeError(f"near tests of {module.path} fail unchanged: status {status}")
    for other in others:  # byte code saves a third of a run
        ignored = shutil.ignore_patterns("*.json")
        shutil.copytree(tree, other, dirs_exist_ok=True, ignore=ignored)
    if known is not None and not seen:
        known.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(report, known)
    told = json.loads((known or report).read_text(encoding="utf-8"))
    reach = {test: frozenset(lines) for test, lines in told["reach"].items()}
    return Near(reach, told["seconds"], frozenset(told["imported"]))


def outcomes(
    edits: Sequence[Mutant],
    chosen: Callable[[Mutant], tuple[list[str], float]],
    copies: Copies,
    until: float = math.inf,
) -> Iterator[tuple[Mutant, str]]:
    """Try edits side by side; yield each with ``killed``, ``timed out`` or ``survived``.

    Args:
        chosen: Tests of an edit, and the seconds they take unchanged.
        until: By the monotonic clock; what has not begun then is left untried.
    """
    waiting, free = list(edits), list(copies.trees)
    running: dict[int, tuple[Mutant, Path, list[str], float]] = {}
    while running or (waiting and time.monotonic() < until):
        while waiting and free and time.monotonic() < until:
            edit = waiting.pop(0)
            tests, seconds = chosen(edit)
            if not tests:
                yield edit, "survived"
                continue
            tree = free.pop()
            _write(tree, edit)
            longest = time.monotonic() + PATIENCE * seconds + 20
            running[_start(tree, tests, [])] = edit, tree, tests, longest
        for job, (edit, tree, tests, longest) in list(running.items()):
            status = _poll(job, longest)
            if status is None:
                continue
            del running[job]
            files = sorted({test.partition("::")[0] for test in tests})
            if status == USAGE and tests != files:
                # The edit breaks the import, or gives tests other names: their files tell which.
                running[_start(tree, files, [])] = edit, tree, files, longest + 20
            else:
                shutil.copy(ROOT / SOURCES / edit.path, tree / SOURCES / edit.path)
                free.append(tree)
                yield edit, _word(status)
        time.sleep(0.01)


def _word(status: int) -> str:
    if status in (USAGE, NO_TESTS):
        raise RuntimeError(f"pytest found no tests to run: status {status}")
    return {SURVIVED: "survived", -1: "timed out"}.get(status, "killed")


def _write(tree: Path, edit: Mutant) -> None:
    target = tree / SOURCES / edit.path
    target.write_bytes(edit.apply((ROOT / SOURCES / edit.path).read_bytes()))
    for old in (target.parent / "__pycache__").glob(f"{target.stem}.*.pyc"):
        old.unlink()


def _start(tree: Path, tests: list[str], plugins: list[object]) -> int:
    """Fork a process that runs tests in a tree; return its id."""
    job = os.fork()
    if job:
        return job
    status = 3
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        status = _tests(tree, tests, plugins)
    finally:
        os._exit(status)


def _tests(tree: Path, tests: list[str], plugins: list[object]) -> int:
    import pytest
    from hypothesis import Phase, settings

    for name in [n for n in sys.modules if n.partition(".")[0] in ("ortune", "tests", "tools")]:
        del sys.modules[name]
    os.chdir(tree)
    sys.dont_write_bytecode = not plugins
    sys.path[:] = [str(tree / "src"), *(p for p in sys.path if p not in ("", str(ROOT)))]
    os.environ |= {"PYTHONPATH": str(tree / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    drawn = (Phase.explicit, Phase.generate)
    settings.register_profile(
        "mutants", derandomize=True, database=None, deadline=None, phases=drawn
    )
    settings.load_profile("mutants")
    off = [part for name in UNUSED for part in ("-p", f"no:{name}")]
    return int(pytest.main([*OPTIONS, *off, "--rootdir", str(tree), *tests], plugins=plugins))


def _poll(job: int, until: float) -> int | None:
    """Return a run's status, -1 when its time is up, None while it runs."""
    done, status = os.waitpid(job, os.WNOHANG)
    if not done and time.monotonic() < until:
        return None
    with suppress(ProcessLookupError):
        os.killpg(job, signal.SIGKILL)
    if done:
        return os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else 1
    os.waitpid(job, 0)
    return -1


def _wait(job: int, seconds: float) -> int:
    until = time.monotonic() + seconds
    while (status := _poll(job, until)) is None:
        time.sleep(0.02)
    return status


class _Watch:
    """A plugin of pytest that writes down which lines of one file each test runs."""

    def __init__(self, path: str, report: Path) -> None:
        self.path, self.report = path, report
        self.lines: set[int] = set()
        self.told: dict[str, Any] = {"reach": {}, "seconds": {}, "imported": []}

    def _trace(self, frame: Any, event: str, _: Any) -> Any:
        if frame.f_code.co_filename != self.path:
            return None
        self.lines.add(frame.f_lineno)
        return self._trace

    def _on(self, tracer: Any) -> None:
        threading.settrace(tracer)
        sys.settrace(tracer)

    def pytest_sessionstart(self) -> None:
        """Watch the import."""
        self._on(self._trace)

    def pytest_collection_finish(self) -> None:
        """Keep what the import ran."""
        self._on(None)
        self.told["imported"] = sorted(self.lines)

    def pytest_runtest_protocol(self, item: Any) -> None:
        """Begin a test."""
        self.lines.clear()
        self.began = time.monotonic()
        self._on(self._trace)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """End a test."""
        self._on(None)
        self.told["reach"][nodeid] = sorted(self.lines)
        self.told["seconds"][nodeid] = time.monotonic() - self.began

    def pytest_sessionfinish(self) -> None:
        """Write it down."""
        self.report.write_text(json.dumps(self.told), encoding="utf-8")
