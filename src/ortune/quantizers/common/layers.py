"""Layers: nodes that multiply an activation by a constant weight, and how they are found."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortune.core.errors import Refused
from ortune.core.wording import format_count
from ortune.graph.ir import edit, evaluate
from ortune.quantizers.common.nodes import remember_names

_WEIGHTED = ("Conv", "ConvTranspose", "Gemm", "MatMul", "LSTM", "GRU", "RNN")


@dataclass(frozen=True)
class Layer:
    """One node with its parts; the bias may be constant or not, or None."""

    node: ir.Node
    x: ir.Value
    weight: ir.Value
    axis: int
    bias: ir.Value | None = None

    @property
    def op(self) -> str:
        """The operator."""
        return self.node.op_type

    @property
    def convolves(self) -> bool:
        """Its integer kernel has no float output."""
        return self.op in ("Conv", "ConvTranspose")

    @property
    def shape(self) -> tuple[int, ...]:
        """The weight's shape as the node sees it, read without its data."""
        source, order = resolve_transpose(self.weight)
        tensor = edit.const_tensor(source)
        assert tensor is not None
        return tuple(tensor.shape.numpy()[i] for i in order)

    def read_weight(self) -> NDArray[Any]:
        """Read the weight, or a Transpose of it (a tied embedding), as the node sees it."""
        source, order = resolve_transpose(self.weight)
        array = edit.const_array(source)
        assert array is not None
        straight = order == tuple(range(array.ndim))
        return array if straight else np.ascontiguousarray(array.transpose(order))


MASK = 1e30
"""Magnitudes from here on stand for infinity: no grid covers them and the other values."""

_BOUNDED = "ortune.bounded"


def has_bounded_values(value: ir.Value | None) -> bool:
    """Say whether a constant holds no infinity, no NaN and no mask; a grid can cover it then.

    What is no constant is not judged. The answer is kept as long as the constant is.
    """
    source = None if value is None else resolve_transpose(value)[0]
    tensor = edit.const_tensor(source)
    if source is None or tensor is None or tensor.dtype not in _FLOATS or not tensor.size:
        return True
    kept = source.meta.get(_BOUNDED)
    if kept is None or kept[0] is not tensor:
        array = edit.const_array(source)
        assert array is not None
        with np.errstate(invalid="ignore"):
            low, high = float(array.min()), float(array.max())
        kept = source.meta[_BOUNDED] = (tensor, low > -MASK and high < MASK)
    return bool(kept[1])


_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE, ir.DataType.BFLOAT16)


def note_unbounded_weights(model: ir.Model, ops: Collection[str]) -> str:
    """Note nodes that an infinity or NaN keeps in float; return words in brackets, or none."""
    nodes = [node for node in edit.walk_nodes(model) if node.op_type in ops]
    nodes = [node for node in nodes if not all(map(has_bounded_values, node.inputs))]
    for node in nodes:
        edit.note_refusal(model, node, "in float: the weight holds infinity or NaN")
    return f" ({format_count(len(nodes), 'weight')} with infinity or NaN)" if nodes else ""


def flatten_model(model: ir.Model) -> None:
    """Inline local functions, and let nodes read constants themselves, not through an Identity.

    Every quantizer begins so: a weight that exporters hand to its second and later readers through
    an Identity, or a Reshape or Cast that changes nothing, is one value then, and is stored once.
    Names of nodes that go may still be given.
    """
    remember_names(model)
    edit.inline_functions(model)
    for node in edit.walk_nodes(model):
        source = _find_equal_constant(node)
        if source is not None:
            for use in node.outputs[0].uses():  # an output of a graph keeps its Identity
                use.node.replace_input_with(use.idx, source)
            while not edit.is_read(node.outputs[0]):
                before = node.inputs[0].producer() if node.inputs[0] is not None else None
                edit.remove_node(node)
                if before is None or before.op_type not in _HANDS_ON:
                    break
                node = before


_HANDS_ON = frozenset({"Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"})
"""Operators that leave the order of elements alone."""


def _find_equal_constant(node: ir.Node) -> ir.Value | None:
    """Return the constant, perhaps turned by a Transpose, that a node hands on as it is."""
    value, passed = node.outputs[0], list[ir.Node]()
    while (maker := value.producer()) is not None and maker.op_type in _HANDS_ON:
        if maker.domain or maker.inputs[0] is None:
            break
        passed.append(maker)
        value = maker.inputs[0]
    base, axes = resolve_transpose(value)
    tensor = edit.const_tensor(base)
    if not passed or tensor is None:
        return None
    if any(m.op_type == "Cast" and m.attributes["to"].as_int() != tensor.dtype for m in passed):
        return None
    if all(maker.op_type in ("Cast", "Identity") for maker in passed):
        return value
    shape = edit.shape_of(node.outputs[0])
    if shape is None and node.op_type == "Reshape":
        target = edit.const_array(node.inputs[1])
        shape = None if target is None else tuple(target.tolist())
    sizes = tensor.shape.numpy()
    return value if shape == tuple(sizes[axis] for axis in axes) else None


