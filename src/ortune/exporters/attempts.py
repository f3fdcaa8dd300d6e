"""What became of an exporter's file: run on PyTorch's inputs, held against its answers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ortune.backends.cpu import Cpu
from ortune.core import wording
from ortune.core.event import Sink, silent
from ortune.data import stream
from ortune.exporters import compare
from ortune.exporters.request import ModuleRequest
from ortune.measurement.job import MAIN, WorkerJob
from ortune.measurement.outputs import keep_outputs
from ortune.measurement.process import Worker, WorkerFailed, worker_folder
from ortune.runtimes.torch.export import Interface
from ortune.runtimes.torch.module import ModuleSource

_VERIFIED = "answers like PyTorch"


@dataclass(frozen=True)
class ExportAttempt:
    """What became of one exporter.

    Attributes:
        exporter: Its name.
        kept: Its file is the result.
        sizes: At how many sizes it answers like PyTorch.
        error: The largest, as a share of an output's largest value; None where it did not run.
        nodes: Of its file.
        seconds: That it took, without the comparison.
        why: Why it was kept or not.
    """

    exporter: str
    kept: bool = False
    sizes: int = 0
    error: float | None = None
    nodes: int = 0
    seconds: float = 0.0
    why: str = ""


@dataclass(frozen=True)
class Exporting:
    """How a module is exported, for all verbs that do it.

    Attributes:
        source: The module, as `ModuleSource` has it.
        asked: Weights, inputs and dynamic dimensions.
        ranges: Values of inputs.
        exporter: One of them, or ``all``.
        timeout: Seconds that each may take.
    """

    source: str
    asked: ModuleRequest
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    exporter: str = "all"
    opset: int | None = None
    samples: int = 2
    tolerance: float | None = None
    timeout: float = 600.0
    memory_limit: int | None = None
    sink: Sink = silent

    @property
    def module(self) -> ModuleSource:
        """Where module and weights are."""
        one = self.asked
        weights = str(Path(one.weights).absolute()) if one.weights else ""
        return ModuleSource(
            self.source, weights, one.state_dict_key, one.strip_prefix, one.unsafe_pickle
        )


@dataclass(frozen=True)
class Check:
    """PyTorch's answers, and whether a file gives the same."""

    given: Exporting
    asked: Interface
    sizes: Sequence[Mapping[str, int]]
    feeds: Sequence[Path]
    expected: Sequence[stream.Stream]
    limit: float

    def judged(self, made: ExportAttempt, path: Path, takes: Sequence[str]) -> ExportAttempt:
        """Run a file on every input and compare; inputs that it dropped are left out."""
        fed = path.parent / "fed.stream"
        rows = [dict(row) for one in self.feeds for row in stream.Stream(one)]
        stream.write(fed, ({name: row[name] for name in takes} for row in rows))
        out = worker_folder(path.parent / "workers", "check")
        job = WorkerJob({MAIN: path}, Cpu(), {MAIN: fed}, out)
        limit = self.given.memory_limit
        worst, good, why = 0.0, 0, ""
        with Worker(job, timeout_s=self.given.timeout, memory_limit=limit) as worker:
            worker.ask("load")
            at = 0
            for size, expected in zip(self.sizes, self.expected, strict=True):
                indices = range(at, at + len(expected))
                at += len(expected)
                error, said = self._compared(worker, indices, expected, out)
                worst = max(worst, error)
                if said:
                    why = why or f"{spelled(size)}: {said}"
                else:
                    good += 1
        known = None if math.isinf(worst) else worst
        return replace(made, sizes=good, error=known, why=why or _VERIFIED)

    def _compared(
        self, worker: Worker, indices: range, expected: stream.Stream, out: Path
    ) -> tuple[float, str]:
        """Return the largest error at one size, and what is wrong; empty where nothing is."""
        try:
            found = keep_outputs(worker, indices, out / f"{indices.start}.stream")
        except WorkerFailed as error:
            if not worker.alive:
                raise
            return math.inf, error.failure.reason
        rows = [compare.difference(one, two) for one, two in zip(expected, found, strict=True)]
        worst, what = max(rows)
        return worst, "" if worst <= self.limit else f"{what}; {self.limit:.2g} is allowed"


def best(attempts: Sequence[ExportAttempt], wanted: int) -> ExportAttempt | None:
    """Return the attempt that is right at all sizes and has the fewest nodes: fused ones stay."""
    fit = [one for one in attempts if one.sizes == wanted]
    return min(fit, key=lambda one: one.nodes, default=None)


def judged(one: ExportAttempt, best: ExportAttempt) -> ExportAttempt:
    """Say why an attempt was kept or not."""
    if one is best:
        return replace(one, kept=True)
    if one.why != _VERIFIED:
        return one
    return replace(
        one, why=f"{_VERIFIED} too, of {wording.count(one.nodes, 'node')} to {best.nodes}"
    )


def spelled(found: Mapping[str, int]) -> str:
    return ", ".join(f"{dim}={size}" for dim, size in found.items()) or "the given shapes"
