"""The 16-bit formats, and which nodes must stay in float32 by what was measured.

A 16-bit format has a largest value L, a smallest normal value S and a unit roundoff u (float16:
65504, 6.1e-5, 2**-11; bfloat16: 3.4e38, 1.2e-38, 2**-8). With a safety margin m and the largest
relative error e that one operator may make of the rounding of its inputs, a node is pinned when

overflow     m |x| > L for an input or output x. (Masks, beyond 1e30, stand for infinity.)
sum          m times what a reduction adds up on its way is > L: the sum of |x| in a mean, of x**2
             in a norm. It bounds every partial sum in any order, and 65504 is passed by means
             that are themselves small: 1 over 256 x 256 pixels.
vanish       S u / max |x| > e: below S values are S u apart, so that even the largest is off by e.
divisor      S u / min |x| > e where a tiny x is divided by, or its root or logarithm is taken.
step         |x| u > e where an absolute error counts: Softmax, sines, rounding to integers. The
             same argument makes TensorRT Model Optimizer's AutoCast pin all beyond 512, where
             float16 is 1/2 apart; here only operators that are hurt by it.
cancel       u max |in| / max |out| > e in Add, Sub and Sum: the condition number of a sum
             (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed. 2002, 1.7 and 4.2).
products     Only for runtimes that add up products in 16 bits: m max |x| max sum |w| > L, or
             sqrt(K) u > e for K products (Higham and Mary, SIAM J. Sci. Comput. 41(5), 2019).
"""

import enum
import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from ortune.core.errors import Refused
from ortune.core.observer import Observer, Probe, Ranges
from ortune.core.plugins import catalog, codec
from ortune.graph.io.wellformed import load_schema
from ortune.graph.ir import edit
from ortune.quantizers.common.layers import find_layers

MASK = 1e30
"""Magnitudes beyond this stand for infinity: constants are clipped, not kept in float32."""


@dataclass(frozen=True)
class Format:
    """A type narrower than float32."""

    dtype: ir.DataType
    numpy: Any  # the same in numpy, by ml_dtypes where numpy has none
    largest: float
    smallest: float  # normal value: below it digits are lost one by one
    roundoff: float  # largest relative error of rounding to nearest, 2 ** -digits

    @property
    def name(self) -> str:
        """The format's name in numpy and ONNX."""
        return self.dtype.name.lower()

    @property
    def types(self) -> frozenset[str]:
        """The format's names in operator schemas."""
        return frozenset({f"tensor({self.name})", f"seq(tensor({self.name}))"})

    def round_values(self, values: NDArray[Any]) -> NDArray[Any]:
        """Round to nearest; what stands for infinity becomes the largest value."""
        kept = np.where(np.isinf(values), values, np.clip(values, -self.largest, self.largest))
        return kept.astype(self.numpy)

    def can_hold(self, values: NDArray[Any], *, may_vanish: bool) -> bool:
        """A constant fits unless it overflows, or all of it would lose its leading digits."""
        if not values.size:
            return True
        largest = max(float(np.max(values)), -float(np.min(values)))
        if largest > self.largest:
            size = np.abs(values)
            return bool(np.all((size <= self.largest) | (size >= MASK)))
        return may_vanish or largest == 0 or largest >= self.smallest or np.isnan(largest)


FLOAT16 = Format(ir.DataType.FLOAT16, np.float16, 65504.0, 2.0**-14, 2.0**-11)
BFLOAT16 = Format(
    ir.DataType.BFLOAT16, ml_dtypes.bfloat16, (2 - 2.0**-7) * 2.0**127, 2.0**-126, 2.0**-8
)


class ValueKind(enum.Enum):
    """What matters of a value's type."""

    FLOAT = "tensor(float)"
    FLOATS = "seq(tensor(float))"
    OTHER = "other"


CONTROL = ("If", "Loop", "Scan")
"""Operators whose bodies are converted with them."""

LIKE = ("Bernoulli", "EyeLike", "RandomNormalLike", "RandomUniformLike")
"""Operators whose output has the input's type unless an attribute names another."""


