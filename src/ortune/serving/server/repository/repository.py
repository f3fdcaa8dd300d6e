"""All models of a server: loaded, exchanged while they answer, and found by name."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from ortune.bundle.engine.engine import Engine
from ortune.core.errors import BadData, BadSettings, OrtuneError
from ortune.serving.protocol.status import Refused, Status, refused
from ortune.serving.server.repository import sources
from ortune.serving.server.repository.counters import Counters
from ortune.serving.server.repository.served import (
    NOT_READY,
    Around,
    Decoder,
    Limits,
    Room,
    Served,
    Timeouts,
)
from ortune.serving.server.repository.sources import NAME, ModelSource, State

Opener: TypeAlias = Callable[[Path], Engine]
"""Opens a file; it may block and raise any error."""
Note: TypeAlias = Callable[[str], None]
NO_CONTROL = "explicit model load / unload is not allowed if polling is enabled"


@dataclass(eq=False)
class OpenFile:
    """One file with its engine, and its models as they are served.

    Attributes:
        state: Of the file when it was opened.
        served: In the engine's order.
        leaving: Whether it is being closed.
    """

    engine: Engine
    state: State
    served: tuple[Served, ...]
    leaving: bool = False

    def __post_init__(self) -> None:
        for one in self.served:
            one.counters.follow(one.call)


@dataclass(eq=False)
class Slot:
    """One source and what is open of it.

    Attributes:
        open: Version -> its file, the lowest first.
        names: Of the models that it was last seen to hold.
        seen: Version -> state of its files when they were last tried.
        wanted: Whether it is to be served: not once it is unloaded.
        reason: Why it does not answer, or why its newest file does not.
        turn: Who changes it holds this.
    """

    source: ModelSource
    open: dict[str, OpenFile] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    seen: dict[str, State] = field(default_factory=dict)
    wanted: bool = True
    reason: str = ""
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    def rows(self) -> Iterator[dict[str, str]]:
        """Yield its rows of the index; what answers says too why its newest file does not."""
        for version, file in self.open.items():
            for one in file.served:
                yield self._row(one.name, version, "READY")
        if not self.open:
            for name in self.names or (self.source.name,):
                yield self._row(name, "", "LOADING" if self.turn.locked() else "UNAVAILABLE")

    def _row(self, name: str, version: str, state: str) -> dict[str, str]:
        return {"name": name, "version": version, "state": state, "reason": self.reason}

    def name(self, model: str) -> str:
        """Return what a model of an engine is called; one alone has the name of its file."""
        return f"{self.source.name}.{model}" if model else self.source.name


def open_changed(
    slot: Slot, open_: Opener
) -> tuple[list[str], dict[str, tuple[Engine, State]], Exception | None]:
    """Open the files of a source that are not open as they are now, and warm them up. It blocks.

    Each is seen before it is opened: one that changes meanwhile is another at the next look.

    Returns:
        The versions that there are now; version -> engine of a file that is new, and its state;
        why another one could not be opened.
    """
    try:
        files = slot.source.files()
    except Exception as error:
        return list(slot.open), {}, error
    slot.seen = {version: sources.state(path) for version, path in files.items()}
    engines, failure = dict[str, tuple[Engine, State]](), None
    for version, path in files.items():
        state = slot.seen[version]
        if version in slot.open and slot.open[version].state == state:
            continue
        try:
            engine = open_(path)
            try:
                with suppress(BadData):  # who takes no zeros is warmed up by the first request
                    engine.warm_up()
            except BaseException:
                engine.close()
                raise
            engines[version] = engine, state
        except Exception as error:
            failure = error
    return list(files), engines, failure


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
        self._slots = {source.name: Slot(source) for source in given}
        self._versions: dict[str, dict[str, Served]] = {}
        self._newest: dict[str, Served] = {}
        self._open, self._note = open_, note
        self._counters: dict[tuple[str, str], Counters] = {}
        self._around = Around(
            self.limits,
            Room(self.limits.max_held),
            Timeouts(self.limits.timeout_s),
            Decoder(self.limits.max_queue),
            self.model,
            lambda name: sorted(self._versions.get(name, ()), key=int),
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
        served = self._versions.get(name, {}).get(version) if version else self._newest.get(name)
        if served is None:
            raise self._unknown(name, version)
        return served

    def models(self) -> list[Served]:
        """Return all that is served, by name and version."""
        return [served for versions in self._versions.values() for served in versions.values()]

    def statistics(self, name: str = "", version: str = "") -> list[dict[str, Any]]:
        """Return the statistics of one version, of all versions of a model, or of all models.

        Raises:
            Refused: There is no such model.
        """
        if name or version:
            self.model(name, version)
        return [
            one.statistics()
            for one in self.models()
            if name in ("", one.name) and version in ("", one.version)
        ]

    def index(self, ready: bool = False) -> list[dict[str, str]]:
        """Return name, version and state of all models, as ``repository/index`` tells them.

        Args:
            ready: Leave out what cannot answer.
        """
        rows = [row for slot in self._slots.values() for row in slot.rows()]
        return [row for row in rows if not ready or row["state"] == "READY"]

    # --- changing ---------------------------------------------------------------------------

    async def start(self) -> None:
        """Open all models.

        Raises:
            OrtuneError: One cannot be opened; none is served then.
        """
        try:
            for slot in self._slots.values():
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

        async def remove() -> None:
            async with slot.turn:
                slot.wanted, slot.reason = False, "unloaded"
                self._place(slot, {})

        await self._apart(remove())

    async def reload(self, name: str) -> None:
        """Exchange a model whose files changed: nobody waits, and nothing is dropped.

        Raises:
            OrtuneError: A new file cannot be opened; what was served is served on.
        """
        slot = self._slot(name)
        if slot is None:
            raise Refused(f"Request for unknown model: '{name}' is not found", Status.NOT_FOUND)
        await self._apart(self._exchange(slot))

    def changed(self) -> dict[str, Mapping[str, State]]:
        """Return what changed on disk since it was last tried: source -> state. It blocks."""
        found = {
            name: sources.states(slot.source)
            for name, slot in self._slots.items()
            if slot.wanted and not slot.turn.locked()
        }
        return {name: now for name, now in found.items() if now and now != self._slots[name].seen}

    async def drain(self, seconds: float) -> int:
        """Let no request in, answer those that run, and close the models.

        Returns:
            Requests that were not answered in time; their models are not closed.
        """
        self._draining = True
        for file in list(self._alive):
            for served in file.served:
                served.stop()
            self._retire(file)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)
        self._opening.shutdown(wait=False, cancel_futures=True)
        self._around.decoder.close()
        return sum(served.running for file in self._alive for served in file.served)

    # --- how --------------------------------------------------------------------------------

    def _slot(self, name: str) -> Slot | None:
        """Return where a model comes from, by its name or by that of its source."""
        named = (slot for slot in self._slots.values() if name in slot.names)
        return self._slots.get(name) or next(named, None)

    def _unknown(self, name: str, version: str) -> Refused:
        """Return Triton's words for why there is no such model."""
        if version and not (version.isascii() and version.isdecimal()):
            return Refused(
                f"failed to get model version from specified version string '{version}', "
                "version should be an integral value > 0"
            )
        said = f"Request for unknown model: '{name}'"
        slot = self._slot(name)
        if slot is None:
            return Refused(f"{said} is not found", Status.NOT_FOUND)
        if slot.open and name in slot.names:
            return Refused(f"{said} version {version} is not found", Status.NOT_FOUND)
        if slot.open:
            held = ", ".join(f"'{one}'" for one in slot.names)
            return Refused(f"{said} is not found", Status.NOT_FOUND, f"name one of {held}")
        if slot.wanted and not slot.reason:
            at = f" version {version}" if version else ""
            return Refused(f"{said}{at} is not at ready state", Status.UNAVAILABLE)
        return Refused(f"{said} has no available versions", Status.NOT_FOUND)

    def _controlled(self, name: str) -> Slot | None:
        if not self.explicit:
            raise Refused(NO_CONTROL, Status.UNAVAILABLE)
        return self._slot(name)

    async def _exchange(self, slot: Slot) -> None:
        """Open what changed beside what answers, put it in its place, and close the old."""
        async with slot.turn:
            slot.wanted, slot.reason = True, ""
            loop = asyncio.get_running_loop()
            versions, engines, failure = await loop.run_in_executor(
                self._opening, open_changed, slot, self._open
            )
            held, unfit = dict(slot.open), []
            for version, (engine, state) in engines.items():
                try:
                    held[version] = self._opened(slot, version, engine, state)
                except OrtuneError as error:
                    failure = error
                    unfit.append(engine)
            self._place(slot, {one: held[one] for one in versions if one in held})
            for engine in unfit:
                await asyncio.to_thread(engine.close)
            if failure is not None:
                slot.reason = refused(failure).text
                stands = "; what was open answers on" if slot.open else ""
                self._note(f"{slot.source.name}: {slot.reason}{stands}")
                raise failure

    def _opened(self, slot: Slot, version: str, engine: Engine, state: State) -> OpenFile:
        """Prepare an engine's models to be served."""
        if self._draining:
            raise Refused(NOT_READY, Status.UNAVAILABLE)
        names = {model: slot.name(model) for model in engine.models}
        for name in names.values():
            if not NAME.fullmatch(name):
                raise BadSettings(
                    f"a model cannot be served as '{name}'",
                    fix="name its source with letters, digits, '.', '_', '-': net=PATH",
                )
            if self._slot(name) not in (None, slot):
                raise BadSettings(
                    f"two models would be served as '{name}'",
                    fix="give one source a name: net=PATH",
                )
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
        gone = [file for file in slot.open.values() if file not in files.values()]
        slot.open = files
        if files:
            slot.names = tuple(dict.fromkeys(o.name for f in files.values() for o in f.served))
        self._versions = {}
        for served in (
            served
            for one in self._slots.values()
            for file in one.open.values()
            for served in file.served
        ):
            self._versions.setdefault(served.name, {})[served.version] = served
        self._newest = {name: held[max(held, key=int)] for name, held in self._versions.items()}
        for file in gone:
            self._retire(file)

    def _retire(self, file: OpenFile) -> None:
        """Close a file when its last request is answered."""

        async def close() -> None:
            for served in file.served:
                await served.close()
                served.counters.leave(served.call)
            await asyncio.to_thread(file.engine.close)
            self._alive.discard(file)

        if not file.leaving:
            file.leaving = True
            self._spawn(close())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start what goes on whoever gives up waiting for it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)

        def end(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if not task.cancelled():
                task.exception()  # told to whoever waits, and noted

        task.add_done_callback(end)
        return task

    async def _apart(self, work: Coroutine[Any, Any, None]) -> None:
        await asyncio.shield(self._spawn(work))


async def watch(repository: Repository, seconds: float = 1.0) -> None:
    """Reload what changed, until cancelled.

    A file is opened when two looks in a row found it the same: it is no longer being written. One
    that cannot be opened is tried again when it changes again.

    Args:
        seconds: Between two looks.
    """
    before: Mapping[str, Mapping[str, State]] = {}
    while True:
        await asyncio.sleep(seconds)
        now = await asyncio.to_thread(repository.changed)
        for name, state in now.items():
            if before.get(name) == state:
                with suppress(OrtuneError, OSError):  # the repository told of it
                    await repository.reload(name)
        before = now
