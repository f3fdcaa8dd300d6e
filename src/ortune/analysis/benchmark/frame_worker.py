"""A worker that runs whole engines: in a frame of the user's, or what that calls.

``python -m ortune.analysis.benchmark.frame_worker JOB.json [frame|model FILE.py:NAME]``
answers the commands of every worker. A run is a call of the engine, a frame, or the calls that a
frame made of the engine, again and without the frame.
"""

from __future__ import annotations

import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from inspect import isawaitable, isgenerator
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ortune.backends.runtimes.onnxruntime.engine_cache import watch_engines
from ortune.bundle.engine.call import Call
from ortune.bundle.engine.engine import Engine
from ortune.bundle.engine.load import load_engine
from ortune.core.errors import BadData, OrtuneError
from ortune.core.hardware.cpus import read_queue_wait_ns
from ortune.core.plugins import user_function
from ortune.core.session import Tensors
from ortune.measurement.job import MAIN
from ortune.measurement.worker import __main__ as program
from ortune.measurement.worker.workbench import Round, SessionLane, Workbench

BARE, FRAME, MODEL = "", "frame", "model"
"""What a run is: a call of the engine, a frame, the engine's part of a frame."""
_TAKES = (
    "the function gets (engine, sample): make the inputs of the sample, then call engine(**inputs)"
)

Framing: TypeAlias = Callable[[Any, Tensors], object]


class EngineSession:
    """An engine as workloads drive sessions; what a run gives back is dropped."""

    def __init__(self, engine: Engine, act: Callable[[Tensors], object]) -> None:
        """Drive an engine."""
        self._engine, self._act = engine, act

    def run(self, feeds: Tensors) -> dict[str, NDArray[Any]]:
        self._act(feeds)
        return {}

    def placement(self) -> Mapping[str, int]:
        return self._engine.placement()

    def clock(self) -> int:
        return time.perf_counter_ns()

    def waited(self) -> int:
        return read_queue_wait_ns()


class CallLog:
    """An engine that notes how it is called: `calls` make its calls again, on copies of inputs."""

    def __init__(self, engine: Engine | Call, calls: list[Callable[[], object]]) -> None:
        self._engine, self.calls = engine, calls

    def __call__(self, /, **inputs: NDArray[Any]) -> dict[str, NDArray[Any]]:
        kept = {name: np.array(value) for name, value in inputs.items()}
        self.calls.append(lambda: self._engine(**kept))
        return self._engine(**inputs)

    def run(self, inputs: Tensors) -> dict[str, NDArray[Any]]:
        """Call the engine with the inputs in a mapping."""
        return self(**inputs)

    def batch(self, samples: Sequence[Tensors]) -> list[dict[str, NDArray[Any]]]:
        """Run samples together, as `Engine.batch` does."""
        kept = [{name: np.array(value) for name, value in sample.items()} for sample in samples]
        self.calls.append(partial(self._engine.batch, kept))
        return self._engine.batch(samples)

    def __getitem__(self, name: str) -> CallLog:
        assert isinstance(self._engine, Engine)
        return CallLog(self._engine[name], self.calls)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


class EngineBench(Workbench):
    """A workbench whose sessions are engines; see `BARE`, `FRAME` and `MODEL`."""

    def __init__(self, *workbench_args: Any, role: str = BARE, path: str = "") -> None:
        """Take what every workbench takes, the user's ``FILE.py:NAME`` as path."""
        super().__init__(*workbench_args)
        self._role, self._path = role, path
        self._frame_calls: dict[int, Sequence[Callable[[], object]]] = {}

    @property
    def instances(self) -> int:
        """Number of the engine's instances, as many as lanes are driven."""
        return self.job.workload.lanes(self.job.backend.threads)

    def open_sessions(self) -> None:
        if MAIN in self.sessions:
            return
        model, backend = self.job.models[MAIN], self.job.backend
        with watch_engines(self._report_building, self.job.engines) as watch:
            opened = load_engine(model, on=backend, instances=self.instances)
        self._engine = self._stack.enter_context(opened)
        self.warm += watch.warm
        self._framing = load_frame(self._path) if self._path else None
        self.sessions[MAIN] = EngineSession(self._engine, self._run_once)

    @cached_property
    def lanes(self) -> Sequence[SessionLane]:
        """The callers, as many as the engine has instances."""
        return [SessionLane(self.sessions, self.round_at) for _ in range(self.instances)]

    def round_at(self, position: int) -> Round:
        """Return a round whose arrays nobody can change; what it calls the engine with is known.

        Raises:
            BadData: A frame of it fails, or does not call the engine.
        """
        round_calls = super().round_at(position)
        for _, feeds in round_calls:
            if id(feeds) not in self._frame_calls:
                self._frame_calls[id(feeds)] = self._record_calls(feeds)
        return round_calls

    def _record_calls(self, feeds: Tensors) -> Sequence[Callable[[], object]]:
        """Return the calls of the engine that a frame makes; none where frames are run."""
        for array in feeds.values():
            array.flags.writeable = False
        if self._framing is None or (self._role == FRAME and self._frame_calls):
            return ()
        log = CallLog(self._engine, [])
        self._framing(log, feeds)
        if not log.calls:
            raise BadData(f"{self._path} does not call the engine", fix=_TAKES)
        return log.calls if self._role == MODEL else ()

    def _run_once(self, feeds: Tensors) -> None:
        if self._framing is None:
            self._engine(**feeds)
        elif self._role == FRAME:
            self._framing(self._engine, feeds)
        else:
            for call in self._frame_calls[id(feeds)]:
                call()


def load_frame(path: str) -> Framing:
    """Return the user's function of an engine and a sample, run to its end.

    Raises:
        BadSettings: It cannot be imported.
    """
    function = user_function.import_function(path, *user_function.FRAME)

    def act(engine: Any, sample: Tensors) -> None:
        try:
            outcome = function(engine, sample)
            if isgenerator(outcome):
                deque(outcome, maxlen=0)
        except OrtuneError:
            raise
        except Exception as error:
            raise BadData(
                f"{path} fails: {user_function.describe_error(error)}", fix=_TAKES
            ) from error
        if isawaitable(outcome):
            raise BadData(
                f"{path} is an async function", fix="give a plain function, without async"
            )

    return act


def main(path: str, role: str = BARE, function: str = "") -> int:
    """Serve commands until standard input ends."""
    return program.main(path, partial(EngineBench, role=role, path=function))


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(main(*sys.argv[1:]))
