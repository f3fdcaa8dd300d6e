"""The ranges that a quantizer needs, and how far to trust them."""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from ortune.analysis.calibration_quality.requests import Calibrate
from ortune.backends.cpu import Cpu
from ortune.core import hub, wording
from ortune.core.atomic_write import write_text
from ortune.core.errors import BadSettings
from ortune.core.event import Note
from ortune.core.observer import Observer, Probe, Range, Ranges
from ortune.core.outputs import check_output_file
from ortune.core.plugins import codec
from ortune.core.plugins.spelling import parse_plugin
from ortune.core.request import make_verb
from ortune.core.result import TableResult
from ortune.core.step import Quantizer
from ortune.core.temporary_folder import open_temporary_folder
from ortune.core.version import __version__
from ortune.core.workload import spread_indices
from ortune.data import augment as augmenting
from ortune.data.feeds import Feeds, load_feeds
from ortune.graph.analysis import facts as model_facts
from ortune.graph.io import file, names
from ortune.graph.ir import edit
from ortune.graph.shapes.infer import infer_shapes
from ortune.measurement.rolled import StatefulModel
from ortune.quantizers.calibration import ranges_file
from ortune.quantizers.calibration.calibrate import (
    Inactive,
    calibrate_groups,
    find_inactive,
    make_activity_probes,
)


@dataclass(frozen=True)
class QuantizerProbes:
    """What a quantizer asks of a model."""

    model: ir.Model  # as the quantizer prepared it
    probes: tuple[Probe, ...]  # for ranges that are known by their tensor's name
    observer: Observer


def parse_quantizer(quantizer: str, observer: str | None) -> Quantizer:
    """Read a quantizer and put another observer into it.

    Raises:
        BadSettings: A spelling is wrong, or the quantizer has no observer to choose.
    """
    step = parse_plugin(Quantizer, quantizer)
    default_observer = getattr(step, "observer", None)
    if not isinstance(default_observer, Observer):
        raise BadSettings(
            f"{step.name()} does not calibrate with an observer",
            fix='use a static quantizer, such as "int8-static"',
        )
    if observer is None:
        return step
    fields = codec.encode(step) | {"observer": codec.encode(parse_plugin(Observer, observer))}
    return codec.decode(Quantizer, fields)


def collect_probes(path: Path, step: Quantizer) -> QuantizerProbes:
    """Load a model, prepare it as a build does, and ask the quantizer.

    Raises:
        BadSettings: It asks for nothing.
    """
    model = file.load(path)
    names.make_names_unique(model)
    if model.opset_imports.get("", 0) < step.needs_opset:
        from ortune.transforms.raise_opset import RaiseOpset

        RaiseOpset(to=step.needs_opset).apply(model)
    probes = tuple(probe for probe in step.probes(model) if not probe.name)
    if not probes:
        raise BadSettings(
            f"{step} needs no range in {path.name}: it would quantize nothing there",
            fix="see `ortune inspect` for its operators, or choose another --step",
        )
    observer: Observer = step.observer  # type: ignore[attr-defined]
    return QuantizerProbes(model, probes, observer)


STEPS = 255
TOLERANCE = 26.0
"""Steps, 10 % of the range."""
TENSORS = 0.9
"""Share of the tensors that must be stable."""
FEWEST = 8
"""Independent samples below which nothing is said."""
QUARTERS = 16
"""Independent samples from which quarters say how fast the disagreement falls."""
FURTHEST = 10
"""Times the samples that are there, up to which a number is given."""
_SLOWEST, _USUAL, _FASTEST = 0.25, 0.5, 1.0


@dataclass(frozen=True)
class Stability:
    """What halves of the data say."""

    enough: bool | None  # None where the samples are too few to say
    stable: float  # share of the tensors that are
    apart: float  # the disagreement of the halves, in steps, that one tensor of ten exceeds
    # By which it falls with the number of samples; None where that is not measured.
    exponent: float | None
    # Samples to add; 0 when there are enough, None when nothing useful can be said.
    add: int | None
    why: str

    def __str__(self) -> str:
        word = {True: "enough data", False: "not enough data", None: "cannot tell"}[self.enough]
        return f"{word}: {self.why}"


