"""What makes a wide value stays wide: positions, times and indices that a kept node reads.

Integers above 2,048 are no float16, nor those above 256 bfloat16. A node that stays in float32
because of what it reads (a sine of positions) gains nothing where the Cast that makes the number,
or what moves it, adds to it or scales it on the way, rounds to 16 bits before. So the slice behind
such a node stays in float32 as far as it comes from integers, or from an input that is float32.

Whatever was measured, such nodes are those too whose answer a rounded integer makes another one:
sines, rounding, comparisons and Casts back to integers of what was computed from integers. Samples
may hold short sequences only.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ortune.graph.ir import edit
from ortune.quantizers.common.float16.format import ValueKind
from ortune.quantizers.common.float16.overflow import MOVERS

_CARRIERS_TEXT = (
    "Abs Add Ceil Clip Concat CumSum Div Floor Max Min Mod Mul Neg Pad Pow Range ReduceMax "
    "ReduceMin ReduceSum Round Split Sub Sum Tile Trilu Where"
)
CARRIERS = frozenset((*MOVERS, *_CARRIERS_TEXT.split()))
"""Operators whose results are as exact as what they read, and that cost little in float32."""

PRODUCTS = frozenset({"Einsum", "Gemm", "MatMul"})
"""Operators that carry where both sides do: an outer product of positions and frequencies."""

_CHOICES_TEXT = (
    "ArgMax ArgMin Ceil Cos Equal Floor Greater GreaterOrEqual Less LessOrEqual Mod Round Sin Tan"
)
CHOICES = frozenset(_CHOICES_TEXT.split())
"""Operators of which a rounded integer makes another answer, not one that is a little off."""

ANGLES = ("Cos", "Sin", "Tan")
"""Those of them that any large input makes wrong, such as the time of a diffusion step."""

_FEW = 4096
"""Elements of a constant that is no weight."""

_SMALL = 16
"""Bits of the integers that lose nothing in any format: of truth values and of bytes."""


@dataclass(frozen=True)
class ValueOrigin:
    """Where a value comes from.

    Attributes:
        integers: Integers have a part in it, and nothing on the way is a layer.
        wide: They have, or all of it comes from inputs that stay float32.
    """

    integers: bool
    wide: bool


class WideSlices:
    """The slices of a model that come from integers, or from inputs that stay float32."""

    def __init__(
        self, model: ir.Model, kinds: Mapping[ir.Value, ValueKind], *, keep_io: bool
    ) -> None:
        self._kinds = kinds
        self._inputs = {*model.graph.inputs} if keep_io else set()
        self._origins: dict[ir.Value, ValueOrigin] = {}

    def find_choices(self, nodes: Iterable[ir.Node]) -> frozenset[ir.Node]:
        """Return the nodes that choose by integers, and sines of what is wide alone."""
        choices = set()
        for node in nodes:
            origins = [self._trace(value) for value in self._list_read(node)]
            if node.op_type in ANGLES and any(origin.wide for origin in origins):
                choices.add(node)
            if (node.op_type in CHOICES or _casts_to_integer(node)) and any(
                origin.integers for origin in origins
            ):
                choices.add(node)
        return frozenset(choices)

    def find_makers(self, kept: Collection[ir.Node]) -> frozenset[ir.Node]:
        """Return what makes the values that the kept nodes read, as far as it is not 16-bit."""
        makers: set[ir.Node] = set()
        todo = [value for node in kept for value in self._list_read(node)]
        while todo:
            value = todo.pop()
            node = value.producer()
            if node is None or node in makers or not self._trace(value).wide:
                continue
            makers.add(node)
            todo += self._list_read(node)
        return frozenset(makers - set(kept))

    def _trace(self, value: ir.Value) -> ValueOrigin:
        """Return where a value comes from; the way there may be as long as the graph is deep."""
        todo = [value]
        while todo:
            current = todo[-1]
            node = current.producer()
            sources = self._list_read(node) if node is not None and _carries(node) else []
            waiting = [source for source in sources if source not in self._origins]
            if waiting:
                todo += waiting
                continue
            todo.pop()
            if node is None or not _carries(node):
                self._origins[current] = ValueOrigin(integers=False, wide=current in self._inputs)
            else:
                origins = [self._origins[source] for source in sources]
                self._origins[current] = self._join_origins(node, origins)
        return self._origins[value]

    def _join_origins(self, node: ir.Node, sources: Sequence[ValueOrigin]) -> ValueOrigin:
        wide = bool(sources) and all(origin.wide for origin in sources)
        integers = any(origin.integers for origin in sources)
        if node.op_type == "Range" or (node.op_type == "Cast" and self._widens_integers(node)):
            return ValueOrigin(integers=True, wide=True)
        if node.op_type in PRODUCTS:
            return ValueOrigin(integers=wide and integers, wide=wide and integers)
        return ValueOrigin(integers, wide=wide or integers)

    def _widens_integers(self, node: ir.Node) -> bool:
        source = node.inputs[0]
        if source is None or self._kinds.get(source) in (ValueKind.FLOAT, ValueKind.FLOATS):
            return False
        dtype = source.dtype
        if dtype is None:
            return True
        return dtype == ir.DataType.DOUBLE or (dtype.is_integer() and dtype.bitwidth >= _SMALL)

    def _list_read(self, node: ir.Node) -> list[ir.Value]:
        """Return the float32 values that a node reads, small constants aside."""
        return [
            value
            for value in node.inputs
            if value is not None
            and self._kinds.get(value) is ValueKind.FLOAT
            and ((tensor := edit.const_tensor(value)) is None or tensor.size > _FEW)
        ]


def _carries(node: ir.Node) -> bool:
    return not node.domain and (node.op_type == "Cast" or node.op_type in CARRIERS | PRODUCTS)


def _casts_to_integer(node: ir.Node) -> bool:
    to = ir.DataType(edit.read_attribute(node, "to", 1))
    return node.op_type == "Cast" and to.is_integer()
