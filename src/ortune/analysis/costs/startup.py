"""Timing of a model's variants: session creation, and inferences in turns."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

from ortune.analysis.costs.variants import Subject, Variant
from ortune.core.errors import BadModel
from ortune.core.event import Progress
from ortune.core.trial import Interval
from ortune.measurement.process import Worker, WorkerFailed, lone
from ortune.measurement.timing import stats
from ortune.measurement.timing.pairs import Effort, fresh_pairs
from ortune.measurement.timing.turns import ready

ONE = Interval(1.0, 1.0, 1.0)
PAIRS = 3
"""Pairs of fresh processes a ratio: a pair has an effect of its own."""
_PAIR_S = 0.1
"""Timing that a pair is worth starting two processes for; where there is less, pairs are fewer."""


@dataclass
class Starts:
    """What starting a variant took, a fresh process each: session creation, first inference."""

    load_ns: list[int]
    first_ns: list[int]

    @property
    def sums(self) -> list[int]:
        """Both together."""
        return [load + first for load, first in zip(self.load_ns, self.first_ns, strict=True)]


class Clock:
    """Times variants in worker processes; one that fails is left out."""

    def __init__(self, made: list[Variant], subject: Subject, stream: Path) -> None:
        self.variants = made
        self._subject, self._stream = subject, stream

    def starts(self, count: int) -> tuple[dict[str, Starts], list[int]]:
        """Start every variant in turns, each time in a fresh process."""
        found = {one.name: Starts([], []) for one in self.variants}
        imports: list[int] = []
        for turn in range(count):
            for place, one in enumerate(list(self.variants)):
                done = turn + place / len(self.variants)
                self._subject.sink(Progress("timing session creation", done, count))
                try:
                    with self._worker(one) as worker:
                        imports.append(worker.ask("prepare")["import_ns"])
                        started = ready(worker)
                        found[one.name].load_ns.append(started.load_ns)
                        found[one.name].first_ns.append(started.first_ns)
                except WorkerFailed as error:
                    self._drop(one, error.failure.reason)
        return found, imports

    def ratios(self, seconds: float) -> tuple[dict[str, Interval], int]:
        """Time every variant in turns with the one that it is compared with.

        Returns:
            Ratios by name, and the first variant's median latency in ns.
        """
        found = {self.variants[0].name: ONE}
        base: list[int] = []
        share = seconds / max(1, len(self.variants) - 1)
        count = max(1, min(PAIRS, int(share / _PAIR_S)))
        effort = Effort(seconds=share / count, decide=False)
        for place, one in enumerate(others := list(self.variants[1:])):
            self._subject.sink(Progress("timing inferences", place, len(others)))
            other = next((v for v in self.variants if v.name == one.against), None)
            if other is None:
                self._drop(one, f"'{one.against}' is not there")
                continue
            try:
                starts = partial(self._worker, other), partial(self._worker, one)
                pairs = [fresh.pair for fresh in fresh_pairs(*starts, count, effort)]
            except WorkerFailed as error:
                self._drop(one, error.failure.reason)
                continue
            found[one.name] = stats.ratio(pairs)
            if other is self.variants[0]:
                blocks = [block for pair in pairs for block in pair.blocks]
                base += [ns for block in blocks for ns in block.baseline.latency_ns]
        return found, round(median(base))

    def _worker(self, one: Variant) -> Worker:
        root = self._subject.root
        return Worker(lone(one.file, one.backend, self._stream, root, "timeline"))

    def _drop(self, one: Variant, reason: str) -> None:
        if one in self.variants[:2]:
            fix = "check the model and the data"
            raise BadModel(f"'{one.name}' does not run: {reason}", fix=fix)
        self.variants.remove(one)
        self._subject.leave_out(one.name, reason)
