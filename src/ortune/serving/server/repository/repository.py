"""All models of a server: loaded, exchanged while they answer, and found by name."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from ortune.bundle.engine.engine import Engine
from ortune.core.errors import BadData, BadSettings, OrtuneError
from ortune.core.termination import Termination
from ortune.serving.protocol.refusals import RefusalKind, RequestRefused, make_refusal
from ortune.serving.server.repository import sources
from ortune.serving.server.repository.counters import Counters
from ortune.serving.server.repository.memory_budget import MemoryBudget
from ortune.serving.server.repository.served import (
    NOT_READY,
    Decoder,
    Limits,
    ServedModel,
    ServerContext,
    Timeouts,
)
from ortune.serving.server.repository.sources import NAME, ModelSource, State

Opener: TypeAlias = Callable[[Path], Engine]
"""Opens a file; it may block and raise any error."""
Note: TypeAlias = Callable[[str], None]
_TERMINATED_S = 1.0
"""Seconds for runs that were told to end."""
NO_CONTROL = "explicit model load / unload is not allowed if polling is enabled"


@dataclass(eq=False)
class OpenFile:
    """One file with its engine, and its models as they are served."""

    engine: Engine
    state: State
    served: tuple[ServedModel, ...]
    leaving: bool = False

    def __post_init__(self) -> None:
        for served in self.served:
            served.counters.add_call(served.call)


@dataclass(eq=False)
class Slot:
    """One source and what is open of it.

    Attributes:
        open: Version -> its file, the lowest first.
        names: Of the models that it was last seen to hold.
        seen: Version -> state of its files when they were last tried.
        is_active: Whether it is to be served: not once it is unloaded.
        reason: Why it does not answer, or why its newest file does not.
        turn: Who changes it holds this.
    """

    source: ModelSource
    open: dict[str, OpenFile] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    seen: dict[str, State] = field(default_factory=dict)
    is_active: bool = True
    reason: str = ""
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    def list_rows(self) -> Iterator[dict[str, str]]:
        """Yield its rows of the index; what answers says too why its newest file does not."""
        for version, file in self.open.items():
            for served in file.served:
                yield self._make_row(served.name, version, "READY")
        if not self.open:
            for name in self.names or (self.source.name,):
                yield self._make_row(name, "", "LOADING" if self.turn.locked() else "UNAVAILABLE")

    def _make_row(self, name: str, version: str, state: str) -> dict[str, str]:
        return {"name": name, "version": version, "state": state, "reason": self.reason}

    def name(self, model: str) -> str:
        """Return what a model of an engine is called; one alone has the name of its file."""
        return f"{self.source.name}.{model}" if model else self.source.name


def open_changed(
    slot: Slot, open_: Opener, termination: Termination | None = None
) -> tuple[list[str], dict[str, tuple[Engine, State]], Exception | None]:
    """Open the files of a source that are not open as they are now, and warm them up. It blocks.

    Each is seen before it is opened: one that changes meanwhile is another at the next look.
    Returns the versions that there are now; version -> engine of a file that is new, and its
    state; why another one could not be opened.
    """
    try:
        files = slot.source.list_files()
    except Exception as error:
        return list(slot.open), {}, error
    slot.seen = {version: sources.read_state(path) for version, path in files.items()}
    engines, failure = dict[str, tuple[Engine, State]](), None
    for version, path in files.items():
        state = slot.seen[version]
        if version in slot.open and slot.open[version].state == state:
            continue
        try:
            engine = open_(path)
            try:
                with (termination or Termination()).scope(), suppress(BadData):
                    engine.warm_up()  # who takes no zeros is warmed up by the first request
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
    """

    def __init__(
        self,
        model_sources: Sequence[ModelSource],
        open_: Opener,
        *,
        explicit: bool = False,
        limits: Limits | None = None,
        note: Note = lambda text: None,
    ) -> None:
        """Serve nothing yet: `start` opens the models; `note` hears of each change in a line."""
        self.limits, self.explicit = limits or Limits(), explicit
        self.memory = MemoryBudget(self.limits.max_held)
        self._slots = {source.name: Slot(source) for source in model_sources}
        self._versions: dict[str, dict[str, ServedModel]] = {}
        self._newest: dict[str, ServedModel] = {}
        self._open, self._note = open_, note
        self._counters: dict[tuple[str, str], Counters] = {}
        self._context = ServerContext(
            self.limits,
            self.memory,
            Timeouts(self.limits.timeout_s),
            Decoder(self.limits.max_queue),
            self.find_model,
            lambda name: sorted(self._versions.get(name, ()), key=int),
        )
        self._opening = ThreadPoolExecutor(1, "ortune open")
        self._warming = Termination()
        self._tasks: set[asyncio.Task[None]] = set()
        self._alive: set[OpenFile] = set()
        self._started = self._draining = False

    # --- finding ----------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether all models were opened and no end is near."""
        return self._started and not self._draining

    def find_model(self, name: str, version: str = "") -> ServedModel:
        """Return a model, of the highest version where none is named.

        What is returned answers for good: after an exchange it hands requests on. Raises
        RequestRefused: there is none, or not yet, or not any more.
        """
        served = self._versions.get(name, {}).get(version) if version else self._newest.get(name)
        if served is None:
            raise self._explain_unknown(name, version)
        return served

    def list_models(self) -> list[ServedModel]:
        """Return all that is served, by name and version."""
        return [served for versions in self._versions.values() for served in versions.values()]

    def bound_message(self) -> int:
        """Return how many bytes a request of any model may have, with tensors that are no JSON."""
        bounds = [served.bound_body(0) for served in self.list_models()]
        return max(bounds, default=self.limits.max_body)

    def list_statistics(self, name: str = "", version: str = "") -> list[dict[str, Any]]:
        """Return those of a version, a model or all; RequestRefused if there is none."""
        if name or version:
            self.find_model(name, version)
        return [
            served.build_statistics()
            for served in self.list_models()
            if name in ("", served.name) and version in ("", served.version)
        ]

    def build_index(self, ready: bool = False) -> list[dict[str, str]]:
        """Return name, version and state of all models, or of those that are ready."""
        rows = [row for slot in self._slots.values() for row in slot.list_rows()]
        return [row for row in rows if not ready or row["state"] == "READY"]

    # --- changing ---------------------------------------------------------------------------

    async def start(self) -> None:
        """Open all models. Raises OrtuneError: one cannot be opened; none is served then."""
        try:
            for slot in self._slots.values():
                await self._exchange_files(slot)
        except BaseException:
            await self.drain(5)
            raise
        self._started = True

    async def load(self, name: str, parameters: Mapping[str, Any] | None = None) -> None:
        """Open a model, or exchange it where its files changed, as a client asks.

        Raises RequestRefused: clients may not, it would override what is served, or it does not
        open.
        """
        slot = self._find_controlled_slot(name)
        if slot is None:
            raise RequestRefused(
                f"failed to load '{name}', failed to poll from model repository",
                RefusalKind.INTERNAL,
            )
        for key in parameters or {}:
            if key == "config" or key.startswith("file:"):
                raise RequestRefused(
                    f"failed to load '{name}': this server takes no '{key.partition(':')[0]}' "
                    "override",
                    RefusalKind.UNSUPPORTED,
                    "load without it: what is served is what was measured",
                )
        try:
            await self._run_shielded(self._exchange_files(slot))
        except RequestRefused:
            raise
        except Exception as error:
            reason = make_refusal(error).what
            raise RequestRefused(
                f"failed to load '{name}', {reason}", RefusalKind.INTERNAL
            ) from error

    async def unload(self, name: str) -> None:
        """Take a model out, its requests answered; RequestRefused if none, or it may not be."""
        slot = self._find_controlled_slot(name)
        if slot is None:
            raise RequestRefused(
                f"failed to unload '{name}': it is not found", RefusalKind.NOT_FOUND
            )

        async def remove() -> None:
            async with slot.turn:
                slot.is_active, slot.reason = False, "unloaded"
                self._replace_files(slot, {})

        await self._run_shielded(remove())

    async def reload(self, name: str) -> None:
        """Exchange a changed model, dropping nothing; OrtuneError where it does not open."""
        slot = self._find_slot(name)
        if slot is None:
            raise RequestRefused(
                f"Request for unknown model: '{name}' is not found", RefusalKind.NOT_FOUND
            )
        await self._run_shielded(self._exchange_files(slot))

    def find_changes(self) -> dict[str, Mapping[str, State]]:
        """Return what changed on disk since it was last tried: source -> state. It blocks."""
        states = {
            name: sources.read_states(slot.source)
            for name, slot in self._slots.items()
            if slot.is_active and not slot.turn.locked()
        }
        return {name: now for name, now in states.items() if now and now != self._slots[name].seen}

    async def drain(self, seconds: float) -> int:
        """Let no request in, answer those that run, and close; return how many were not in time.

        What is not answered in time is told to end; a model whose kernel goes on all the same is
        left to the end of the process.
        """
        self._draining = True
        self._warming.request()
        for file in list(self._alive):
            for served in file.served:
                served.stop()
            self._retire_file(file)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)
        unanswered = sum(served.running for file in self._alive for served in file.served)
        for file in self._alive:
            file.engine.terminate()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_TERMINATED_S)
        self._opening.shutdown(wait=False, cancel_futures=True)
        self._context.decoder.close()
        return unanswered

    # --- how --------------------------------------------------------------------------------

    def _find_slot(self, name: str) -> Slot | None:
        """Return where a model comes from, by its name or by that of its source."""
        named = (slot for slot in self._slots.values() if name in slot.names)
        return self._slots.get(name) or next(named, None)

    def _explain_unknown(self, name: str, version: str) -> RequestRefused:
        """Return Triton's words for why there is no such model."""
        if version and not (version.isascii() and version.isdecimal()):
            return RequestRefused(
                f"failed to get model version from specified version string '{version}', "
                "version should be an integral value > 0"
            )
        prefix = f"Request for unknown model: '{name}'"
        slot = self._find_slot(name)
        if slot is None:
            return RequestRefused(f"{prefix} is not found", RefusalKind.NOT_FOUND)
        if slot.open and name in slot.names:
            return RequestRefused(
                f"{prefix} version {version} is not found", RefusalKind.NOT_FOUND
            )
        if slot.open:
            choices = ", ".join(f"'{choice}'" for choice in slot.names)
            return RequestRefused(
                f"{prefix} is not found", RefusalKind.NOT_FOUND, f"name one of {choices}"
            )
        if slot.is_active and not slot.reason:
            at = f" version {version}" if version else ""
            return RequestRefused(f"{prefix}{at} is not at ready state", RefusalKind.UNAVAILABLE)
        return RequestRefused(f"{prefix} has no available versions", RefusalKind.NOT_FOUND)

    def _find_controlled_slot(self, name: str) -> Slot | None:
        if not self.explicit:
            raise RequestRefused(NO_CONTROL, RefusalKind.UNAVAILABLE)
        return self._find_slot(name)

    async def _exchange_files(self, slot: Slot) -> None:
        """Open what changed beside what answers, put it in its place, and close the old."""
        async with slot.turn:
            slot.is_active, slot.reason = True, ""
            loop = asyncio.get_running_loop()
            versions, engines, failure = await loop.run_in_executor(
                self._opening, open_changed, slot, self._open, self._warming
            )
            files, unfit = dict(slot.open), []
            for version, (engine, state) in engines.items():
                try:
                    files[version] = self._prepare_file(slot, version, engine, state)
                except OrtuneError as error:
                    failure = error
                    unfit.append(engine)
            self._replace_files(
                slot, {number: files[number] for number in versions if number in files}
            )
            for engine in unfit:
                await _close_engine(engine)
            if failure is not None and self._draining:
                raise RequestRefused(NOT_READY, RefusalKind.UNAVAILABLE) from failure
            if failure is not None:
                slot.reason = make_refusal(failure).text
                stands = "; what was open answers on" if slot.open else ""
                self._note(f"{slot.source.name}: {slot.reason}{stands}")
                raise failure

    def _prepare_file(self, slot: Slot, version: str, engine: Engine, state: State) -> OpenFile:
        """Prepare an engine's models to be served."""
        if self._draining:
            raise RequestRefused(NOT_READY, RefusalKind.UNAVAILABLE)
        names = {model: slot.name(model) for model in engine.models}
        for name in names.values():
            if not NAME.fullmatch(name):
                raise BadSettings(
                    f"a model cannot be served as '{name}'",
                    fix="name its source with letters, digits, '.', '_', '-': net=PATH",
                )
            if self._find_slot(name) not in (None, slot):
                raise BadSettings(
                    f"two models would be served as '{name}'",
                    fix="give one source a name: net=PATH",
                )
        models = [
            ServedModel(
                name,
                version,
                engine[model],
                self._counters.setdefault((name, version), Counters()),
                self._context,
            )
            for model, name in names.items()
        ]
        file = OpenFile(engine, state, tuple(models))
        self._alive.add(file)
        return file

    def _replace_files(self, slot: Slot, files: dict[str, OpenFile]) -> None:
        """Let these files of a source answer from now on, and close the others behind them."""
        old_files = [file for file in slot.open.values() if file not in files.values()]
        slot.open = files
        if files:
            slot.names = tuple(dict.fromkeys(o.name for f in files.values() for o in f.served))
        self._versions = {}
        for served in (
            served
            for other_slot in self._slots.values()
            for file in other_slot.open.values()
            for served in file.served
        ):
            self._versions.setdefault(served.name, {})[served.version] = served
        self._newest = {
            name: versions[max(versions, key=int)] for name, versions in self._versions.items()
        }
        for file in old_files:
            self._retire_file(file)

    def _retire_file(self, file: OpenFile) -> None:
        """Close a file when its last request is answered."""

        async def close() -> None:
            for served in file.served:
                await served.close()
                served.counters.retire_call(served.call)
            await _close_engine(file.engine)
            self._alive.discard(file)

        if not file.leaving:
            file.leaving = True
            self._spawn_task(close())

    def _spawn_task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start what goes on whoever gives up waiting for it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)

        def end(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if not task.cancelled():
                task.exception()  # told to whoever waits, and noted

        task.add_done_callback(end)
        return task

    async def _run_shielded(self, work: Coroutine[Any, Any, None]) -> None:
        await asyncio.shield(self._spawn_task(work))


async def _close_engine(engine: Engine) -> None:
    """Close an engine in a thread; one that never ends does not hold up the end of the loop."""
    loop = asyncio.get_running_loop()
    closed = asyncio.Event()

    def close() -> None:
        try:
            engine.close()
        finally:
            with suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(closed.set)

    threading.Thread(target=close, name="ortune close", daemon=True).start()
    await closed.wait()


async def watch_files(repository: Repository, seconds: float = 1.0) -> None:
    """Look every few seconds, and reload what changed, until cancelled.

    A file is opened when two looks in a row found it the same: it is no longer being written. One
    that cannot be opened is tried again when it changes again.
    """
    before: Mapping[str, Mapping[str, State]] = {}
    while True:
        await asyncio.sleep(seconds)
        now = await asyncio.to_thread(repository.find_changes)
        for name, state in now.items():
            if before.get(name) == state:
                with suppress(OrtuneError, OSError):  # the repository told of it
                    await repository.reload(name)
        before = now
