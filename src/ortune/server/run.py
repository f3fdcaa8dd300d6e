"""One process that serves: both front ends in one loop, and an end that loses nothing."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeAlias

from ortune.core.wording import count
from ortune.server import loading
from ortune.server.addresses import listener
from ortune.server.allocator import keep_freed_memory
from ortune.server.doors import Doors
from ortune.server.grpc.server import credentials
from ortune.server.grpc.server import server as grpc_server
from ortune.server.http.app import App
from ortune.server.http_server import HttpServer
from ortune.server.journal import Journal
from ortune.server.repository.repository import Repository
from ortune.server.repository.watch import watch
from ortune.server.settings import Listening, Ready, Serve
from ortune.server.signals import told

End: TypeAlias = Callable[[], Awaitable[Any]]

_FILES = 65536
"""Open files, where the system allows so many: every client is one."""
_GRACE_S = 1.0
"""Seconds for front ends to give up what was not answered in time."""
_LOOK_S = 0.01


def serve_here(asked: Serve, doors: Doors, journal: Journal, ready: Ready) -> int:
    """Serve in this process until it is told to end.

    Returns:
        Requests that were not answered within the time for it.

    Raises:
        OrtuneError: A model cannot be opened.
        KeyboardInterrupt: It was told to end twice.
    """
    _raise_limit_of_files()
    keep_freed_memory()
    with asyncio.Runner(loop_factory=_loop()) as runner:
        left = runner.run(_OneProcess(asked, doors, journal, ready).serve())
    if left is None:
        raise KeyboardInterrupt
    return left


class _OneProcess:
    """What serves in one loop."""

    def __init__(self, asked: Serve, doors: Doors, journal: Journal, ready: Ready) -> None:
        self._asked, self._doors, self._journal, self._ready = asked, doors, journal, ready
        self._stop = asyncio.Event()
        self._background: set[asyncio.Task[Any]] = set()

    async def serve(self) -> int | None:
        """Return the requests that were left; None where it was told to end twice."""
        repository = loading.repository(self._asked, self._journal)
        try:
            with told(self._stop.set):
                return await self._serve(repository)
        except asyncio.CancelledError:
            return None
        finally:
            await repository.drain(_GRACE_S)

    async def _serve(self, repository: Repository) -> int:
        if not await self._unless_stopped(repository.start()):
            return 0
        gc.collect()
        gc.freeze()  # what is loaded stays: later collections pass it over
        ends = await self._open(repository)
        if self._asked.watch:
            self._background.add(asyncio.create_task(watch(repository)))
        self._ready(
            Listening(
                http=self._doors.url,
                grpc=None if self._doors.grpc is None else str(self._doors.grpc),
                models=list(dict.fromkeys(one.name for one in repository.models())),
                pids=[os.getpid()],
            )
        )
        await self._stop.wait()
        return await self._drain(repository, ends)

    async def _unless_stopped(self, work: Coroutine[Any, Any, None]) -> bool:
        """Do some work unless the end comes first; return whether it was done."""
        task, stopped = asyncio.create_task(work), asyncio.create_task(self._stop.wait())
        await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if task.done():
            await task
            return True
        task.cancel()
        await asyncio.wait({task})
        return False

    async def _open(self, repository: Repository) -> list[End]:
        """Open the front ends; return what ends each of them."""
        doors, limits, ends = self._doors, repository.limits, list[End]()
        if doors.grpc is not None:
            made = grpc_server(
                repository,
                doors.access,
                self._journal,
                limits,
                credentials(doors.certificate),
                str(doors.grpc),
            )
            await made.start()
            ends.append(lambda: made.stop(self._asked.drain + _GRACE_S))
        if doors.http is not None:
            app = App(repository, doors.access, self._journal, limits)
            http = HttpServer(app, doors.certificate, self._asked.drain + _GRACE_S)
            task = asyncio.create_task(http.serve([listener(doors.http)]))
            while not http.started and not task.done():
                await asyncio.sleep(_LOOK_S)
            task.add_done_callback(lambda _: self._stop.set())

            async def end_http() -> None:
                http.should_exit = True
                await task

            ends.append(end_http)
        return ends

    async def _drain(self, repository: Repository, ends: list[End]) -> int:
        """Take no new requests, answer those that were accepted, close the models."""
        self._journal.event("info", f"ending: accepted requests have {self._asked.drain:g} s")
        for task in self._background:
            task.cancel()
        ending = asyncio.gather(*(end() for end in ends))
        await asyncio.wait({ending}, timeout=self._asked.drain)
        late = 0 if ending.done() else sum(one.running for one in repository.models())
        await ending
        left = late or await repository.drain(_GRACE_S)
        if left:
            self._journal.event("error", f"ended: {count(left, 'request')} got no answer in time")
        else:
            self._journal.event("info", "ended: every accepted request was answered")
        return left


def _loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return what makes the loop: uvloop's where it is installed."""
    try:
        from uvloop import new_event_loop
    except ImportError:
        return None
    return new_event_loop


def _raise_limit_of_files() -> None:
    with suppress(ImportError, ValueError, OSError):
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = _FILES if hard == resource.RLIM_INFINITY else min(hard, _FILES)
        if soft != resource.RLIM_INFINITY and soft < most:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
