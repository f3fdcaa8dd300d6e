"""What each way to serve a model costs once, a session and an inference."""

import itertools
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from statistics import median

from ortune.analysis.costs.requests import TimelineRequest
from ortune.backends.cpu import Cpu
from ortune.core import hub
from ortune.core.backend import Backend
from ortune.core.errors import BadModel, BadSettings, OrtuneError, suggest_names
from ortune.core.event import Note, Progress, Sink, collect_notes
from ortune.core.facts import Facts
from ortune.core.plugins import catalog
from ortune.core.plugins.spelling import parse_plugin
from ortune.core.result import TableResult
from ortune.core.step import Quantizer, Recipe, Step
from ortune.core.temporary_folder import open_temporary_folder
from ortune.core.trial import Interval
from ortune.data import synthetic
from ortune.graph.analysis import facts as model_facts
from ortune.graph.io import file
from ortune.measurement.process import (
    Worker,
    WorkerFailed,
    optimize_offline,
    query_capabilities,
    single_model_job,
)
from ortune.measurement.timing import stats
from ortune.measurement.timing.pairs import Effort, fresh_pairs
from ortune.measurement.timing.turns import wait_until_ready
from ortune.search.recipe.build import Material, build_in
from ortune.search.recipe.space import make_clean_recipe


@dataclass(frozen=True)
class CostLine:
    """A choice."""

    name: str
    once_s: float  # paid once
    session_s: float  # paid by every session
    inference_s: float  # paid by every inference


@dataclass(frozen=True)
class EnvelopeSegment:
    """A range of inferences in which one line is the lowest; `until` may be infinite."""

    since: float
    until: float
    name: str

    def __str__(self) -> str:
        return f"{self.name} from {self.since:.4g}"


def compute_total(line: CostLine, inferences: float, per_session: float) -> float:
    """Return the seconds spent when `inferences` are served, `per_session` in each session."""
    sessions = max(1.0, inferences / per_session)
    return line.once_s + sessions * line.session_s + inferences * line.inference_s


def compute_crossings(first: CostLine, second: CostLine, per_session: float) -> tuple[float, ...]:
    """Return the numbers of inferences at which the cheaper of two lines changes: two at most.

    Up to one session the difference is (once + session) + n * inference, beyond it
    once + n * (inference + session / N): each part has one root at most.
    """
    once = second.once_s - first.once_s
    session = second.session_s - first.session_s
    inference = second.inference_s - first.inference_s
    roots = []
    if inference:
        root = -(once + session) / inference
        if 0 < root <= per_session:
            roots.append(root)
    steep = inference + session / per_session
    if steep and math.isfinite(per_session):
        root = -once / steep
        if root > per_session:
            roots.append(root)
    return tuple(root for root in roots if math.isfinite(root))


def find_break_even(old: CostLine, new: CostLine, per_session: float) -> float:
    """Return the inferences from which `new` stays cheaper than `old`; infinite for never.

    0 when it is cheaper from the start.
    """
    crossing_points = compute_crossings(old, new, per_session)
    last = max(crossing_points, default=0.0)
    beyond = 2 * last + 2 * (per_session if math.isfinite(per_session) else 1.0)
    if compute_total(new, beyond, per_session) >= compute_total(old, beyond, per_session):
        return math.inf
    return last


def lower_envelope(lines: Sequence[CostLine], per_session: float) -> tuple[EnvelopeSegment, ...]:
    """Return which line is the lowest from 0 inferences to infinity; of equal ones the first."""
    pairs = itertools.combinations(lines, 2)
    cuts = sorted(
        {n for first, second in pairs for n in compute_crossings(first, second, per_session)}
    )
    edges = [0.0, *cuts, math.inf]
    segments: list[EnvelopeSegment] = []
    for since, until in itertools.pairwise(edges):
        inside = (since + until) / 2 if math.isfinite(until) else 2 * since + 1
        name = min(lines, key=lambda line: compute_total(line, inside, per_session)).name
        if segments and segments[-1].name == name:
            segments[-1] = EnvelopeSegment(segments[-1].since, until, name)
        else:
            segments.append(EnvelopeSegment(since, until, name))
    return tuple(segments)


NONE, GRAPH, CLEANED = "as exported", "graph optimization", "rewrites + graph optimization"
QUANTIZED, BOTH = "quantized", "optimized + quantized"
OFFLINE, ORT = "offline file", ".ort file"
_PREFERRED = ("int8-static", "int8-dynamic", "int8-weights")


