"""What all live workers of this process may take of the memory together, and who ends one."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace
from functools import cache
from typing import Protocol

import psutil

from ortune.core.hardware import memory


class MemoryBoundWorker(Protocol):
    """A worker, as far as its memory is concerned."""

    @property
    def pid(self) -> int:
        """Its process."""
        ...

    @property
    def limit(self) -> int:
        """Bytes that it and all others may take together."""
        ...

    def end(self, why: str) -> None:
        """Kill it, and keep the reason."""
        ...


@dataclass
class _WorkerMemory:
    """A worker's process, its bytes at the last look, and by how much they had grown."""

    process: psutil.Process | None
    bytes: int = 0
    growth: int = 0

    def read_memory(self) -> int:
        """Read the bytes that the process holds and no file backs; 0 when it is gone."""
        try:
            info = self.process.memory_info() if self.process else None
        except psutil.Error:
            info = None
        now = max(0, info.rss - getattr(info, "shared", 0)) if info else 0
        self.growth, self.bytes = now - self.bytes, now
        return now


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
        try:
            process = psutil.Process(worker.pid)
        except psutil.Error:
            process = None
        with self._lock:
            self._live[worker] = _WorkerMemory(process)
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
        beside = f", beside {memory.format_bytes(total - worst_bytes)} of other workers"
        worst.end(f"{why}{memory.format_bytes(worst_bytes)}{beside if self._live else ''}")


@cache
def process_allowance() -> Allowance:
    """Return the one of this process: whoever starts workers shares it."""
    return Allowance()
