"""The place of one source: which of its versions are open, and what is being done to them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from ortune.core.errors import BadData
from ortune.engine.engine import Engine
from ortune.server.repository import sources
from ortune.server.repository.served import Served
from ortune.server.repository.sources import ModelSource, State


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

    @property
    def running(self) -> int:
        """Requests that are not answered yet."""
        return sum(one.running for one in self.served)

    def stop(self) -> None:
        """Refuse requests from now on."""
        for one in self.served:
            one.stop()

    async def close(self) -> None:
        """Close the engine when all requests are answered."""
        for one in self.served:
            await one.close()
            one.counters.leave(one.call)
        await asyncio.to_thread(self.engine.close)


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


@dataclass(eq=False)
class Opening:
    """What opening the files of a source came to.

    Attributes:
        versions: Those that there are now.
        engines: Version -> engine of a file that is new, and its state.
        error: Why another one could not be opened.
    """

    versions: tuple[str, ...]
    engines: dict[str, tuple[Engine, State]]
    error: Exception | None = None


def open_changed(slot: Slot, open_: Callable[[Path], Engine]) -> Opening:
    """Open the files of a source that are not open as they are now, and warm them up. It blocks.

    Each is seen before it is opened: one that changes meanwhile is another at the next look.
    """
    try:
        files = slot.source.files()
    except Exception as error:
        return Opening(tuple(slot.open), {}, error)
    slot.seen = {version: sources.state(path) for version, path in files.items()}
    made = Opening(tuple(files), {})
    for version, path in files.items():
        state = slot.seen[version]
        if version in slot.open and slot.open[version].state == state:
            continue
        try:
            made.engines[version] = _warm(open_(path)), state
        except Exception as error:
            made.error = error
    return made


def _warm(engine: Engine) -> Engine:
    """Run an engine once; one that takes no zeros is warmed up by its first request."""
    try:
        with suppress(BadData):
            engine.warm_up()
    except BaseException:
        engine.close()
        raise
    return engine
