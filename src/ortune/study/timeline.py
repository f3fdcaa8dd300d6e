"""The public verb: what each way to serve a model costs once, a session and an inference."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from ortune.backends.cpu import Cpu
from ortune.core.backend import Backend
from ortune.core.errors import BadModel, BadSettings
from ortune.core.event import Note, Sink, silent
from ortune.core.spelling import parse
from ortune.core.trial import Interval, Pair
from ortune.data import feeds as data_feeds
from ortune.data import synthetic
from ortune.measurement import stats
from ortune.measurement.job import MAIN, WorkerJob
from ortune.measurement.machine import machine, versions
from ortune.measurement.pairs import Effort, time_pair
from ortune.measurement.process import Worker, WorkerFailed, worker_folder
from ortune.measurement.ranks import differ
from ortune.model import facts as model_facts
from ortune.model import file
from ortune.recipe.build import Material
from ortune.study.breakeven import Line, Reign, pays_from, reigns
from ortune.study.variants import BOTH, Variant, quantizer_for, variants

EVERY_SESSION = "both, quantized in every session"
_ONE = Interval(1.0, 1.0, 1.0)
_PAIRS = 3
"""Pairs of fresh processes a ratio: a pair has an effect of its own."""


@dataclass(frozen=True)
class Timed:
    """A variant and what it costs.

    Attributes:
        line: Its seconds: once, a session (load, and what the first inference takes longer than
            a later one; medians over fresh processes), an inference. Where a difference to
            `against` is inside the noise, that one's figure stands.
        load_ns: Session creation in each fresh process, the runtime imported before.
        first_ns: First inference there.
        against: The variant it was timed in turns with; empty for the first.
        ratio: Latency over that one's, 99 %. Where it holds 1 both count as equally fast.
        size: Bytes of the file.
        session_equal: Its sessions do not differ from those of `against` in rank, at 1 %.
    """

    line: Line
    load_ns: tuple[int, ...]
    first_ns: tuple[int, ...]
    against: str
    ratio: Interval
    size: int
    session_equal: bool = False

    @property
    def equal(self) -> bool:
        """Whether no difference to `against` is beyond the noise."""
        return self.ratio.low <= 1 <= self.ratio.high

    def pays(self, other: Line, per_session: float) -> Interval:
        """Return from how many inferences on it is cheaper than the line it was timed against.

        The ends move this line's latency to those of the ratio's interval; equal ones stay equal.
        """
        if self.equal:
            found = pays_from(other, self.line, per_session)
            return Interval(found, found, found)
        value, low, high = (
            pays_from(other, replace(self.line, inference_s=other.inference_s * r), per_session)
            for r in (self.ratio.value, self.ratio.low, self.ratio.high)
        )
        return Interval(value, low, high)


@dataclass(frozen=True)
class Timeline:
    """All variants of one model.

    Attributes:
        model: Its path.
        rows: In the order in which they are shown.
        every: "Both" with its one-time cost paid in every session; None without "both".
        per_session: Inferences that a session serves.
        import_ns: Import of the runtime, which every line pays alike and none contains.
        quantizer: The step's spelling; empty without one.
        notes: What was left out, and why.
    """

    model: str
    rows: tuple[Timed, ...]
    every: Line | None
    per_session: float
    import_ns: tuple[int, ...]
    quantizer: str
    notes: tuple[str, ...]
    machine: Mapping[str, str]
    versions: Mapping[str, str]

    @property
    def lines(self) -> tuple[Line, ...]:
        """Every line, that of quantizing in every session last."""
        return (*(row.line for row in self.rows), *([self.every] if self.every else []))

    def line(self, name: str) -> Line:
        """Return the line of a name."""
        return next(line for line in self.lines if line.name == name)

    @property
    def reigns(self) -> tuple[Reign, ...]:
        """Which line is the lowest in which range of inferences."""
        return reigns(self.lines, self.per_session)


@dataclass
class _Starts:
    load_ns: list[int]
    first_ns: list[int]


def timeline(
    model: str | Path,
    *,
    data: str | Path | Callable[[], Any] | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    ranges: Mapping[str, tuple[float, float]] | None = None,
    step: str = "",
    on: str = "cpu",
    inferences_per_session: float = 1000,
    starts: int = 9,
    seconds: float = 20,
    sink: Sink = silent,
) -> Timeline:
    """Make every variant of a model and time what it costs once, a session and an inference.

    Args:
        model: An ONNX file.
        data: Samples to run and to calibrate on; made up when None (for times alone).
        shapes: Shapes of made-up inputs.
        ranges: Values of made-up inputs.
        step: The quantizer; empty takes the first that a search would try.
        on: ``cpu`` with its fields but the level, which is what varies.
        inferences_per_session: Served by one session before the next is started.
        starts: Fresh processes a variant, for the cost of a session.
        seconds: Time for timing inferences.
        sink: Receives notes.

    Raises:
        OrtuneError: The model, the data or an option cannot be used.
    """
    source, backend = Path(model), _backend(on)
    if not 1 <= inferences_per_session < math.inf:
        raise BadSettings(
            f"a session cannot serve {inferences_per_session:g} inferences",
            fix="give 1 or more, such as 1000",
        )
    if starts < 1:
        raise BadSettings(f"{starts} starts measure nothing", fix="give 1 or more, such as 9")
    notes: list[str] = []

    def told(event: Any) -> None:
        if isinstance(event, Note):
            notes.append(event.text)
        sink(event)

    facts = model_facts.facts(file.load(source))
    with TemporaryDirectory(prefix="ortune-") as folder:
        root = Path(folder).resolve()
        if data is not None:
            fed = data_feeds.load(data, facts.inputs, root)
        else:
            fed = synthetic.make(facts.inputs, root, shapes=shapes or {}, ranges=ranges or {})
        for text in fed.notes:
            told(Note(text))
        material = Material(fed, tuple(range(min(fed.count, 32))))
        step_of = quantizer_for(step, facts, backend, told)
        made = variants(source.resolve(), facts, backend, step_of, material, root, told)
        clock = _Clock(list(made), fed.stream, root, told)
        found, imports = clock.starts(starts)
        ratios, base_ns = clock.ratios(seconds)
        rows = _rows(clock.variants, found, ratios, base_ns)
    both = next((row.line for row in rows if row.line.name == BOTH), None)
    every = None
    if both is not None:
        every = replace(
            both, name=EVERY_SESSION, once_s=0.0, session_s=both.once_s + both.session_s
        )
    return Timeline(
        model=str(model),
        rows=rows,
        every=every,
        per_session=inferences_per_session,
        import_ns=tuple(imports),
        quantizer="" if step_of is None else str(step_of),
        notes=tuple(notes),
        machine=machine(),
        versions=versions(),
    )


def _backend(on: str) -> Cpu:
    found = parse(Backend, on)
    if not isinstance(found, Cpu):
        raise BadSettings(
            f"'{on}' has no levels of graph optimization", fix="use --on cpu, or cpu(threads=1)"
        )
    return found


class _Clock:
    """Times variants in worker processes; one that fails is left out and the sink told."""

    def __init__(self, made: list[Variant], stream: Path, root: Path, sink: Sink) -> None:
        self.variants = made
        self._stream, self._root, self._sink = stream, root, sink

    def starts(self, count: int) -> tuple[dict[str, _Starts], list[int]]:
        """Start every variant in turns, each time in a fresh process."""
        found = {one.name: _Starts([], []) for one in self.variants}
        imports: list[int] = []
        for _ in range(count):
            for one in list(self.variants):
                try:
                    with self._worker(one) as worker:
                        imports.append(worker.ask("prepare")["import_ns"])
                        found[one.name].load_ns.append(worker.ask("load")["load_ns"])
                        found[one.name].first_ns.append(worker.ask("first")["first_ns"])
                except WorkerFailed as error:
                    self._drop(one, error.failure.reason)
        return found, imports

    def ratios(self, seconds: float) -> tuple[dict[str, Interval], int]:
        """Time every variant in turns with the one that it is compared with.

        Returns:
            Ratios by name, and the first variant's median latency in ns.
        """
        found = {self.variants[0].name: _ONE}
        base: list[int] = []
        share = seconds / _PAIRS / max(1, len(self.variants) - 1)
        effort = Effort(min_blocks=4, seconds=share, decide=False)
        for one in list(self.variants[1:]):
            other = next((v for v in self.variants if v.name == one.against), None)
            if other is None:
                self._drop(one, f"'{one.against}' is not there")
                continue
            try:
                pairs = [self._pair(other, one, effort) for _ in range(_PAIRS)]
            except WorkerFailed as error:
                self._drop(one, error.failure.reason)
                continue
            found[one.name] = stats.ratio(pairs)
            if other is self.variants[0]:
                blocks = [block for pair in pairs for block in pair.blocks]
                base += [ns for block in blocks for ns in block.baseline.latency_ns]
        return found, round(median(base))

    def _pair(self, one: Variant, two: Variant, effort: Effort) -> Pair:
        with ExitStack() as stack:
            workers = [stack.enter_context(self._worker(v)) for v in (one, two)]
            for worker in workers:
                worker.ask("load")
                worker.ask("first")
            return time_pair(workers[0], workers[1], effort)

    def _worker(self, one: Variant) -> Worker:
        job = WorkerJob(
            models={MAIN: one.file},
            backend=one.backend,
            feeds={MAIN: self._stream},
            out=worker_folder(self._root / "workers", "timeline"),
        )
        return Worker(job)

    def _drop(self, one: Variant, reason: str) -> None:
        if one in self.variants[:2]:
            raise BadModel(
                f"'{one.name}' does not run: {reason}", fix="check the model and the data"
            )
        self.variants.remove(one)
        self._sink(Note(f"'{one.name}' is left out: {reason}", warning=True))


def _rows(
    made: Sequence[Variant],
    starts: Mapping[str, _Starts],
    ratios: Mapping[str, Interval],
    base_ns: int,
) -> tuple[Timed, ...]:
    """Put lines together; a ratio that holds 1 is no difference, nor are sessions of like rank."""
    inference: dict[str, float] = {}
    session: dict[str, float] = {}
    rows = []
    for one in made:
        ratio = ratios[one.name]
        factor = 1.0 if ratio.low <= 1 <= ratio.high else ratio.value
        inference[one.name] = factor * (inference[one.against] if one.against else base_ns / 1e9)
        loads, firsts = starts[one.name].load_ns, starts[one.name].first_ns
        extra = max(0.0, median(firsts) / 1e9 - inference[one.name])
        session[one.name] = median(loads) / 1e9 + extra
        alike = bool(one.against) and not differ(
            _sums(starts[one.name]), _sums(starts[one.against])
        )
        if alike:
            session[one.name] = session[one.against]
        line = Line(one.name, one.once_s, session[one.name], inference[one.name])
        rows.append(Timed(line, tuple(loads), tuple(firsts), one.against, ratio, one.size, alike))
    return tuple(rows)


def _sums(one: _Starts) -> list[int]:
    return [load + first for load, first in zip(one.load_ns, one.first_ns, strict=True)]
