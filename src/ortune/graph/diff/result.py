"""What differs between two models, as plain values."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from ortune.core.result import TableResult

Kind = Literal["matched", "retyped", "changed", "fused", "split", "replaced", "added", "removed"]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True)
class DrawnNode:
    """A node of one side, as a drawing of the graph needs it."""

    id: int  # its place among the nodes of its side: in the file's order, a body behind its holder
    name: str  # unique on its side
    op: str  # operator; other domains as ``com.microsoft::Gelu``
    inputs: tuple[str, ...]  # names of the values read; empty where one is left out
    outputs: tuple[str, ...]  # names of the values made; empty where one is left out
    scope: str  # name of the node whose body holds it; empty on top
    layer: int  # the longest way from an input of the model, in nodes
    place: int  # its place within the layer, from 0
    group: int  # index of the group that it belongs to


@dataclass(frozen=True)
class Group:
    """Nodes of one side that stand for nodes of the other."""

    # ``matched`` (one for one, nothing changed), ``retyped`` (one for one, another precision),
    # ``changed`` (one for one, see `changes`), ``fused`` (more became fewer), ``split`` (fewer
    # became more), ``replaced`` (as many others), ``added``, ``removed``.
    kind: Kind
    a: tuple[int, ...]  # ids of nodes of the first model
    b: tuple[int, ...]  # ids of nodes of the second
    pattern: str  # such as ``Conv+BatchNormalization -> Conv``, in the order of the graph
    # Of what is one for one: ``operator``, ``attributes``, ``inputs``, or ``weights: RELATION``
    # (see `Weight`); of the others what is known of why.
    changes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Weight:
    """A weight (initializer or Constant node) that differs, or is on one side only."""

    a: str  # its name in the first model; empty where it is new
    b: str  # its name in the second; empty where it is gone
    # ``transposed``, ``reshaped``, ``scaled`` (by factors along an axis, as folding makes it),
    # ``reordered`` (the same numbers in another order), ``quantized``, ``rounded`` (another
    # floating-point type), ``changed``, ``added``, ``removed``.
    relation: str
    dtypes: tuple[str, str]
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    size: tuple[int, int]  # bytes on either side
    # The largest difference of two elements (after dequantizing); None where the elements do not
    # stand for each other.
    largest: float | None = None
    relative: float | None = None  # the same as a share of the largest magnitude of the first


@dataclass(frozen=True)
class HeaderField:
    """Something outside of the graph that differs."""

    # ``input x``, ``output y``, ``opset``, ``IR version``, ``metadata KEY``, ``producer``.
    what: str
    a: str | None  # in the first model; None where it is missing
    b: str | None  # in the second
    interface: bool = False  # it changes what a caller sees, or what the operators mean


@dataclass(frozen=True, repr=False)
class Diff(TableResult):
    """Two models side by side.

    Attributes:
        same: They compute the same and have the same interface; names inside, the order of
            nodes and metadata do not count.
        related: False where little is in common: then only what is equal beyond doubt is grouped.
        groups: Every node of either side is in exactly one.
        nodes: Of the first and of the second model.
        ops: Operator -> nodes in the first and in the second.
        weight_bytes: Precision -> bytes in the first and in the second.
        equal_weights: Weights of the first that the second holds unchanged.
        weights: The others.
        fields: What differs outside of the graph.
        names_trusted: Names of values were taken as evidence.
    """

    headline = ("same", "related", "equal_weights")
    table = "groups"

    same: bool
    related: bool
    groups: tuple[Group, ...]
    nodes: tuple[tuple[DrawnNode, ...], tuple[DrawnNode, ...]]
    ops: Mapping[str, tuple[int, int]]
    weight_bytes: Mapping[str, tuple[int, int]]
    equal_weights: int
    weights: tuple[Weight, ...]
    fields: tuple[HeaderField, ...]
    names_trusted: bool

    def counts(self) -> dict[Kind, tuple[int, int, int]]:
        """Return kind -> groups, nodes of the first, nodes of the second."""
        counts: dict[Kind, tuple[int, int, int]] = {}
        for kind in KINDS:
            members = [group for group in self.groups if group.kind == kind]
            if members:
                first = sum(len(group.a) for group in members)
                second = sum(len(group.b) for group in members)
                counts[kind] = (len(members), first, second)
        return counts

    def patterns(self) -> dict[tuple[Kind, str], int]:
        """Return kind and pattern -> groups, without what matched, the most first."""
        counts: dict[tuple[Kind, str], int] = {}
        for group in self.groups:
            if group.kind != "matched":
                key = group.kind, group.pattern
                counts[key] = counts.get(key, 0) + 1
        return dict(sorted(counts.items(), key=lambda item: (KINDS.index(item[0][0]), -item[1])))
