"""What this process and its live workers may take of the memory together, and who is ended."""

import ctypes
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Protocol

import psutil

from ortune.core.errors import OrtuneError
from ortune.core.hardware import memory


class MemoryBoundWorker(Protocol):
    """A worker, as far as its memory is concerned."""

    @property
    def pid(self) -> int:
        """Its process."""

    @property
    def limit(self) -> int:
        """Bytes that it and all others may take together."""

    def end(self, why: str) -> None:
        """Kill it, and keep the reason."""


@dataclass
class _WorkerMemory:
    """A worker's process, its bytes at the last look, and by how much they had grown.

    Bytes that it had at first, `base`, are not counted.
    """

    process: psutil.Process | None
    bytes: int = 0
    growth: int = 0
    base: int = 0

    def read_memory(self) -> int:
        """Read the bytes that the process holds and no file backs; 0 when it is gone."""
        try:
            info = self.process.memory_info() if self.process else None
        except psutil.Error:
            info = None
        now = max(0, info.rss - getattr(info, "shared", 0) - self.base) if info else 0
        self.growth, self.bytes = now - self.bytes, now
        return now


def _watch_process(pid: int) -> _WorkerMemory:
    """Begin to watch a process; of this one only what it takes from now on is counted."""
    try:
        process = psutil.Process(pid)
    except psutil.Error:
        return _WorkerMemory(None)
    base = _WorkerMemory(process).read_memory() if pid == os.getpid() else 0
    return _WorkerMemory(process, base=base)


class Allowance:
    """Looks at the memory of all live workers every `tick_s` seconds, and at every answer of one.

    What a worker shares with others, the pages of a mapped file, is not counted: the system drops
    these by itself. Over the limit that worker is ended whose memory grew most since the last
    look; of equals the youngest.
    """

    def __init__(self, tick_s: float = 0.1) -> None:
        self._tick_s = tick_s
        self._lock = threading.Lock()
        self._live: dict[MemoryBoundWorker, _WorkerMemory] = {}
        self._watcher: threading.Thread | None = None

    def count_bytes(self) -> int:
        """Return the bytes that live workers hold now."""
        with self._lock:
            return sum(replace(seen).read_memory() for seen in self._live.values())

    def add(self, worker: MemoryBoundWorker) -> None:
        """Watch a worker until `drop`."""
        with self._lock:
            self._live[worker] = _watch_process(worker.pid)
            if self._watcher is None:
                self._watcher = threading.Thread(target=self._watch_workers, daemon=True)
                self._watcher.start()

    def drop(self, worker: MemoryBoundWorker) -> None:
        """Watch a worker no more."""
        with self._lock:
            self._live.pop(worker, None)

    def check(self) -> None:
        """End a worker where all together take too much: what is held now is never missed."""
        with self._lock:
            if self._live:
                self._enforce_limit()

    def _watch_workers(self) -> None:
        while True:
            time.sleep(self._tick_s)
            with self._lock:
                if not self._live:
                    self._watcher = None
                    return
                self._enforce_limit()

    def _enforce_limit(self) -> None:
        total = sum(seen.read_memory() for seen in self._live.values())
        limit = min(worker.limit for worker in self._live)
        if total <= limit:
            return
        youngest = reversed(self._live)
        worst = max(youngest, key=lambda candidate: self._live[candidate].growth)
        worst_bytes = self._live.pop(worst).bytes
        why = f"ended by the memory limit of {memory.format_bytes(limit)}: it wanted "
        beside = f", beside {memory.format_bytes(total - worst_bytes)} of other processes"
        worst.end(f"{why}{memory.format_bytes(worst_bytes)}{beside if self._live else ''}")


class _MemoryGone(BaseException):
    """Ends the work of a thread from another; who handles errors of the work does not catch it."""


_TICK_S = 0.1
_PATIENCE_S = 60.0
_BEYOND = 1.25
"""Of the limit: who goes on taking memory so far does not hear that the work is ended."""


@dataclass(eq=False)
class _CurrentProcess:
    """This process, as the memory limit sees it: what the work of one of its threads takes."""

    limit: int
    give_up: Callable[[str], None]
    memory: _WorkerMemory
    pid: int = field(default_factory=os.getpid)
    thread: int = field(default_factory=threading.get_ident)
    why: str = ""
    done: threading.Event = field(default_factory=threading.Event)

    def end(self, why: str) -> None:
        """Raise in the thread; give the process up where it does not come back to Python."""
        self.why = why
        self.raise_in_thread(_MemoryGone)
        threading.Thread(target=self._watch_end, daemon=True).start()

    def raise_in_thread(self, kind: type[BaseException] | None) -> None:
        """Let the thread's next step in Python raise this; None takes back what was not raised."""
        thrown = None if kind is None else ctypes.py_object(kind)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self.thread), thrown)

    def _watch_end(self) -> None:
        began, first = time.monotonic(), self.memory.read_memory()
        while not self.done.wait(_TICK_S):
            long = time.monotonic() - began > _PATIENCE_S
            if long or self.memory.read_memory() > _BEYOND * max(first, self.limit):
                self.give_up(self.why)


@contextmanager
def limit_process(limit: int, give_up: Callable[[str], None]) -> Iterator[None]:
    """Hold what a block takes of memory, with the workers that it starts, to a limit in bytes.

    What the process holds when the block begins is not counted. Over the limit the block is ended
    by an exception, at the next step that Python takes.

    Args:
        give_up: Called from another thread where a library goes on taking memory after that.

    Raises:
        OrtuneError: The block took more.
    """
    current = _CurrentProcess(limit, give_up, _watch_process(os.getpid()))
    process_allowance().add(current)
    try:
        yield
        process_allowance().drop(current)
    except _MemoryGone:
        raise OrtuneError(current.why, fix="give a higher --memory-limit") from None
    finally:
        process_allowance().drop(current)
        current.done.set()
        if current.why:
            current.raise_in_thread(None)


@cache
def process_allowance() -> Allowance:
    """Return the one of this process: whoever starts workers shares it."""
    return Allowance()
