"""All models of a server: loaded, exchanged while they answer, and found by name."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias

from ortune.core.errors import OrtuneError
from ortune.engine.engine import Engine
from ortune.protocol.status import Refused, Status, refused
from ortune.server.repository import sources
from ortune.server.repository.catalog import Catalog
from ortune.server.repository.counters import Counters
from ortune.server.repository.pictures import Decoder
from ortune.server.repository.room import NOT_READY, Room
from ortune.server.repository.served import Around, Limits, Served
from ortune.server.repository.slot import OpenFile, Slot, open_changed
from ortune.server.repository.sources import ModelSource, State
from ortune.server.repository.timeouts import Timeouts

Opener: TypeAlias = Callable[[Path], Engine]
"""Opens a file; it may block and raise any error."""
Note: TypeAlias = Callable[[str], None]
NO_CONTROL = "explicit model load / unload is not allowed if polling is enabled"


class Repository:
    """Models by name and version. All of it belongs to one event loop.

    A file is opened in a thread, and one at a time, so that the loop goes on answering and memory
    holds one model twice at most.

    Attributes:
        limits: What is let in.
        explicit: Whether clients may load and unload.
    """

    def __init__(
        self,
        given: Sequence[ModelSource],
        open_: Opener,
        *,
        explicit: bool = False,
        limits: Limits | None = None,
        note: Note = lambda text: None,
    ) -> None:
        """Serve nothing yet: `start` opens the models.

        Args:
            given: What there is to serve.
            note: Is told in one line what changes, and what could not be opened.
        """
        self.limits, self.explicit = limits or Limits(), explicit
        self._catalog = Catalog(given)
        self._open, self._note = open_, note
        self._counters: dict[tuple[str, str], Counters] = {}
        self._around = Around(
            self.limits,
            Room(self.limits.max_held),
            Timeouts(self.limits.timeout_s),
            Decoder(self.limits.max_queue),
            self._catalog.model,
            self._catalog.versions,
        )
        self._opening = ThreadPoolExecutor(1, "ortune open")
        self._tasks: set[asyncio.Task[None]] = set()
        self._alive: set[OpenFile] = set()
        self._started = self._draining = False

    # --- finding ----------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether all models were opened and no end is near."""
        return self._started and not self._draining

    def model(self, name: str, version: str = "") -> Served:
        """Return a model; the highest version where none is named.

        What is returned answers for good: after an exchange it hands requests on.

        Raises:
            Refused: There is none, or not yet, or not any more.
        """
        return self._catalog.model(name, version)

    def models(self) -> list[Served]:
        """Return all that is served, by name and version."""
        return self._catalog.models()

    def index(self, ready: bool = False) -> list[dict[str, str]]:
        """Return name, version and state of all models, as ``repository/index`` tells them.

        Args:
            ready: Leave out what cannot answer.
        """
        rows = [row for slot in self._catalog.slots.values() for row in slot.rows()]
        return [row for row in rows if not ready or row["state"] == "READY"]

    # --- changing ---------------------------------------------------------------------------

    async def start(self) -> None:
        """Open all models.

        Raises:
            OrtuneError: One cannot be opened; none is served then.
        """
        try:
            for slot in self._catalog.slots.values():
                await self._exchange(slot)
        except BaseException:
            await self.drain(5)
            raise
        self._started = True

    async def load(self, name: str, parameters: Mapping[str, Any] | None = None) -> None:
        """Open a model, or exchange it where its files changed, as a client asks.

        Raises:
            Refused: Clients may not, it would override what is served, or it cannot be opened.
        """
        slot = self._controlled(name)
        if slot is None:
            raise Refused(
                f"failed to load '{name}', failed to poll from model repository", Status.INTERNAL
            )
        for key in parameters or {}:
            if key == "config" or key.startswith("file:"):
                raise Refused(
                    f"failed to load '{name}': this server takes no '{key.partition(':')[0]}' "
                    "override",
                    Status.UNSUPPORTED,
                    "load without it: what is served is what was measured",
                )
        try:
            await self._apart(self._exchange(slot))
        except Refused:
            raise
        except Exception as error:
            reason = refused(error).what
            raise Refused(f"failed to load '{name}', {reason}", Status.INTERNAL) from error

    async def unload(self, name: str) -> None:
        """Take a model out; requests that run are answered.

        Raises:
            Refused: Clients may not, or there is none of this name.
        """
        slot = self._controlled(name)
        if slot is None:
            raise Refused(f"failed to unload '{name}': it is not found", Status.NOT_FOUND)
        await self._apart(self._remove(slot))

    async def reload(self, name: str) -> None:
        """Exchange a model whose files changed: nobody waits, and nothing is dropped.

        Raises:
            OrtuneError: A new file cannot be opened; what was served is served on.
        """
        slot = self._catalog.slot(name)
        if slot is None:
            raise Refused(f"Request for unknown model: '{name}' is not found", Status.NOT_FOUND)
        await self._apart(self._exchange(slot))

    def changed(self) -> dict[str, Mapping[str, State]]:
        """Return what changed on disk since it was last tried: source -> state. It blocks."""
        found = {
            name: sources.states(slot.source)
            for name, slot in self._catalog.slots.items()
            if slot.wanted and not slot.turn.locked()
        }
        return {
            name: now
            for name, now in found.items()
            if now and now != self._catalog.slots[name].seen
        }

    async def drain(self, seconds: float) -> int:
        """Let no request in, answer those that run, and close the models.

        Returns:
            Requests that were not answered in time; their models are not closed.
        """
        self._draining = True
        for file in list(self._alive):
            file.stop()
            self._retire(file)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)
        self._opening.shutdown(wait=False, cancel_futures=True)
        self._around.decoder.close()
        return sum(file.running for file in self._alive)

    # --- how --------------------------------------------------------------------------------

    def _controlled(self, name: str) -> Slot | None:
        if not self.explicit:
            raise Refused(NO_CONTROL, Status.UNAVAILABLE)
        return self._catalog.slot(name)

    async def _exchange(self, slot: Slot) -> None:
        """Open what changed beside what answers, put it in its place, and close the old."""
        async with slot.turn:
            slot.wanted, slot.reason = True, ""
            loop = asyncio.get_running_loop()
            tried = await loop.run_in_executor(self._opening, open_changed, slot, self._open)
            held, unfit = dict(slot.open), []
            for version, (engine, state) in tried.engines.items():
                try:
                    held[version] = self._opened(slot, version, engine, state)
                except OrtuneError as error:
                    tried.error = error
                    unfit.append(engine)
            self._place(slot, {one: held[one] for one in tried.versions if one in held})
            for engine in unfit:
                await asyncio.to_thread(engine.close)
            if tried.error is not None:
                slot.reason = refused(tried.error).text
                stands = "; what was open answers on" if slot.open else ""
                self._note(f"{slot.source.name}: {slot.reason}{stands}")
                raise tried.error

    async def _remove(self, slot: Slot) -> None:
        async with slot.turn:
            slot.wanted, slot.reason = False, "unloaded"
            self._place(slot, {})

    def _opened(self, slot: Slot, version: str, engine: Engine, state: State) -> OpenFile:
        """Prepare an engine's models to be served.

        Raises:
            OrtuneError: Another source has one of their names, or the protocol cannot carry them;
                or the server ends.
        """
        if self._draining:
            raise Refused(NOT_READY, Status.UNAVAILABLE)
        names = {model: slot.name(model) for model in engine.models}
        for name in names.values():
            self._catalog.demand_free(name, slot)
        made = [
            Served(
                name,
                version,
                engine[model],
                self._counters.setdefault((name, version), Counters()),
                self._around,
            )
            for model, name in names.items()
        ]
        file = OpenFile(engine, state, tuple(made))
        self._alive.add(file)
        return file

    def _place(self, slot: Slot, files: dict[str, OpenFile]) -> None:
        """Let these files of a source answer from now on, and close the others behind them."""
        for file in self._catalog.place(slot, files):
            self._retire(file)

    def _retire(self, file: OpenFile) -> None:
        """Close a file when its last request is answered."""
        if not file.leaving:
            file.leaving = True
            self._spawn(self._close(file))

    async def _close(self, file: OpenFile) -> None:
        await file.close()
        self._alive.discard(file)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start what goes on whoever gives up waiting for it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # told to whoever waits, and noted

    async def _apart(self, work: Coroutine[Any, Any, None]) -> None:
        await asyncio.shield(self._spawn(work))
