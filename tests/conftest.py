"""Workers are processes of their own: they find the tests' plugins, and Ctrl-C reaches them."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import pytest

from tests import zygote

PLUGINS = str(Path(__file__).parent / "plugins")

os.environ["PYTHONPATH"] = os.pathsep.join(
    p for p in (PLUGINS, os.environ.get("PYTHONPATH", "")) if p
)

# A shell starts what it puts in the background with Ctrl-C ignored, and programs inherit that; a
# handler of our own they do not.
if threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show what tests recorded: a limit kept says little of how far off it was."""
    for report in terminalreporter.stats.get("passed", []):
        for name, value in report.user_properties:
            terminalreporter.write_line(f"{report.nodeid}: {name} {value}")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine in a loop as servers have it, for a minute at most."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    new_loop = None
    with suppress(ImportError):
        from uvloop import new_event_loop as new_loop
    given = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(asyncio.wait_for(pyfuncitem.obj(**given), 60))
    return True


@pytest.fixture(scope="session", autouse=True)
def caches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What a search leaves for the next one never lies at home."""
    folder = tmp_path_factory.getbasetemp() / "caches"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "shared"))
        yield folder


@pytest.fixture(scope="session", autouse=True)
def forked_workers(caches: Path) -> Iterator[None]:
    """Workers need not import all anew each time."""
    with zygote.starting():
        yield


@pytest.fixture(scope="module")
def torch_workers() -> Iterator[None]:
    """Workers start with PyTorch imported: it takes each 2 s."""
    with zygote.importing("torch"):
        yield


@pytest.fixture(scope="session", autouse=True)
def no_power_cut() -> Iterator[None]:
    """Nothing that a test writes must outlive one: to wait for the disk is 5 ms a file.

    That it is waited for is a matter of tests that put something of their own in this place.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture(autouse=True)
def cache_home(caches: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """It lies apart for every test."""
    folder = caches / uuid4().hex
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder


@pytest.fixture
def quiet() -> Iterator[None]:
    """onnx_ir remarks on shapes it cannot write; conformance cases and drawn graphs are full."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)