def split_into_quarters(feeds: Feeds, indices: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Divide samples into four parts of about the same size, never a group or equal samples.

    The order is drawn from their contents.
    """
    units: dict[str, list[int]] = {}
    for index in indices:
        name = feeds.groups[index] if feeds.groups else feeds.digests[index]
        units.setdefault(name, []).append(index)
    order = sorted(units, key=lambda name: hashlib.sha256(name.encode()).hexdigest())
    parts: list[list[int]] = [[], [], [], []]
    for name in order:
        min(parts, key=len).extend(units[name])
    return tuple(tuple(sorted(part)) for part in parts)


def count_independent_samples(feeds: Feeds, indices: Sequence[int]) -> int:
    """Count samples that have no group or content in common."""
    names = feeds.groups or feeds.digests
    return len({names[index] for index in indices})


def make_sample_subsets(parts: Sequence[Sequence[int]], count: int) -> list[tuple[int, ...]]:
    """Return what is observed apart: two halves, and quarters if these help (`parts`)."""
    first, second, third, fourth = parts
    halves = [(*first, *third), (*second, *fourth)]
    if count < FEWEST:
        return []
    return [*halves, *map(tuple, parts)] if count >= QUARTERS else halves


def compute_disagreement(seen: Range, first: Range | None, second: Range | None) -> float:
    """Return the disagreement of two ranges in steps of a third one's grid.

    A tensor that one of the sets never saw, or of no extent, tells nothing: NaN.
    """
    step = (max(seen.high, 0.0) - min(seen.low, 0.0)) / STEPS
    if first is None or second is None or not step > 0:
        return math.nan
    return max(abs(first.low - second.low), abs(first.high - second.high)) / step


def judge_stability(
    whole: Mapping[str, Range], subset_ranges: Sequence[Ranges], count: int, samples: int
) -> Stability:
    """Apply the rule.

    Args:
        whole: Key -> range over all samples.
        subset_ranges: Answers for the `make_sample_subsets`.
    """
    if not subset_ranges:
        few = (
            f"{wording.format_count(count, 'independent sample')}: too few to judge; calibrate on "
            f"{FEWEST} or more"
        )
        return Stability(None, math.nan, math.nan, None, None, few)
    halves = _list_disagreements(whole, subset_ranges[0], subset_ranges[1])
    if not len(halves):
        return Stability(None, math.nan, math.nan, None, None, "no tensor has a range")
    stable = float(np.mean(halves <= TOLERANCE))
    worst = _compute_quantile(halves)
    exponent = _estimate_exponent(whole, subset_ranges, worst)
    if worst <= TOLERANCE:
        why = (
            f"the ranges of the two halves of the data agree within 10 % for {stable:.0%} of the "
            "tensors"
        )
        return Stability(True, stable, worst, exponent, 0, why)
    grow = (worst / TOLERANCE) ** (1 / (exponent or _USUAL))
    lacking = (
        f"the ranges of the two halves of the data differ by more than 10 % for {1 - stable:.0%} "
        "of the tensors"
    )
    if grow > FURTHEST:
        why = (
            f"{lacking}; more than {FURTHEST} times the samples would be needed to change that: "
            "outliers set these ranges. `--compare` measures observers that clip them"
        )
        return Stability(False, stable, worst, exponent, None, why)
    more = _round_up(samples * (grow - 1))
    why = f"{lacking}: add about {wording.format_count(more, 'sample')}"
    return Stability(False, stable, worst, exponent, more, why)


def _list_disagreements(whole: Mapping[str, Range], first: Ranges, second: Ranges) -> np.ndarray:
    disagreements = [
        compute_disagreement(seen, first.get(key), second.get(key)) for key, seen in whole.items()
    ]
    return np.array([value for value in disagreements if not math.isnan(value)], np.float64)


def _compute_quantile(values: np.ndarray) -> float:
    """Return what a share of 1 - TENSORS of the values exceeds."""
    return float(np.sort(values)[max(0, math.ceil(TENSORS * len(values)) - 1)])


def _estimate_exponent(
    whole: Mapping[str, Range], subset_ranges: Sequence[Ranges], halves: float
) -> float | None:
    if len(subset_ranges) < 3 or not halves > 0:
        return None
    pairs = [
        _list_disagreements(whole, first, second)
        for first, second in combinations(subset_ranges[2:], 2)
    ]
    quarters = float(np.mean([_compute_quantile(values) for values in pairs if len(values)]))
    if not quarters > 0:
        return None
    return (_USUAL + min(_FASTEST, max(_SLOWEST, math.log2(quarters / halves)))) / 2


def _round_up(count: float) -> int:
    """Round up to one leading digit, two from 100 on: more would be made up."""
    digits = 1 if count < 100 else 2
    unit: int = 10 ** max(0, math.floor(math.log10(max(count, 1))) + 1 - digits)
    return math.ceil(count / unit) * unit


TENSORRT = "8.6.1"
"""Last release but one series whose caches are still asked for; 11 has none any more."""


@dataclass(frozen=True)
class TensorRange:
    """One range, and how sure it is."""

    name: str
    op: str  # operator that makes it; empty for an input of the model
    low: float
    high: float
    step: float  # of the 8-bit grid over the range and zero
    # Disagreement of the halves of the data in steps; None where it is not known.
    apart: float | None = None
    halves: tuple[tuple[float, float], ...] = ()  # their ranges [low, high]


@dataclass(frozen=True, repr=False)
class Calibration(TableResult):
    """What `calibrate` found.

    Attributes:
        tensors: One a range, in the order of the graph.
        stability: Whether the data is enough.
        idle: Tensors and channels that stayed inactive on the samples, and constant ones.
        unanswered: Tensors that never held a value.
        every: Range of every float tensor of the file's own graph, if it was asked for.
    """

    headline = ("model", "observer", "samples", "augment", "stability")
    table = "tensors"

    model: str
    quantizer: str
    observer: str
    samples: int
    augment: str
    document: Mapping[str, Any]
    tensors: tuple[TensorRange, ...]
    stability: Stability
    idle: tuple[Inactive, ...]
    unanswered: tuple[str, ...]
    every: Ranges
    seconds: float
    peak_rss: int
    notes: tuple[str, ...]

    def save(self, path: str | Path) -> Path:
        """Write the ranges as JSON; see `ortune.quantizers.calibration.ranges_file`."""
        return write_text(Path(path), json.dumps(self.document, indent=1) + "\n")

    def save_tensorrt(self, path: str | Path, version: str = TENSORRT) -> Path:
        """Write a TensorRT calibration cache of every float tensor.

        Raises:
            BadSettings: They were not asked for, or the version cannot be read.
        """
        if not self.every:
            raise BadSettings(
                "only the quantizer's tensors were calibrated, TensorRT needs all",
                fix="calibrate with every=True",
            )
        return write_text(Path(path), ranges_file.format_cache(self.every, version))

    def result(self) -> dict[str, Any]:
        """Return what ``--json`` shows; see ``docs/cli.md``."""
        excluded_fields = ("document", "every")
        return {k: codec.encode(v) for k, v in vars(self).items() if k not in excluded_fields}


def run(request: Calibrate) -> Calibration:
    """Observe the tensors that a quantizer asks for, over all samples and over parts of them."""
    # Refuse outputs that may not be written, and two of one name.
    ranges_file.encode_version(request.tensorrt_version)
    out, cache = (
        None if path is None else check_output_file(path, request.force, request.model)
        for path in (request.out, request.tensorrt_cache)
    )
    if out is not None and cache is not None and out.resolve() == cache.resolve():
        raise BadSettings(f"-o and --tensorrt-cache both write {out}", fix="give two names")
    step = parse_quantizer(request.step, request.observer)
    with open_temporary_folder() as folder:
        seen = _load_samples(request, folder)
        quantizer_probes = collect_probes(Path(request.model), step)
        groups = make_sample_subsets(
            split_into_quarters(seen.feeds, seen.indices), seen.independent
        )
        watched = make_activity_probes(
            quantizer_probes.model, [probe.tensor for probe in quantizer_probes.probes]
        )
        result = calibrate_groups(
            quantizer_probes.model,
            [*quantizer_probes.probes, *watched],
            seen.feeds.stream,
            [seen.indices, *groups],
            folder / "own",
            custom_ops=request.custom_ops,
            sink=request.sink,
        )
        more = request.every or request.tensorrt_cache is not None
        all_ranges: Ranges = {}
        if more:
            all_ranges = _observe_all_tensors(
                request, quantizer_probes.observer, seen, folder / "every"
            )
    first, tensors = result.ranges[0], [probe.tensor for probe in quantizer_probes.probes]
    whole = {p.key: first[p.key] for p in quantizer_probes.probes if p.key in first}
    unanswered = tuple(p.tensor for p in quantizer_probes.probes if p.key not in whole)
    digests = tuple(seen.feeds.digests[index] for index in seen.indices)
    observer, count = str(quantizer_probes.observer), len(digests)
    document = ranges_file.build_document(
        ranges_file.make_entries(whole, quantizer_probes.probes, observer),
        model=Path(request.model),
        digest=file.compute_digest(request.model),
        quantizer=str(step),
        observer=observer,
        samples=ranges_file.Samples(count, digests, request.augment),
        unanswered=unanswered,
        version=__version__,
    )
    calibration = Calibration(
        model=str(request.model),
        quantizer=str(step),
        observer=observer,
        samples=count,
        augment=request.augment,
        document=document,
        tensors=tuple(_list_tensor_ranges(quantizer_probes.model, whole, result.ranges[1:3])),
        stability=judge_stability(whole, result.ranges[1:], seen.independent, count),
        idle=tuple(find_inactive(quantizer_probes.model, first, tensors)),
        unanswered=unanswered,
        every=all_ranges,
        seconds=result.seconds,
        peak_rss=result.peak_rss,
        notes=(*seen.notes, *result.notes),
    )
    if out is not None:
        calibration.save(out)
    if cache is not None:
        calibration.save_tensorrt(cache, request.tensorrt_version)
    return calibration


calibrate = make_verb(Calibrate, run)


@dataclass(frozen=True)
class _CalibrationSamples:
    feeds: Feeds
    indices: tuple[int, ...]
    independent: int
    notes: tuple[str, ...]


def _load_samples(request: Calibrate, folder: Path) -> _CalibrationSamples:
    ways = augmenting.parse_augmentations(request.augment) if request.augment else ()
    samples, facts = request.samples or 0, model_facts.read_facts(file.load(request.model))
    if request.sequence:
        model, cpu = Path(request.model), Cpu(custom_ops=request.custom_ops)
        rolled = StatefulModel(
            model=model,
            digest=file.compute_digest(model),
            facts=facts,
            sequence=request.sequence,
            state=request.state,
            backend=cpu,
            shapes=request.shapes,
            work=folder,
        )
        fed = rolled.load(request.source, folder, sink=request.sink)
    else:
        settings = hub.find_folder(request.model)
        fed = load_feeds(request.source, facts.inputs, folder, settings=settings)
    notes = list(fed.notes)
    if samples > fed.count:
        notes.append(
            f"{wording.format_count(samples, 'sample')} requested, the data has {fed.count}"
        )
    indices = tuple(spread_indices(fed.count, samples or fed.count))
    if ways:
        fed = augmenting.augment_samples(fed, indices, ways, folder)
        notes += fed.notes
        indices = tuple(range(fed.count))
    for text in notes:
        request.sink(Note(text))
    return _CalibrationSamples(fed, indices, count_independent_samples(fed, indices), tuple(notes))


def _observe_all_tensors(
    request: Calibrate, observer: Observer, seen: _CalibrationSamples, folder: Path
) -> Ranges:
    """Observe every float tensor of the main graph, named as in the file."""
    model = file.load(request.model)
    names.make_names_unique(model)
    infer_shapes(model)
    inputs = [value for value in model.graph.inputs if not value.is_initializer()]
    node_outputs = [
        value for node in model.graph if node.op_type != "Constant" for value in node.outputs
    ]
    tensor_probes = [
        Probe(str(value.name), observer)
        for value in (*inputs, *node_outputs)
        if value.name and value.dtype == ir.DataType.FLOAT
    ]
    stream, libraries = seen.feeds.stream, request.custom_ops
    result = calibrate_groups(
        *(model, tensor_probes, stream, [seen.indices], folder),
        custom_ops=libraries,
        sink=request.sink,
    )
    return result.ranges[0]


def _list_tensor_ranges(
    model: ir.Model, whole: Mapping[str, Range], halves: Sequence[Ranges]
) -> list[TensorRange]:
    ops = {
        str(value.name): node.op_type for node in edit.walk_nodes(model) for value in node.outputs
    }
    tensor_ranges = []
    for name, seen in whole.items():
        both = [half.get(name) for half in halves]
        distance = compute_disagreement(seen, both[0], both[1]) if both else math.nan
        step = (max(seen.high, 0.0) - min(seen.low, 0.0)) / STEPS
        apart = None if math.isnan(distance) else distance
        ends = tuple((half.low, half.high) for half in both if half is not None)
        op = ops.get(name, "")
        tensor_ranges.append(TensorRange(name, op, seen.low, seen.high, step, apart, ends))
    return tensor_ranges
