"""The live state of a worker: lanes of sessions, and feeds."""

import gc
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ortune.backends.runtimes.onnxruntime.engine_cache import watch_engines
from ortune.core.errors import BadData, BadModel
from ortune.core.event import Event, Progress
from ortune.core.hardware.memory import trim_heap
from ortune.core.session import Recording, Session, Tensors
from ortune.core.workload import spread_indices
from ortune.data import stream
from ortune.measurement.job import MAIN, WorkerJob

_NEAR_NS = 150_000
"""A sleep ends this much too late at times: the rest of a wait is spent yielding."""

Round: TypeAlias = list[tuple[str, Tensors]]
"""Calls that are timed as one: names of models and what they are fed."""


class SessionLane:
    """What a workload drives: see `ortune.core.workload.Lane`."""

    def __init__(self, sessions: Mapping[str, Session], round_at: Callable[[int], Round]) -> None:
        self._sessions = sessions
        self._round_at = round_at
        self._first = next(iter(sessions.values()))
        self._skipped = 0

    def calls(self, position: int) -> list[tuple[Session, Tensors]]:
        """Return the calls of a round on this lane's sessions."""
        return [(self._sessions[name], feeds) for name, feeds in self._round_at(position)]

    def clock(self) -> int:
        return self._first.clock() + self._skipped

    def until(self, moment: int) -> None:
        """Wait until the clock shows a moment; a scripted one, which stands still, is moved on."""
        before = self._first.clock()
        remaining_ns = moment - self.clock()
        if remaining_ns <= 0:
            return
        time.sleep(max(0, remaining_ns - _NEAR_NS) / 1e9)
        if self._first.clock() == before:
            self._skipped += remaining_ns
        while self.clock() < moment:
            time.sleep(0)

    def waited(self) -> int:
        return self._first.waited()


_ROUND_BYTES = 256 * 2**20
_TOLD_S = 0.5
_DETAILS = 4096  # bursts whose details are kept until somebody asks for them