def list_formal_parameters(
    parameters: Sequence[onnx.defs.OpSchema.FormalParameter], count: int
) -> Iterator[onnx.defs.OpSchema.FormalParameter | None]:
    """Yield the formal parameter of each of `count` arguments; the last may be variadic."""
    for index in range(count):
        yield parameters[min(index, len(parameters) - 1)] if parameters else None


def infer_value_kinds(model: ir.Model) -> dict[ir.Value, ValueKind]:
    """Return the kind of every value of the main graph and its bodies.

    Declared types count first; where shape inference left none, the schema's type variables are
    followed from inputs to outputs.
    """
    value_kinds: dict[ir.Value, ValueKind] = {}
    _infer_graph_kinds(model.graph, value_kinds, model.opset_imports)
    return value_kinds


def _infer_graph_kinds(
    graph: ir.Graph, value_kinds: dict[ir.Value, ValueKind], versions: dict[str, int]
) -> None:
    for value in (*graph.inputs, *graph.initializers.values()):
        value_kinds[value] = _read_declared_kind(value) or ValueKind.OTHER
    for node in graph:
        for body in edit.list_bodies(node):
            _infer_graph_kinds(body, value_kinds, versions)
        kinds = _infer_output_kinds(node, value_kinds, versions)
        for value, kind in zip(node.outputs, kinds, strict=True):
            value_kinds[value] = _read_declared_kind(value) or kind


def _read_declared_kind(value: ir.Value) -> ValueKind | None:
    match value.type:
        case None:
            return None
        case ir.TensorType(dtype=ir.DataType.FLOAT):
            return ValueKind.FLOAT
        case ir.SequenceType(elem_type=ir.TensorType(dtype=ir.DataType.FLOAT)):
            return ValueKind.FLOATS
        case _:
            return ValueKind.OTHER


def _infer_output_kinds(
    node: ir.Node, value_kinds: dict[ir.Value, ValueKind], versions: dict[str, int]
) -> list[ValueKind]:
    count = len(node.outputs)
    if (by_attribute := _infer_from_attribute(node)) is not None:
        return [by_attribute] * count
    if node.op_type in LIKE and node.inputs[0] is not None:
        return [value_kinds.get(node.inputs[0], ValueKind.OTHER)]
    if inner := list(edit.list_bodies(node)):
        skip = {"Loop": 1}.get(node.op_type, 0)
        body_kinds = [value_kinds.get(value, ValueKind.OTHER) for value in inner[0].outputs[skip:]]
        return (body_kinds + [ValueKind.OTHER] * count)[:count]
    op_schema = load_schema(node.op_type, node.domain, versions.get(node.domain, 1))
    input_kinds = [
        ValueKind.OTHER if value is None else value_kinds.get(value, ValueKind.OTHER)
        for value in node.inputs
    ]
    if op_schema is None:
        return [input_kinds[0] if input_kinds else ValueKind.OTHER] * count
    bound: dict[str, ValueKind] = {}
    parameters = list_formal_parameters(op_schema.inputs, len(input_kinds))
    for kind, parameter in zip(input_kinds, parameters, strict=True):
        if parameter is not None and kind is not ValueKind.OTHER:
            bound.setdefault(parameter.type_str, kind)
    result = []
    for parameter in list_formal_parameters(op_schema.outputs, count):
        text = parameter.type_str if parameter else ""
        is_float = text in (ValueKind.FLOAT.value, ValueKind.FLOATS.value)
        fixed = ValueKind(text) if is_float else ValueKind.OTHER
        result.append(bound.get(text, fixed))
    return result


