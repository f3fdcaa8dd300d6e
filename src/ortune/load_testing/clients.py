"""The processes that send requests, seen from the one that measures."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from array import array
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Self

import numpy as np

from ortune.core.errors import OrtuneError, gist
from ortune.core.session import Tensors
from ortune.load_testing.admin import Admin
from ortune.load_testing.client.setup import Done, Setup, Stretch
from ortune.load_testing.level import AnswerKind, Level
from ortune.load_testing.load import Load, dealt
from ortune.load_testing.usage import between, of_process

_AHEAD_NS = 100_000_000
"""From the orders to the start: all processes have theirs by then."""


@dataclass(frozen=True)
class CalledModel:
    """What is called on a server.

    Attributes:
        version: Empty for its default.
        platform: What the server says runs it.
        batch: Samples of a request.
        samples: The inputs of every request.
    """

    name: str
    version: str
    platform: str
    batch: int
    samples: tuple[Tensors, ...]


class Clients:
    """Client processes of one model on one server; they start with the first level.

    Attributes:
        model: What they call.
        admin: A connection that asks the server for its statistics.
    """

    def __init__(
        self, setup: Setup, model: CalledModel, admin: Admin, folder: Path, processes: int
    ) -> None:
        """Start nothing yet.

        Args:
            setup: Of every process; whether its loop is open is set by what is measured.
            folder: For what they write; it outlives the levels' answers.
            processes: How many.
        """
        self.model, self.admin = model, admin
        self._setup, self._folder, self._count = setup, folder, processes
        self._stack = ExitStack()
        self._started: dict[bool, list[_Process]] = {}
        self._numbers = itertools.count()

    def measure(self, load: Load, *, warm_up_s: float = 0.5, pid: int | None = None) -> Level:
        """Put one level of load on the server and return what came of it.

        Args:
            load: What is sent.
            warm_up_s: The same load before it, not counted; its answers are all awaited.
            pid: The server's process, if it is on this machine: its CPU time and memory, those
                of its children too, are measured.

        Raises:
            OrtuneError: A client process failed.
        """
        if warm_up_s > 0:
            # Another seed, so that the arrivals of the level are not rehearsed.
            self._send(replace(load, requests=0, seconds=warm_up_s, seed=load.seed + 10_000))
        before = self.admin.statistics(self.model.name, self.model.version)
        used = of_process(pid) if pid else None
        done = self._send(load)
        now = of_process(pid) if pid else None
        after = self.admin.statistics(self.model.name, self.model.version)
        return replace(
            _level(load, done),
            server=between(before, after),
            server_cpu_s=now.cpu_s - used.cpu_s if now and used else None,
            server_rss=now.rss if now else None,
        )

    def _send(self, load: Load) -> list[Done]:
        processes = self._processes(load.open)
        at = time.perf_counter_ns() + _AHEAD_NS
        out = self._folder / f"{next(self._numbers)}"
        out.mkdir(parents=True)
        orders = []
        if load.open:
            for place, due in enumerate(dealt(load.schedule(), len(processes))):
                path = out / f"due-{place}"
                path.write_bytes(array("q", due).tobytes())
                orders.append(Stretch(at, str(out / str(place)), due=str(path)))
        else:
            for place, one in enumerate(load.shares(len(processes))):
                where = str(out / str(place))
                orders.append(Stretch(at, where, one.concurrency, one.requests, one.seconds))
        asked = list(zip(processes, orders, strict=False))
        for process, order in asked:
            process.tell(order)
        return [process.done() for process, _ in asked]

    def _processes(self, is_open: bool) -> list[_Process]:
        if is_open not in self._started:
            setup = replace(self._setup, open=is_open)
            path = self._folder / f"setup-{is_open}.json"
            path.write_text(json.dumps(asdict(setup)), encoding="utf-8")
            found = [self._stack.enter_context(_Process(path)) for _ in range(self._count)]
            for one in found:
                one.ready()
            self._started[is_open] = found
        return self._started[is_open]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()


class _Process:
    """One client process."""

    def __init__(self, setup: Path) -> None:
        self._said = setup.with_suffix(".log")
        with self._said.open("ab") as said:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "ortune.load_testing.client", str(setup)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
            )

    def ready(self) -> None:
        self._line()

    def tell(self, order: Stretch) -> None:
        _pipe(self._process.stdin).write(json.dumps(asdict(order)) + "\n")
        _pipe(self._process.stdin).flush()

    def done(self) -> Done:
        return Done(**json.loads(self._line()))

    def _line(self) -> str:
        line = _pipe(self._process.stdout).readline()
        if not line:
            said = self._said.read_text(errors="replace").strip().splitlines()
            raise OrtuneError(
                f"a client process failed: {gist(said[-1]) if said else 'without a word'}",
                fix="give fewer --connections, or report it",
            )
        return line

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            _pipe(pipe).close()


def _pipe(one: IO[str] | None) -> IO[str]:
    assert one is not None  # both are asked for
    return one


def _level(load: Load, done: Sequence[Done]) -> Level:
    """Join what the processes logged."""
    logs = [np.fromfile(one.log, np.int64).reshape(-1, 4) for one in done]
    errors: Counter[str] = Counter()
    right = []
    for log, one in zip(logs, done, strict=True):
        right.append(log[log[:, 3] == 0])
        for place, word in enumerate(one.words[1:], 1):
            errors[word] += int((log[:, 3] == place).sum())
    every = np.concatenate(logs)
    answered = np.concatenate(right)
    answered = answered[np.argsort(answered[:, 0], kind="stable")]
    first = every[:, 2 if load.open else 0].min(initial=np.iinfo(np.int64).max)
    elapsed = max(0, int(every[:, 2].max(initial=first) - first)) / 1e9
    late = every[:, 1] - every[:, 0] if load.open else every[:0, 0]
    return Level(
        load=load,
        latency_ns=tuple(np.maximum(0, answered[:, 2] - answered[:, 0]).tolist()),
        late_ns=tuple(np.maximum(0, late).tolist()),
        errors={word: count for word, count in errors.items() if count},
        examples={word: text for one in done for word, text in one.examples.items()},
        elapsed_s=elapsed,
        client_cpu_s=sum(one.cpu_s for one in done),
        client_busy=max(one.cpu_s / max(one.wall_s, 1e-9) for one in done),
        answers=tuple(
            AnswerKind(sample, count, head, Path(path))
            for one in done
            for sample, count, head, path in one.answers
        ),
        not_kept=sum(one.left for one in done),
    )
