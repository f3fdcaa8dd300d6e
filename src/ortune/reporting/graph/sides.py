"""What became of the original's nodes in the winner, with the time and precision of both."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import onnx_ir as ir

from ortune.core import wording as say
from ortune.core.session import Recorded
from ortune.core.study import Study
from ortune.graph.analysis.dataflow import Origin, divide_into_regions
from ortune.graph.analysis.precision import map_precisions
from ortune.graph.diff.compare import diff_models
from ortune.graph.diff.result import Diff, DrawnNode
from ortune.graph.io import file
from ortune.graph.mapping.nodes import trace_lineage
from ortune.measurement.timing.operators import find_main_source, operator_shares
from ortune.search.experiment.golden import find_built_model
from ortune.search.experiment.ledger import ORIGINAL, read_kernels

_CONVERSIONS = frozenset({"QuantizeLinear", "DequantizeLinear", "Cast"})
_FLOATS = ("float16", "bfloat16")
"""What a runtime computes in that its model does not say."""
_LARGEST = 2_000_000_000
"""Bytes of a model that a page looks through: a second or two each."""


@dataclass(frozen=True)
class Side:
    """What a step is on one side."""

    nodes: tuple[str, ...] = ()  # their names, in the order of the graph
    operators: tuple[str, ...] = ()  # operators in that order, the joined ``Q``/``DQ`` left out
    precision: str = ""  # in which it computes; empty where that is not known
    ms: float | None = None  # what it takes of a run; None where nothing was recorded
    reads: tuple[int, ...] = ()  # places of the steps whose results it reads
    conversions: int = 0  # how many Q, DQ and Cast nodes stand around it


@dataclass(frozen=True)
class Counterpart:
    """Nodes of the original and those of the winner that stand for them."""

    kind: str  # as of a group of ``diff``
    region: str  # of the original
    member: str  # the scope of a repeated region; empty of others
    original: Side
    winner: Side
    changes: tuple[str, ...] = ()  # what is known of why


@dataclass(frozen=True)
class Sides:
    """Both graphs."""

    steps: tuple[Counterpart, ...]  # in the order of the original's graph
    # What nodes that the runtimes added take, on either side.
    added_ms: tuple[float, float] = (0.0, 0.0)
    # Operator -> its share of the time, of either side; empty where one is not known.
    shares: tuple[Mapping[str, float], ...] = ()

    @property
    def is_timed(self) -> bool:
        """Whether both sides have times."""
        pairs = [(step.original.ms, step.winner.ms) for step in self.steps]
        return any(a for a, _ in pairs) and any(b for _, b in pairs)


@dataclass(frozen=True)
class NodeTimes:
    """What the nodes of a model take of a run."""

    # Node -> milliseconds: a fused kernel's stand at the node that it is named for.
    ms: Mapping[str, float]
    floats: Mapping[str, str]  # node -> the float type that its kernel computes in
    added_ms: float  # of kernels that stand for no node


def compare_sides(study: Study) -> dict[str, Sides]:
    """Set original and winner of each of a study's models side by side, by the model's name.

    Empty where a file is gone or large. Runtimes record one model at a time, so that steps have
    times only where there is one.

    Raises:
        OrtuneError: A model or what was recorded of it cannot be read.
    """
    pairs = find_models(study)
    return {name: _compare_pair(study, pair, len(pairs) == 1) for name, pair in pairs.items()}


def _compare_pair(study: Study, paths: Sequence[Path], is_lone: bool) -> Sides:
    models = tuple(file.load(path) for path in paths)
    diff = diff_models(models[0], models[1])
    root, best = Path(study.root), study.best
    kept = [read_kernels(root, key) if is_lone else None for key in (ORIGINAL, best.key)]
    latencies = [say.latency_ns(study, trial) for trial in (study.baseline, best)]
    times = [
        time_nodes(model, recorded, latency / 1e6) if recorded and latency else None
        for model, recorded, latency in zip(models, kept, latencies, strict=True)
    ]
    shares = tuple(operator_shares(recorded) for recorded in kept if recorded is not None)
    return replace(join_sides(diff, models, times), shares=shares if all(times) else ())


def find_models(study: Study) -> dict[str, tuple[Path, Path]]:
    """Return the files of original and winner by the model's name; none where one is not fit.

    It is gone, or all together are too large, or the original is the winner.
    """
    if not study.root or study.best.key == study.baseline.key:
        return {}
    pairs = {
        name: (Path(source), find_built_model(Path(study.root), study.best, Path(source)))
        for name, source in study.models.items()
    }
    there = all(original.is_file() for original, _ in pairs.values())
    return pairs if there and (study.best.size or 0) <= _LARGEST else {}


def time_nodes(model: ir.Model, recorded: Recorded, latency_ms: float) -> NodeTimes:
    """Divide a run's time among a model's nodes by what its runtime recorded of a few runs."""
    lineage = trace_lineage(model, recorded)
    operators = {name: node.op_type for name, node in Origin(model).nodes.items()}
    total = sum(node.spent_ns for node in recorded.nodes) or 1.0
    ms: defaultdict[str, float] = defaultdict(float)
    floats: dict[str, str] = {}
    added_ms = 0.0
    for executed, sources in zip(recorded.nodes, lineage.sources, strict=True):
        time_ms = latency_ms * executed.spent_ns / total
        if not sources:
            added_ms += time_ms
            continue
        ms[find_main_source(executed, sources, operators)] += time_ms
        dtypes = {operand.dtype for operand in (*executed.outputs, *executed.inputs)}
        if types := [name for name in _FLOATS if name in dtypes]:
            floats |= dict.fromkeys(sources, types[0])
    return NodeTimes(ms, floats, added_ms)


def join_sides(diff: Diff, models: Sequence[ir.Model], times: Sequence[NodeTimes | None]) -> Sides:
    """Bring what became of the nodes, their times and their precisions together.

    Q, DQ and Cast nodes that were added belong to the step beside them: of a quantized model they
    would be most of the steps.
    """
    regions = divide_into_regions(Origin(models[0]))
    homes = _place_groups(diff)
    order = sorted({home for home, _ in homes.values()}, key=lambda home: homes[home])
    steps_of: defaultdict[int, list[int]] = defaultdict(list)
    for index, (home, _) in homes.items():
        steps_of[home].append(index)
    places = {index: at for at, home in enumerate(order) for index in steps_of[home]}
    precisions = [map_precisions(model) for model in models]
    makers = [_find_makers(nodes, homes) for nodes in diff.nodes]
    steps: list[Counterpart] = []
    region = regions.all[0].name if regions.all else ""
    member = ""
    for at, home in enumerate(order):
        group = diff.groups[home]
        if group.a:
            first = diff.nodes[0][group.a[0]].name
            region, member = regions.of.get(first, region), regions.member.get(first, "")
        sides = []
        for which in (0, 1):
            inside = [
                diff.nodes[which][node]
                for index in sorted(steps_of[home], key=lambda index: homes[index][1])
                for node in (diff.groups[index].a, diff.groups[index].b)[which]
            ]
            reads = {
                places[makers[which][value]]
                for node in inside
                for value in node.inputs
                if value in makers[which]
            }
            sides.append(_make_side(inside, precisions[which], times[which], sorted(reads - {at})))
        steps.append(Counterpart(group.kind, region, member, sides[0], sides[1], group.changes))
    before, after = (timing.added_ms if timing else 0.0 for timing in times)
    return Sides(tuple(steps), (before, after))


def _find_makers(
    nodes: Sequence[DrawnNode], homes: Mapping[int, tuple[int, float]]
) -> dict[str, int]:
    """Return value -> the group that computes it, whatever converts it on its way."""
    makers: dict[str, int] = {}
    for node in nodes:
        if node.group not in homes:
            continue
        joined = homes[node.group][0] != node.group
        before = [makers[value] for value in node.inputs if value in makers] if joined else []
        if not joined or before:
            makers |= dict.fromkeys(filter(None, node.outputs), (before or [node.group])[0])
    return makers


def _place_groups(diff: Diff) -> dict[int, tuple[int, float]]:
    """Return group -> the group that it is shown with, and its place in the original's order.

    What was added stands behind what it reads, or before what reads it. Weights are left out.
    """
    shown = [
        index
        for index, group in enumerate(diff.groups)
        if any(
            diff.nodes[which][node].op != "Constant"
            for which, members in enumerate((group.a, group.b))
            for node in members
        )
    ]
    at: dict[int, float] = {i: float(diff.groups[i].a[0]) for i in shown if diff.groups[i].a}
    near: dict[int, int] = {i: i for i in at}
    added = {i for i in shown if i not in at}
    makers = {value: node.group for node in diff.nodes[1] for value in node.outputs if value}

    def follow(node: DrawnNode, neighbours: Sequence[int]) -> None:
        placed = [index for index in neighbours if index in at]
        if node.group in added and node.group not in at and placed:
            last_placed = max(placed, key=lambda index: at[index])
            at[node.group] = at[last_placed] + 1e-6
            near[node.group] = near[last_placed]

    readers: defaultdict[int, list[int]] = defaultdict(list)
    for node in diff.nodes[1]:
        for value in node.inputs:
            if value in makers:
                readers[makers[value]].append(node.group)
    for node in reversed(diff.nodes[1]):
        if node.op in _CONVERSIONS:
            follow(node, readers[node.group])
    for node in diff.nodes[1]:
        follow(node, [makers[value] for value in node.inputs if value in makers])
    last = max(at.values(), default=0.0)
    homes = {}
    for index in shown:
        operators = {diff.nodes[1][node].op for node in diff.groups[index].b}
        joins = index in added and operators <= _CONVERSIONS and index in near
        homes[index] = (near[index] if joins else index, at.get(index, last + 1))
    return homes


def _make_side(
    nodes: Sequence[DrawnNode],
    precisions: Mapping[str, str],
    times: NodeTimes | None,
    reads: Sequence[int],
) -> Side:
    plain = [node for node in nodes if node.op not in (*_CONVERSIONS, "Constant")]
    named = plain or [node for node in nodes if node.op != "Constant"]
    precisions_inside = [precisions[n.name] for n in plain if precisions.get(n.name)]
    precision = min(
        precisions_inside, key=lambda name: (not name.startswith("int"), len(name)), default=""
    )
    ms = None
    if times is not None:
        ms = sum(times.ms.get(node.name, 0.0) for node in nodes)
        cast = [times.floats[node.name] for node in plain if node.name in times.floats]
        if precision == "float32" and cast:
            precision = cast[0]
    names, operators = tuple(node.name for node in named), tuple(node.op for node in named)
    return Side(names, operators, precision, ms, tuple(reads), len(nodes) - len(named))