def _infer_from_attribute(node: ir.Node) -> ValueKind | None:
    """The kind of what an attribute types, None for all other nodes."""
    if node.domain:
        return None
    match node.op_type:
        case "Constant":
            tensor = edit.const_tensor(node.outputs[0])
            dtype = None if tensor is None else tensor.dtype
        case "ConstantOfShape":
            value = edit.read_attribute(node, "value", None)
            dtype = ir.DataType.FLOAT if value is None else value.dtype
        case "Cast":
            dtype = ir.DataType(edit.read_attribute(node, "to", 0))
        case "SequenceEmpty":
            is_float = edit.read_attribute(node, "dtype", 1) == ir.DataType.FLOAT
            return ValueKind.FLOATS if is_float else ValueKind.OTHER
        case "RandomNormal" | "RandomUniform":
            dtype = ir.DataType(edit.read_attribute(node, "dtype", 1))
        case op if op in LIKE and "dtype" in node.attributes:
            dtype = ir.DataType(edit.read_attribute(node, "dtype", 0))
        case _:
            return None
    return ValueKind.FLOAT if dtype == ir.DataType.FLOAT else ValueKind.OTHER


def find_sequence_nodes(
    model: ir.Model, value_kinds: Mapping[ir.Value, ValueKind]
) -> frozenset[ir.Node]:
    """Return what makes or reads sequences that are inputs or outputs: no Cast takes one.

    Raises:
        Refused: A control operator makes or reads one, whose body would be converted.
    """
    ends = (*model.graph.inputs, *model.graph.outputs)
    todo = [value for value in ends if value_kinds.get(value) is ValueKind.FLOATS]
    nodes: set[ir.Node] = set()
    while todo:
        value = todo.pop()
        makers = [maker] if (maker := value.producer()) is not None else []
        for node in {*makers, *(use.node for use in value.uses())} - nodes:
            if node.op_type in CONTROL:
                raise Refused(
                    f"sequence '{value.name}' passes through {node.op_type} and is an input or "
                    "output, which keeps its float32",
                    fix="give keep_io=false, or leave the step out",
                )
            nodes.add(node)
            touched = (*node.inputs, *node.outputs)
            todo += [v for v in touched if v and value_kinds.get(v) is ValueKind.FLOATS]
    return frozenset(nodes)


SUMS = ("GlobalAveragePool", "ReduceL1", "ReduceLogSum", "ReduceMean", "ReduceSum")
"""Operators that add up what they read."""

_SQUARES_TEXT = (
    "GlobalLpPool InstanceNormalization LpNormalization MeanVarianceNormalization ReduceL2 "
    "ReduceSumSquare"
)
SQUARES = tuple(_SQUARES_TEXT.split())
"""Operators that add up squares. LayerNormalization and its like do so in float32, by the standard
(``stash_type``)."""

STEPS = ("Ceil", "Cos", "Floor", "LogSoftmax", "Mod", "Round", "Sin", "Softmax", "Tan")
"""Operators that turn an absolute error into a relative one, or into a wrong integer."""

PRECISE = ("cancel", "divisor", "step")
"""Rules by which what makes the inputs stays in float32 with the node."""

_MOVERS_TEXT = "Expand Flatten Gather Identity Reshape Slice Squeeze Transpose Unsqueeze"
MOVERS = tuple(_MOVERS_TEXT.split())
"""Operators that move values and compute nothing."""

DIVIDED = {"Div": 1, "Log": 0, "Reciprocal": 0, "Sqrt": 0}
"""Operators that magnify the relative error of tiny inputs, with the input that matters."""


@dataclass(frozen=True)
class Pin:
    """A node that stays in float32: what was measured, and which of the rules it breaks."""

    node: ir.Node
    value: float
    rule: str

    def __str__(self) -> str:
        return f"{self.node.name} ({self.rule} {self.value:.3g})"


@dataclass(frozen=True)
class Rules:
    """How strictly measured values are judged."""

    format: Format
    margin: float  # unseen values may be this many times larger than those measured
    loss: float  # largest relative error that an operator may make of its inputs' rounding
    wide_sums: bool  # products are added up in float32

    def can_overflow(self, value: float) -> bool:
        """A value may overflow."""
        return self.margin * value > self.format.largest

    def loses_digits(self, value: float) -> bool:
        """A value that is not zero loses its leading digits."""
        return 0 < value * self.loss < self.format.smallest * self.format.roundoff

    def exceeds_loss(self, factor: float) -> bool:
        """Rounding errors grow too large when multiplied by this."""
        return factor * self.format.roundoff > self.loss