@dataclass(frozen=True)
class Subject:
    """What all variants are made of."""

    model: Path  # the file as it came
    facts: Facts
    backend: Cpu  # its level is set by each variant, its other fields hold for all
    quantizer: Quantizer | None  # the step behind "quantized" and "both"; None leaves them out
    material: Material
    root: Path
    sink: Sink

    def leave_out(self, name: str, reason: str, *, warning: bool = True) -> None:
        """Tell the sink that there is no such variant."""
        self.sink(Note(f"'{name}' is left out: {reason}", warning=warning))


@dataclass(frozen=True)
class Variant:
    """One way to serve the model."""

    name: str
    file: Path  # what a session loads
    backend: Cpu  # how; `level` says how far the runtime still rewrites the graph at load
    once_s: float  # seconds of making the file, the start of processes included
    against: str = ""  # name of the variant whose latency it is compared with; empty for the first

    @property
    def size(self) -> int:
        """Bytes of the file and of external data beside it."""
        beside = self.file.with_name(f"{self.file.name}.data")
        return sum(path.stat().st_size for path in (self.file, beside) if path.is_file())


def make_variants(subject: Subject) -> Iterator[Variant]:
    """Make every file and yield how it is served."""
    raw, full = (replace(subject.backend, level=level) for level in ("disabled", "all"))
    yield Variant(NONE, subject.model, raw, 0.0)
    graph = Variant(GRAPH, subject.model, full, 0.0, NONE)
    yield graph
    yield from _save_offline(subject, graph)
    rewrites = make_clean_recipe(
        subject.facts, subject.backend, query_capabilities(subject.backend)
    ).steps
    if rewrites:
        yield from _build_variant(subject, CLEANED, rewrites, full, GRAPH)
    if subject.quantizer is None:
        return
    yield from _build_variant(subject, QUANTIZED, (subject.quantizer,), raw, NONE)
    for both in _build_variant(subject, BOTH, (*rewrites, subject.quantizer), full, GRAPH):
        yield both
        yield from _save_offline(subject, both)


def quantizer_for(spec: str, facts: Facts, backend: Cpu, sink: Sink) -> Quantizer | None:
    """Return the step asked for, or the first that a search would offer; None if none fits.

    Raises:
        BadSettings: `spec` names no quantizer, or cannot be read.
    """
    if spec:
        quantizer_names = catalog.list_plugins(Quantizer)
        if spec.partition("(")[0].strip() not in quantizer_names:
            raise BadSettings(
                f"'{spec}' is not a quantizer", fix=suggest_names(spec, quantizer_names)
            )
        return parse_plugin(Quantizer, spec)
    for name in _PREFERRED:
        for offer in catalog.load_plugin(Quantizer, name).offers(
            facts, backend, query_capabilities(backend)
        ):
            sink(Note(f"quantized by {offer}"))
            return offer
    sink(Note("no quantizer offers anything for this model: not quantized"))
    return None


def _build_variant(
    subject: Subject, name: str, steps: tuple[Step, ...], backend: Cpu, against: str
) -> Iterator[Variant]:
    """Build a recipe in a folder of its own: no step is taken from another build."""
    recipe, start = Recipe(name, steps), time.perf_counter()
    subject.sink(Progress(f"building '{name}'"))
    try:
        built = build_in(subject.root / name, subject.model, recipe, subject.material)
    except OrtuneError as error:
        subject.leave_out(name, error.what)
        return
    if built.changed:
        yield Variant(name, built.path, backend, time.perf_counter() - start, against)
    else:
        subject.leave_out(name, "there is nothing to rewrite", warning=False)


def _save_offline(subject: Subject, loaded: Variant) -> Iterator[Variant]:
    """Save what the runtime makes of a file at level all, as ONNX and in its own format.

    The runtime writes its own format where the file's name ends in ``.ort``.
    """
    raw = replace(subject.backend, level="disabled")
    for kind, suffix in ((OFFLINE, ".onnx"), (ORT, ".ort")):
        name = f"{loaded.name}, {kind}"
        subject.sink(Progress(f"building '{name}'"))
        out, start = subject.root / f"{loaded.name}, offline{suffix}", time.perf_counter()
        try:
            optimize_offline(loaded.file, Cpu(level="all"), out)
        except OrtuneError as error:
            subject.leave_out(name, error.what)
            continue
        once_s = loaded.once_s + time.perf_counter() - start
        yield Variant(name, out, raw, once_s, loaded.name)


PAIRS = 3
"""Pairs of fresh processes a ratio: a pair has an effect of its own."""
_PAIR_S = 0.1
"""Timing that a pair is worth starting two processes for; where there is less, pairs are fewer."""


