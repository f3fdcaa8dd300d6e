"""One process that serves: both front ends in one loop, and an end that loses nothing."""

import asyncio
import ctypes
import gc
import os
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

from ortune.bundle.answers import add_answers
from ortune.bundle.engine import archive
from ortune.bundle.engine.engine import Engine
from ortune.bundle.engine.load import load_engine
from ortune.core.errors import OrtuneError
from ortune.core.system import raise_file_limit
from ortune.core.wording import format_count
from ortune.serving.server.grpc.server import GrpcServer
from ortune.serving.server.http.app import App
from ortune.serving.server.http.server import HttpServer
from ortune.serving.server.listeners import Listeners
from ortune.serving.server.logs import Journal
from ortune.serving.server.repository.repository import Repository, watch_files
from ortune.serving.server.repository.served import Limits
from ortune.serving.server.repository.sources import find_sources
from ortune.serving.server.settings import Listening, Ready, Serve
from ortune.serving.server.signals import handle_signals

End: TypeAlias = Callable[[], Awaitable[Any]]

_FILES = 65536
"""Open files, where the system allows so many: every client is one."""
_GRACE_S = 1.0
"""Seconds for front ends to give up what was not answered in time."""
_LOOK_S = 0.01
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Numbers of `mallopt`'s parameters, from glibc's malloc.h."""


def make_limits(request: Serve) -> Limits:
    """Return what is let in."""
    return Limits(
        max_queue=request.max_queue or Limits.max_queue,
        timeout_s=request.timeout,
        max_body=request.max_body or Limits.max_body,
        fits_models=request.max_body is None,
    )


def make_repository(request: Serve, journal: Journal) -> Repository:
    """Return models, not yet loaded; BadSettings where a path is none or two have one name."""

    def open_file(path: Path) -> Engine:
        ops = request.allow_custom_ops if archive.is_bundle(path) else request.custom_ops or False
        engine = load_engine(
            path,
            on=request.on,
            instances=request.instances,
            custom_ops=ops,
            max_batch=request.max_batch,
            max_delay_us=request.max_delay_us,
            preferred=request.preferred,
            max_queue=request.max_queue,
            require_signature=request.require_signature,
        )
        try:
            add_answers(engine, path)
        except OrtuneError as error:
            journal.log_event(
                "warning", f"{path.name} takes tensors alone: {error.what}; {error.fix}"
            )
        return engine

    def note(text: str) -> None:
        if repository.ready:  # before that, what is wrong is raised
            journal.log_event("warning", text)

    limits = make_limits(request)
    repository = Repository(
        find_sources(request.names), open_file, explicit=request.explicit, limits=limits, note=note
    )
    return repository


def serve_here(request: Serve, listeners: Listeners, journal: Journal, ready: Ready) -> int:
    """Serve in this process until told to end; return requests not answered in the time for it.

    Raises OrtuneError: a model cannot be opened; KeyboardInterrupt: it was told to end twice.
    """
    raise_file_limit(_FILES)
    # glibc keeps what requests free, unless a variable says otherwise; see docs/serving.md.
    if not any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ):
        with suppress(AttributeError, OSError, TypeError):  # not glibc; no such library; Windows
            mallopt = ctypes.CDLL(None).mallopt
            mallopt(_MMAP_THRESHOLD, 32 << 20)
            mallopt(_TRIM_THRESHOLD, 256 << 20)
    new_loop: Callable[[], asyncio.AbstractEventLoop] | None = None
    with suppress(ImportError):
        from uvloop import new_event_loop as new_loop
    with asyncio.Runner(loop_factory=new_loop) as runner:
        unanswered = runner.run(_OneProcess(request, listeners, journal, ready).serve())
    if unanswered is None:
        raise KeyboardInterrupt
    return unanswered


class _OneProcess:
    """What serves in one loop."""

    def __init__(
        self, request: Serve, listeners: Listeners, journal: Journal, ready: Ready
    ) -> None:
        self._request, self._listeners = request, listeners
        self._journal, self._ready = journal, ready
        self._stop = asyncio.Event()
        self._background: set[asyncio.Task[Any]] = set()

    async def serve(self) -> int | None:
        """Return the requests that were left; None where it was told to end twice."""
        repository = make_repository(self._request, self._journal)
        try:
            with handle_signals(self._stop.set):
                return await self._serve_until_stopped(repository)
        except asyncio.CancelledError:
            return None
        finally:
            await repository.drain(_GRACE_S)

    async def _serve_until_stopped(self, repository: Repository) -> int:
        if not await self._unless_stopped(repository.start()):
            return 0
        gc.collect()
        gc.freeze()  # what is loaded stays: later collections pass it over
        ends = await self._open_fronts(repository)
        if self._request.watch:
            self._background.add(asyncio.create_task(watch_files(repository)))
        self._ready(
            Listening(
                http=self._listeners.url,
                grpc=None if self._listeners.grpc is None else str(self._listeners.grpc),
                models=list(dict.fromkeys(served.name for served in repository.list_models())),
                pids=[os.getpid()],
            )
        )
        await self._stop.wait()
        # Take no new requests, answer those that were accepted, close the models.
        self._journal.log_event(
            "info", f"ending: accepted requests have {self._request.drain:g} s"
        )
        for task in self._background:
            task.cancel()
        ending = asyncio.gather(*(end() for end in ends))
        await asyncio.wait({ending}, timeout=self._request.drain)
        late = 0 if ending.done() else sum(served.running for served in repository.list_models())
        await asyncio.wait({ending}, timeout=2 * _GRACE_S)
        if ending.done():
            ending.result()
        else:
            ending.cancel()
        unanswered = late or await repository.drain(_GRACE_S)
        if unanswered:
            self._journal.log_event(
                "error", f"ended: {format_count(unanswered, 'request')} got no answer in time"
            )
        else:
            self._journal.log_event("info", "ended: every accepted request was answered")
        return unanswered

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

    async def _open_fronts(self, repository: Repository) -> list[End]:
        """Open the front ends; return what ends each of them."""
        listeners, ends = self._listeners, list[End]()
        if listeners.grpc is not None:
            may_change = self._request.watch or self._request.explicit
            server = GrpcServer(
                repository,
                listeners.access,
                self._journal,
                listeners.certificate,
                str(listeners.grpc),
                None if may_change else repository.bound_message(),
            )
            await server.start()
            ends.append(lambda: server.stop(self._request.drain + _GRACE_S))
        if listeners.http is not None:
            app = App(repository, listeners.access, self._journal)
            http = HttpServer(app, listeners.certificate, self._request.drain + _GRACE_S)
            task = asyncio.create_task(http.serve([listeners.http.bind_socket()]))
            while not http.started and not task.done():
                await asyncio.sleep(_LOOK_S)
            task.add_done_callback(lambda _: self._stop.set())

            async def end_http() -> None:
                http.should_exit = True
                await task

            ends.append(end_http)
        return ends