def list_probes(nodes: Sequence[ir.Node], kinds: Mapping[ir.Value, ValueKind]) -> list[Probe]:
    """Return what has to be measured for the rules."""
    finite = _make_observer("finite")
    values = (value for node in nodes for value in list_float_values(node, kinds))
    probes = [Probe(str(value.name), finite) for value in values]
    probes += [probe for node in nodes for probe in _list_inner_probes(node, kinds)]
    return list(dict.fromkeys(probes))


def find_pins(
    nodes: Sequence[ir.Node], kinds: Mapping[ir.Value, ValueKind], ranges: Ranges, rules: Rules
) -> list[Pin]:
    """Return the nodes to pin, in their order, each by the first rule that it breaks."""
    judge = _Judge(kinds, ranges, rules)
    pins_by_node = {node: pin for node in nodes if (pin := judge.judge_node(node)) is not None}
    candidates = set(nodes)
    todo = [node for node in nodes if node in pins_by_node and pins_by_node[node].rule in PRECISE]
    while todo:
        node = todo.pop()
        for value in judge.list_culprits(node) if node.op_type not in MOVERS else node.inputs[:1]:
            maker = None if value is None else value.producer()
            if maker is not None and maker in candidates and maker not in pins_by_node:
                pins_by_node[maker] = Pin(maker, pins_by_node[node].value, pins_by_node[node].rule)
                if maker.op_type in MOVERS:
                    todo.append(maker)
    return [pins_by_node[node] for node in nodes if node in pins_by_node]


def list_float_values(node: ir.Node, kinds: Mapping[ir.Value, ValueKind]) -> Iterator[ir.Value]:
    """Yield what a node reads and writes in float32, constants aside."""
    for value in (*node.inputs, *node.outputs):
        is_float = value is not None and value.name and kinds.get(value) is ValueKind.FLOAT
        if value is not None and is_float and edit.const_tensor(value) is None:
            yield value


class _Judge:
    def __init__(self, kinds: Mapping[ir.Value, ValueKind], ranges: Ranges, rules: Rules) -> None:
        self._kinds, self._ranges, self._rules = kinds, ranges, rules

    def judge_node(self, node: ir.Node) -> Pin | None:
        rules = self._rules
        values = list(list_float_values(node, self._kinds))
        peak = max((self._find_peak(value) for value in values), default=0.0)
        if rules.can_overflow(peak):
            return Pin(node, peak, "overflow")
        for probe in _list_inner_probes(node, self._kinds):
            seen = self._ranges.get(probe.key)
            if seen is None:
                continue
            if node.op_type in DIVIDED:
                if rules.loses_digits(seen.low):
                    return Pin(node, seen.low, "divisor")
            elif rules.can_overflow(seen.high):
                return Pin(node, seen.high, "sum")
        if any(
            rules.loses_digits(self._find_peak(value)) for value in node.outputs if value in values
        ):
            return Pin(node, max(self._find_peak(value) for value in node.outputs), "vanish")
        if rules.exceeds_loss(factor := self._compute_magnification(node)):
            return Pin(node, factor, "cancel" if node.op_type in _ADDS else "step")
        return None if rules.wide_sums else self._judge_products(node)

    def list_culprits(self, node: ir.Node) -> list[ir.Value]:
        """Return the inputs whose rounding would hurt: what makes them must not round either."""
        if node.op_type in DIVIDED:
            return [value for value in (node.inputs[DIVIDED[node.op_type]],) if value is not None]
        values = [value for value in node.inputs if value is not None]
        if node.op_type not in _ADDS:
            return values[:1]
        out = self._find_peak(node.outputs[0])
        return [x for x in values if self._rules.exceeds_loss(self._find_peak(x) / out)]

    def _compute_magnification(self, node: ir.Node) -> float:
        """By how much the node multiplies the rounding errors of its inputs."""
        values = [value for value in node.inputs if value is not None]
        if not values or self._kinds.get(values[0]) is not ValueKind.FLOAT:
            return 0.0
        match node.op_type:
            case "Softmax" | "LogSoftmax":
                seen = self._ranges.get(str(values[0].name))
                return abs(seen.high) if seen else 0.0
            case "Cast":
                to = ir.DataType(edit.read_attribute(node, "to", 1))
                return self._find_peak(values[0]) if to.is_integer() else 0.0
            case op if op in STEPS:
                return self._find_peak(values[0])
            case op if op in _ADDS:
                out = self._find_peak(node.outputs[0])
                return max(map(self._find_peak, values)) / out if out else 0.0
            case _:
                return 0.0

    def _judge_products(self, node: ir.Node) -> Pin | None:
        layer = next(find_layers([node], ("Conv", "ConvTranspose", "MatMul", "Gemm")), None)
        if layer is None:
            return None
        terms = math.prod(layer.shape) // max(layer.shape[layer.axis], 1)
        # Return the largest sum of magnitudes that one output multiplies its inputs with.
        array = np.abs(layer.read_weight())
        other_axes = tuple(axis for axis in range(array.ndim) if axis != layer.axis)
        sums = array.sum(axis=other_axes, dtype=np.float64)
        bound = self._find_peak(layer.x) * float(sums.max(initial=0.0))
        if self._rules.can_overflow(bound):
            return Pin(node, bound, "products")
        if self._rules.exceeds_loss(math.sqrt(terms)):
            return Pin(node, math.sqrt(terms), "products")
        return None

    def _find_peak(self, value: ir.Value | None) -> float:
        """Return the largest magnitude; 0 where nothing is known."""
        if value is None:
            return 0.0
        seen = self._ranges.get(str(value.name))
        if seen is not None:
            return max(abs(seen.low), abs(seen.high))
        array = edit.const_array(value)
        if array is None or array.dtype.kind != "f" or not array.size:
            return 0.0
        finite = np.abs(array[np.isfinite(array)])
        return float(finite.max(initial=0.0))


