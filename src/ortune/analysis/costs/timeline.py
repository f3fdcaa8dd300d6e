"""What each way to serve a model costs once, a session and an inference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from ortune.analysis.costs.breakeven import CostLine, EnvelopeSegment, lower_envelope, pays_from
from ortune.analysis.costs.requests import TimelineRequest
from ortune.analysis.costs.startup import Clock, Starts
from ortune.analysis.costs.variants import BOTH, Subject, Variant, quantizer_for, variants
from ortune.backends.cpu import Cpu
from ortune.core.backend import Backend
from ortune.core.errors import BadSettings
from ortune.core.event import noting
from ortune.core.plugins.spelling import parse
from ortune.core.request import verb
from ortune.core.result import TableResult
from ortune.core.trial import Interval
from ortune.data import given
from ortune.measurement.capabilities import capabilities
from ortune.measurement.timing.rank_sum import differ
from ortune.model.analysis import facts as model_facts
from ortune.model.io import file
from ortune.recipe.build import Material

EVERY_SESSION = "both, quantized in every session"


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

    line: CostLine
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

    def pays(self, other: CostLine, per_session: float) -> Interval:
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


@dataclass(frozen=True, repr=False)
class Timeline(TableResult):
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

    headline = ("model", "quantizer", "per_session", "cheapest")
    table = "lines"

    model: str
    rows: tuple[Timed, ...]
    every: CostLine | None
    per_session: float
    import_ns: tuple[int, ...]
    quantizer: str
    notes: tuple[str, ...]
    machine: Mapping[str, str]
    versions: Mapping[str, str]

    @property
    def lines(self) -> tuple[CostLine, ...]:
        """Every line, that of quantizing in every session last."""
        return (*(row.line for row in self.rows), *([self.every] if self.every else []))

    def line(self, name: str) -> CostLine:
        """Return the line of a name."""
        return next(line for line in self.lines if line.name == name)

    @property
    def cheapest(self) -> tuple[EnvelopeSegment, ...]:
        """Which line is the lowest in which range of inferences."""
        return lower_envelope(self.lines, self.per_session)


def run(asked: TimelineRequest) -> Timeline:
    """Make every variant of a model and time what it costs once, a session and an inference."""
    source, backend = Path(asked.model), _backend(asked.backends)
    notes: list[str] = []
    sink = noting(notes, asked.sink)
    facts = model_facts.facts(file.load(source))
    with TemporaryDirectory(prefix="ortune-") as folder:
        root = Path(folder).resolve()
        shapes, ranges = asked.shapes, asked.ranges
        fed = given.samples(
            asked.data, facts.inputs, root, shapes=shapes, ranges=ranges, sink=sink
        )
        material = Material(fed, tuple(range(min(fed.count, 32))), custom_ops=backend.custom_ops)
        quantizer = quantizer_for(asked.step, facts, backend, sink)
        subject = Subject(source.resolve(), facts, backend, quantizer, material, root, sink)
        clock = Clock(list(variants(subject)), subject, fed.stream)
        found, imports = clock.starts(asked.starts)
        rows = _rows(clock.variants, found, *clock.ratios(asked.seconds))
    offered = capabilities(backend)
    return Timeline(
        model=str(asked.model),
        rows=rows,
        every=_every_session(rows),
        per_session=asked.inferences_per_session,
        import_ns=tuple(imports),
        quantizer="" if quantizer is None else str(quantizer),
        notes=tuple(notes),
        machine=offered.machine,
        versions=offered.versions,
    )


timeline = verb(TimelineRequest, run)


def _every_session(rows: Sequence[Timed]) -> CostLine | None:
    both = next((row.line for row in rows if row.line.name == BOTH), None)
    if both is None:
        return None
    session_s = both.once_s + both.session_s
    return replace(both, name=EVERY_SESSION, once_s=0.0, session_s=session_s)


def _backend(on: str) -> Cpu:
    found = parse(Backend, on)
    if not isinstance(found, Cpu):
        raise BadSettings(
            f"'{on}' has no levels of graph optimization", fix="use --on cpu, or cpu(threads=1)"
        )
    return found


def _rows(
    made: Sequence[Variant],
    starts: Mapping[str, Starts],
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
        alike = bool(one.against) and not differ(starts[one.name].sums, starts[one.against].sums)
        if alike:
            session[one.name] = session[one.against]
        line = CostLine(one.name, one.once_s, session[one.name], inference[one.name])
        rows.append(Timed(line, tuple(loads), tuple(firsts), one.against, ratio, one.size, alike))
    return tuple(rows)