class Clock:
    """Times variants in worker processes; one that fails is left out."""

    def __init__(self, variants: list[Variant], subject: Subject, stream: Path) -> None:
        self.variants = variants
        self._subject, self._stream = subject, stream

    def time_starts(self, count: int) -> tuple[dict[str, list[tuple[int, int]]], list[int]]:
        """Start every variant in turns, each time in a fresh process.

        Returns:
            Nanoseconds of session creation and of the first inference, a pair a process, by name;
            and those of importing the runtime.
        """
        start_times: dict[str, list[tuple[int, int]]] = {
            variant.name: [] for variant in self.variants
        }
        imports: list[int] = []
        for turn in range(count):
            for place, variant in enumerate(list(self.variants)):
                done = turn + place / len(self.variants)
                self._subject.sink(Progress("timing session creation", done, count))
                try:
                    with self._make_worker(variant) as worker:
                        imports.append(worker.ask("prepare")["import_ns"])
                        started = wait_until_ready(worker)
                        start_times[variant.name].append((started.load_ns, started.first_ns))
                except WorkerFailed as error:
                    self._drop_variant(variant, error.failure.reason)
        return start_times, imports

    def time_ratios(self, seconds: float) -> tuple[dict[str, Interval], int]:
        """Time each in turns with its measure; return ratios and the first's median, ns."""
        ratios = {self.variants[0].name: Interval(1.0, 1.0, 1.0)}
        base: list[int] = []
        share = seconds / max(1, len(self.variants) - 1)
        count = max(1, min(PAIRS, int(share / _PAIR_S)))
        effort = Effort(seconds=share / count, decide=False)
        for place, variant in enumerate(candidates := list(self.variants[1:])):
            self._subject.sink(Progress("timing inferences", place, len(candidates)))
            other = next((v for v in self.variants if v.name == variant.against), None)
            if other is None:
                self._drop_variant(variant, f"'{variant.against}' is not there")
                continue
            try:
                starts = partial(self._make_worker, other), partial(self._make_worker, variant)
                pairs = [fresh.pair for fresh in fresh_pairs(*starts, count, effort)]
            except WorkerFailed as error:
                self._drop_variant(variant, error.failure.reason)
                continue
            ratios[variant.name] = stats.latency_ratio(pairs)
            if other is self.variants[0]:
                blocks = [block for pair in pairs for block in pair.blocks]
                base += [ns for block in blocks for ns in block.baseline.latency_ns]
        return ratios, round(median(base))

    def _make_worker(self, variant: Variant) -> Worker:
        root = self._subject.root
        return Worker(
            single_model_job(variant.file, variant.backend, self._stream, root, "timeline")
        )

    def _drop_variant(self, variant: Variant, reason: str) -> None:
        if variant in self.variants[:2]:
            fix = "check the model and the data"
            raise BadModel(f"'{variant.name}' does not run: {reason}", fix=fix)
        self.variants.remove(variant)
        self._subject.leave_out(variant.name, reason)


EVERY_SESSION = "optimized + quantized in every session"


@dataclass(frozen=True)
class TimedVariant:
    """A variant and what it costs."""

    # Its seconds: once, a session (load, and what the first inference takes longer than a later
    # one; medians over fresh processes), an inference. Where a difference to `against` is inside
    # the noise, that one's figure stands.
    line: CostLine
    load_ns: tuple[int, ...]  # session creation in each fresh process, the runtime imported before
    first_ns: tuple[int, ...]  # first inference there
    against: str  # the variant it was timed in turns with; empty for the first
    # Latency over that one's, 99 %. Where it holds 1 both count as equally fast.
    ratio: Interval
    size: int
    # Its sessions do not differ from those of `against` in rank, at 1 %.
    session_equal: bool = False

    @property
    def equal(self) -> bool:
        """Whether no difference to `against` is beyond the noise."""
        return self.ratio.low <= 1 <= self.ratio.high

    def estimate_break_even(self, other: CostLine, per_session: float) -> Interval:
        """Return from how many inferences on it is cheaper than the line it was timed against.

        The ends move this line's latency to those of the ratio's interval; equal ones stay equal.
        """
        if self.equal:
            break_even = find_break_even(other, self.line, per_session)
            return Interval(break_even, break_even, break_even)
        ratios = (self.ratio.value, self.ratio.low, self.ratio.high)
        lines = (replace(self.line, inference_s=other.inference_s * ratio) for ratio in ratios)
        value, low, high = (find_break_even(other, line, per_session) for line in lines)
        return Interval(value, low, high)