_ADDS = ("Add", "Sub", "Sum")


def _list_inner_probes(node: ir.Node, kinds: Mapping[ir.Value, ValueKind]) -> Iterator[Probe]:
    index = DIVIDED.get(node.op_type, 0)
    if node.domain or len(node.inputs) <= index:
        return
    x = node.inputs[index]
    if x is None or kinds.get(x) is not ValueKind.FLOAT or edit.const_tensor(x) is not None:
        return
    if node.op_type in DIVIDED:
        yield Probe(str(x.name), _make_observer("magnitude"), f"{x.name}:magnitude")
    elif node.op_type in (*SUMS, *SQUARES) and (axes := _find_reduction_axes(node, x)) is not None:
        power = 2 if node.op_type in SQUARES else 1
        name = f"{x.name}:sums{list(axes)}^{power}"
        yield Probe(str(x.name), _make_observer("sums", axes=axes, power=power), name)


def _find_reduction_axes(node: ir.Node, x: ir.Value) -> tuple[int, ...] | None:
    """Return the axes of a reduction, () for all; None when they are not known."""
    rank = None if x.shape is None else len(x.shape)
    match node.op_type:
        case "LpNormalization":
            return (int(edit.read_attribute(node, "axis", -1)),)
        case "MeanVarianceNormalization":
            return tuple(edit.read_attribute(node, "axes", (0, 2, 3)))
        case "GlobalAveragePool" | "GlobalLpPool" | "InstanceNormalization":
            return None if rank is None else tuple(range(2, rank))
    if len(node.inputs) > 1 and node.inputs[1] is not None:
        array = edit.const_array(node.inputs[1])
        axes = None if array is None else tuple(int(axis) for axis in array.ravel())
    else:
        axes = tuple(edit.read_attribute(node, "axes", ()))
    if axes == () and edit.read_attribute(node, "noop_with_empty_axes", 0):
        return None
    return axes


@functools.cache
def _make_observer(name: str, axes: tuple[int, ...] | None = None, power: int = 1) -> Observer:
    fields = {} if axes is None else {"axes": axes, "power": power}
    observer: Observer = codec.build_dataclass(catalog.load_plugin(Observer, name), fields)
    return observer
