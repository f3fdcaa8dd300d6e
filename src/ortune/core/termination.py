"""The end of runs, told by another thread in a scope as Trio has, and of the process.

A session that can end a run registers how, by `Termination.watch_run`; one that cannot is let
finish. Nothing between the scope and the session needs to know of it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from ortune.core.errors import OrtuneError

_SOON_S = 3.0
"""Seconds that what is left of a program may take: threads, and what was interrupted twice."""
_CURRENT: ContextVar[Termination | None] = ContextVar("termination", default=None)


class RunTerminated(OrtuneError):
    """A run was told to end before it had its outputs."""


class Termination:
    """Tells runs to end: those inside its scope that go on, and those that begin later."""

    def __init__(self) -> None:
        self.requested = False
        self._lock = threading.Lock()
        self._ends: list[Callable[[], None]] = []

    def request(self) -> None:
        """Tell the runs to end; from any thread, and also from a handler of signals."""
        with self._lock:
            self.requested = True
            for end in self._ends:
                end()

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Let it end the runs of this thread inside the block."""
        token = _CURRENT.set(self)
        try:
            yield
        finally:
            _CURRENT.reset(token)

    @contextmanager
    def watch_run(self, end: Callable[[], None]) -> Iterator[None]:
        """Have `end` called, by another thread, where the run inside the block is to end.

        Where that was asked for before, it is called at once.

        Raises:
            RunTerminated: It was told to end, whatever the runtime itself raised or gave.
        """
        with self._lock:
            self._ends.append(end)
            if self.requested:
                end()
        try:
            yield
        except Exception as error:
            if self.requested:
                raise _make_error() from error
            raise
        finally:
            with self._lock:
                self._ends.remove(end)
        if self.requested:
            raise _make_error()


def find_termination() -> Termination | None:
    """Return what may end the runs of this thread; None where nothing does."""
    return _CURRENT.get()


def _make_error() -> RunTerminated:
    return RunTerminated(
        "the process got a signal to end",
        fix="run the same command again, with more time or less work",
    )


def end_soon(code: int) -> None:
    """End this process in a moment, whatever its threads still do: only one of our own."""
    timer = threading.Timer(_SOON_S, os._exit, (code,))
    timer.daemon = True
    timer.start()