@dataclass(frozen=True, repr=False)
class Timeline(TableResult):
    """All variants of one model.

    Attributes:
        every: "Both" with its one-time cost paid in every session; None without "both".
        per_session: Inferences that a session serves.
        import_ns: Import of the runtime, which every line pays alike and none contains.
        quantizer: The step's spelling; empty without one.
    """

    headline = ("model", "quantizer", "per_session", "cheapest")
    table = "lines"

    model: str
    rows: tuple[TimedVariant, ...]
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

    def find_line(self, name: str) -> CostLine:
        """Return the line of a name."""
        return next(line for line in self.lines if line.name == name)

    @property
    def cheapest(self) -> tuple[EnvelopeSegment, ...]:
        """Which line is the lowest in which range of inferences."""
        return lower_envelope(self.lines, self.per_session)


def run(request: TimelineRequest) -> Timeline:
    """Make every variant of a model and time what it costs once, a session and an inference."""
    source, backend = Path(request.model), parse_plugin(Backend, request.backends)
    if not isinstance(backend, Cpu):
        raise BadSettings(
            f"'{request.backends}' has no levels of graph optimization",
            fix="use --on cpu, or cpu(threads=1)",
        )
    notes: list[str] = []
    sink = collect_notes(notes, request.sink)
    facts = model_facts.read_facts(file.load(source))
    with open_temporary_folder() as folder:
        root = Path(folder).resolve()
        shapes, ranges = request.shapes, request.ranges
        fed = synthetic.load_or_generate_feeds(
            request.data,
            facts.inputs,
            root,
            shapes=shapes,
            ranges=ranges,
            settings=hub.find_folder(source),
            sink=sink,
        )
        material = Material(fed, tuple(range(min(fed.count, 32))), custom_ops=backend.custom_ops)
        quantizer = quantizer_for(request.step, facts, backend, sink)
        subject = Subject(source.absolute(), facts, backend, quantizer, material, root, sink)
        clock = Clock(list(make_variants(subject)), subject, fed.stream)
        starts, imports = clock.time_starts(request.starts)
        rows = _build_rows(clock.variants, starts, *clock.time_ratios(request.time))
    session_line = None
    if both := next((row.line for row in rows if row.line.name == BOTH), None):
        session_s = both.once_s + both.session_s
        session_line = replace(both, name=EVERY_SESSION, once_s=0.0, session_s=session_s)
    offered = query_capabilities(backend)
    return Timeline(
        model=str(request.model),
        rows=rows,
        every=session_line,
        per_session=request.inferences_per_session,
        import_ns=tuple(imports),
        quantizer="" if quantizer is None else str(quantizer),
        notes=tuple(notes),
        machine=offered.machine,
        versions=offered.versions,
    )


def _build_rows(
    variants: Sequence[Variant],
    starts: Mapping[str, Sequence[tuple[int, int]]],
    ratios: Mapping[str, Interval],
    base_ns: int,
) -> tuple[TimedVariant, ...]:
    """Put lines together; a ratio that holds 1 is no difference, nor are sessions of like rank."""
    rows: dict[str, TimedVariant] = {}
    for variant in variants:
        ratio, against = ratios[variant.name], rows.get(variant.against)
        factor = 1.0 if ratio.low <= 1 <= ratio.high else ratio.value
        inference_s = factor * (against.line.inference_s if against else base_ns / 1e9)
        loads, firsts = zip(*starts[variant.name], strict=True)
        session_s = median(loads) / 1e9 + max(0.0, median(firsts) / 1e9 - inference_s)
        alike = False
        if against is not None:
            alike = not samples_differ(
                *(list(map(sum, starts[n])) for n in (variant.name, variant.against))
            )
            session_s = against.line.session_s if alike else session_s
        line = CostLine(variant.name, variant.once_s, session_s, inference_s)
        rows[variant.name] = TimedVariant(
            line, loads, firsts, variant.against, ratio, variant.size, alike
        )
    return tuple(rows.values())


def samples_differ(first: Sequence[float], second: Sequence[float]) -> bool:
    """Say whether two samples differ at a two-sided level of 1 %.

    With 5 values each only samples that do not overlap differ at 1 %; with fewer none do. Equal
    values count half (Mann and Whitney 1947, doi:10.1214/aoms/1177730491).
    """
    wins = sum((a > b) + 0.5 * (a == b) for a in first for b in second)
    fewer = math.floor(min(wins, len(first) * len(second) - wins) + 0.5)
    below = sum(_count_orders(len(first), len(second), u) for u in range(fewer + 1))
    return 2 * below / math.comb(len(first) + len(second), len(first)) <= 0.01


@cache
def _count_orders(first: int, second: int, wins: int) -> int:
    """Count the orders of two samples in which the first has so many wins over the second."""
    if wins < 0:
        return 0
    if first == 0 or second == 0:
        return int(wins == 0)
    return _count_orders(first - 1, second, wins - second) + _count_orders(first, second - 1, wins)