class Workbench:
    """What the tasks of a worker act on: opened sessions and streams of samples.

    Attributes:
        sessions: Model name -> session of the first lane.
        details: Of the last bursts, for `Workload.results`.
        warm: Of every session whose provider builds engines: whether that came from the cache.
    """

    def __init__(
        self,
        job: WorkerJob,
        stack: ExitStack,
        tell: Callable[[Mapping[str, Any]], None] = lambda answer: None,
    ) -> None:
        self.job = job
        self._tell, self._reported_at = tell, time.monotonic()
        self._stack = stack.enter_context(ExitStack())
        self.sessions: dict[str, Session] = {}
        self.feeds = {name: stream.Stream(path) for name, path in job.feeds.items()}
        self.runs = 0
        self.warm: list[bool] = []
        self.details: deque[Mapping[str, Any]] = deque(maxlen=_DETAILS)
        self._rounds: dict[int, Round] = {}

    def open_sessions(self) -> None:
        for name, path in self.job.models.items():
            if name not in self.sessions:
                self.sessions[name] = self._open_session(self._stack, path)

    def close_sessions(self) -> None:
        """Give back what loaded models hold, and the samples in memory; both come again."""
        self.sessions.clear()
        self._rounds.clear()
        self.__dict__.pop("lanes", None)
        self._stack.close()
        gc.collect()
        trim_heap()

    def _open_session(self, stack: ExitStack, path: Path) -> Session:
        """Open one session; tell the parent how far it is where an engine is built for it."""
        with watch_engines(self._report_building, self.job.engines) as watch:
            opened = stack.enter_context(self.job.backend.open(path, verbose=self.job.verbose))
        self.warm += watch.warm
        trim_heap()  # of what loading took: up to the model once more
        return opened

    def _report_building(self, event: Event) -> None:
        if isinstance(event, Progress):
            self._tell({"progress": [event.work, event.done, event.total], "building": True})

    def report_progress(self, work: str, done: int, total: int) -> None:
        """Tell the parent how far a task is that nobody times, now and then."""
        if time.monotonic() - self._reported_at > _TOLD_S:
            self._reported_at = time.monotonic()
            self._tell({"progress": [work, done, total]})

    def record(self, folder: Path) -> Recording:
        """Open the only model with the runtime's own profiler on, in the place of its session."""
        path, loaded = self.job.models[MAIN], bool(self.sessions)
        opened = self.job.backend.record(path, folder, verbose=self.job.verbose)
        self.close_sessions()
        try:
            recording = self._stack.enter_context(opened)
        except BaseException:
            if loaded:
                self.open_sessions()
            raise
        self.sessions[MAIN] = recording
        return recording

    def sample(self, index: int) -> dict[str, NDArray[Any]]:
        """Return one sample of the only model, as one run takes it."""
        return self.feeds[MAIN][index]

    # --- what a workload drives -------------------------------------------------------------

    @property
    def out(self) -> Path:
        return self.job.out

    @cached_property
    def lanes(self) -> Sequence[SessionLane]:
        """The loaded sessions as the first lane, and as many more as the workload asks for."""
        more = range(1, self.job.workload.lanes(self.job.backend.threads))
        first = SessionLane(self.sessions, self.round_at)
        return [first, *(self._stack.enter_context(self.fresh()) for _ in more)]

    @contextmanager
    def fresh(self) -> Iterator[SessionLane]:
        """Open every model anew as one more lane."""
        with ExitStack() as stack:
            sessions = {
                name: self._open_session(stack, path) for name, path in self.job.models.items()
            }
            yield SessionLane(sessions, self.round_at)

    @cached_property
    def shapes(self) -> Sequence[str]:
        """The shape of every run of the cycle."""
        return [describe_shape([f for _, f in self.round_at(k)]) for k in range(len(self.cycle))]

    @cached_property
    def cycle(self) -> Sequence[int]:
        """The rounds that the workload chose, as many as memory has room for."""
        chosen = self.job.workload.cycle(_Shapes(self))
        size = sum(
            array.nbytes * (len(feeds) // self.fewest)
            for feeds in self.feeds.values()
            for array in feeds[0].values()
        )
        room = max(1, _ROUND_BYTES // max(1, size * max(1, self.job.workload.batch)))
        return [chosen[k] for k in spread_indices(len(chosen), room)]

    def round_at(self, position: int) -> Round:
        """Return the round at a position of the endless cycle, kept in memory.

        A round is one call of the only model. Of several models it holds calls of each, as many
        as its share of the recorded calls, so that a round's time stands for the whole job's.
        """
        turn = self.cycle[position % len(self.cycle)]
        if turn not in self._rounds:
            self._rounds[turn] = [
                (name, self._read_stacked(name, start + k))
                for name, start, count in self.round_places(turn)
                for k in range(count)
            ]
        return self._rounds[turn]

    @property
    def cached_bytes(self) -> int:
        """Bytes of the samples that are kept in memory."""
        rounds = self._rounds.values()
        return sum(a.nbytes for calls in rounds for _, feeds in calls for a in feeds.values())

    def round_places(self, turn: int) -> list[tuple[str, int, int]]:
        """Return the samples of a round: model, first index and number of its calls."""
        fewest = self.fewest
        return [
            (name, turn * len(feeds) // fewest, len(feeds) // fewest)
            for name, feeds in self.feeds.items()
        ]

    @property
    def fewest(self) -> int:
        """How many different rounds the feeds have."""
        return min(len(feeds) for feeds in self.feeds.values())

    def _read_stacked(self, name: str, index: int) -> Tensors:
        feeds, batch = self.feeds[name], self.job.workload.batch
        if batch <= 1:
            return {key: np.array(value) for key, value in feeds[index].items()}
        rows = [feeds[(index + k) % len(feeds)] for k in range(batch)]
        return stack_samples(rows)


class _Shapes(Sequence[str]):
    """The shape of every round that the feeds have, found when asked for."""

    def __init__(self, bench: Workbench) -> None:
        self._bench = bench

    def __len__(self) -> int:
        return self._bench.fewest

    def __getitem__(self, turn: Any) -> Any:
        if isinstance(turn, slice):
            return [self[k] for k in range(*turn.indices(len(self)))]
        if not 0 <= turn < len(self):
            raise IndexError(turn)
        feeds = self._bench.feeds
        places = self._bench.round_places(turn)
        return describe_shape(
            [feeds[name][at + k] for name, at, count in places for k in range(count)]
        )


def run_for_tensors(session: Session, feeds: Tensors) -> dict[str, NDArray[Any]]:
    """Run a session whose outputs are looked at.

    Raises:
        BadModel: An output is a sequence, or an optional that is empty.
    """
    outputs = session.run(feeds)
    for name, value in outputs.items():
        if not isinstance(value, np.ndarray):
            raise BadModel(
                f"output '{name}' is a sequence or empty, and only tensors are compared",
                fix="export the model with plain tensors; `ortune bench` times it as it is",
            )
    return outputs


def describe_shape(calls: Sequence[Tensors]) -> str:
    """Write the shape of a run: ``1x16`` where all inputs agree, else each with its name.

    Inputs of no dimension are left out; calls are joined by ``+``, equal ones counted.
    """
    written: dict[str, int] = {}
    for feeds in calls:
        dims = {
            name: "x".join(map(str, array.shape)) for name, array in feeds.items() if array.ndim
        }
        same = len(set(dims.values())) == 1
        text = (
            next(iter(dims.values())) if same else ", ".join(f"{n} {d}" for n, d in dims.items())
        )
        written[text] = written.get(text, 0) + 1
    return " + ".join(f"{n} times {text}" if n > 1 else text for text, n in written.items())


def stack_samples(rows: Sequence[Tensors]) -> dict[str, NDArray[Any]]:
    """Concatenate samples along their first dimension; 0-d tensors are taken once."""
    stacked = {}
    for name, first in rows[0].items():
        if first.ndim == 0:
            stacked[name] = np.array(first)
            continue
        if any(row[name].shape[1:] != first.shape[1:] for row in rows):
            raise BadData(
                f"samples of input '{name}' differ in shape and cannot be batched",
                fix="pad the samples to one shape, or leave --batch out",
            )
        stacked[name] = np.concatenate([row[name] for row in rows])
    return stacked