def find_layers(nodes: Iterable[ir.Node], ops: Sequence[str]) -> Iterator[Layer]:
    """Yield what has a constant, non-empty float32 weight among the nodes, in their order.

    A weight that holds infinity or NaN is none: it stays as it is.
    """
    for node in nodes:
        if node.op_type in ops and node.domain in ("", "ai.onnx"):
            layer = _read_layer(node)
            if layer is not None and len(layer.shape) >= 2 and 0 not in layer.shape:
                yield layer


def _read_layer(node: ir.Node) -> Layer | None:
    x, weight, bias = [*node.inputs, None, None, None][:3]
    if x is None or weight is None or edit.const_tensor(x) is not None:
        return None
    tensor = edit.const_tensor(resolve_transpose(weight)[0])
    if tensor is None or tensor.dtype != ir.DataType.FLOAT or not has_bounded_values(weight):
        return None
    axes = {"Conv": 0, "ConvTranspose": 1, "MatMul": len(tensor.shape) - 1}
    if not edit.read_attribute(node, "transA", 0):
        axes["Gemm"] = 0 if edit.read_attribute(node, "transB", 0) else 1
    axis = axes.get(node.op_type)
    return None if axis is None else Layer(node, x, weight, axis, bias)


def is_last(node: ir.Node, nodes: Collection[ir.Node]) -> bool:
    """Whether none of the nodes reads, at any distance, what a node makes."""
    ahead, seen = [node], {node}
    while ahead:
        for reader in ahead.pop().successors():
            if reader in nodes:
                return False
            if reader not in seen:
                seen.add(reader)
                ahead.append(reader)
    return True


def resolve_transpose(value: ir.Value) -> tuple[ir.Value, tuple[int, ...]]:
    """Return the constant behind a value and which of its axes each axis of the value is.

    For anything but a Transpose of a constant that is the value itself, axes in order (none when
    it is not constant).
    """
    node = value.producer()
    if node is not None and node.op_type == "Transpose" and not node.domain:
        source = node.inputs[0]
        tensor = edit.const_tensor(source)
        if source is not None and tensor is not None:
            rank = len(tensor.shape)
            return source, tuple(edit.read_attribute(node, "perm", range(rank)[::-1]))
    tensor = edit.const_tensor(value)
    return value, () if tensor is None else tuple(range(len(tensor.shape)))


PUTS_TOGETHER = frozenset(
    {"Concat", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"}
)
"""Operators that copy values and compute none."""

LARGEST = 64 << 20
"""Bytes of a weight that is put together in memory, at most."""


def evaluate_constant(value: ir.Value | None, opset: int) -> NDArray[Any] | None:
    """Return the array that a value has in every run, None when it depends on more."""
    array = edit.const_array(value)
    if array is not None or value is None:
        return array
    node = value.producer()
    if node is None or node.domain or node.op_type not in PUTS_TOGETHER:
        return None
    parts = [None if part is None else evaluate_constant(part, opset) for part in node.inputs]
    inputs = zip(node.inputs, parts, strict=True)
    if any(result is None for part, result in inputs if part is not None):
        return None
    if sum(part.nbytes for part in parts if part is not None) > LARGEST:
        return None
    result = evaluate.evaluate_node(node, parts, opset)
    return None if result is None else result[value.index() or 0]


def refuse_without_layers(model: ir.Model, why: str) -> NoReturn:
    """Refuse a model that has nothing to quantize; weights may only have to be computed first.

    Raises:
        Refused: Always.
    """
    fix = "see `ortune inspect` for the model's operators and dtypes"
    for node in edit.walk_nodes(model):
        maker = node.inputs[1].producer() if len(node.inputs) > 1 and node.inputs[1] else None
        if node.op_type not in _WEIGHTED or maker is None or maker.op_type == "DequantizeLinear":
            continue
        if maker.inputs and all(edit.const_tensor(v) is not None for v in maker.inputs if v):
            fix = f"apply simplify first: a {maker.op_type} of a constant makes the weights"
            break
    raise Refused(why, fix=fix)
