"""Integers in a graph: pairs, grids, and which inputs of integer operators are what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortune.graph.ir import edit

MICROSOFT = "com.microsoft"
"""The domain of onnxruntime's own operators."""
_DOMAINS = ("", "ai.onnx", MICROSOFT)


@dataclass(frozen=True)
class Port:
    """Integer inputs and outputs of one node that have one dtype and move together."""

    ins: tuple[int, ...]
    outs: tuple[int, ...] = ()
    # Indices of inputs that hold zero points (or fill values) of the same dtype; one that is left
    # out means 0.
    zeros: tuple[int, ...] = ()


_MOVING_TEXT = (
    "DepthToSpace Expand Flatten Gather GatherElements GatherND Identity MaxPool ReduceMax "
    "ReduceMin Reshape Slice SpaceToDepth Squeeze Tile Transpose Unsqueeze"
)
_MOVERS = {
    **dict.fromkeys(_MOVING_TEXT.split(), Port((0,), (0,))),
    "Where": Port((1, 2), (0,)),
    "ArgMax": Port((0,)),
    "ArgMin": Port((0,)),
}
"""Operators that hand integers on, or only compare them: any zero point will do."""

_UNARY_TEXT = "Sigmoid LeakyRelu Softmax AveragePool GlobalAveragePool ReduceMean"
_ACTIVATIONS = {
    **{f"QLinear{op}": (Port((0,), (0,), (2, 4)),) for op in _UNARY_TEXT.split()},
    "QuantizeLinear": (Port((), (0,), (2,)),),
    "DequantizeLinear": (Port((0,), (), (2,)),),
    "QLinearConv": (Port((0,), (0,), (2, 7)),),
    "QLinearMatMul": (Port((0,), (0,), (2, 7)), Port((3,), (), (5,))),
    "QLinearAdd": (Port((0, 3), (0,), (2, 5, 7)),),
    "QLinearMul": (Port((0, 3), (0,), (2, 5, 7)),),
    "QLinearWhere": (Port((1, 4), (0,), (3, 6, 8)),),
    "QGemm": (Port((0,), (0,), (2, 8)),),
    "MatMulInteger": (Port((0,), (), (2,)),),
    "MatMulIntegerToFloat": (Port((0,), (), (4,)),),
}
"""Operators whose activations are integers with zero points of their own."""

WEIGHTS = {
    "QLinearConv": ((3, 5),),
    "QLinearMatMul": ((3, 5),),
    "QGemm": ((3, 5),),
    "MatMulInteger": ((1, 3),),
    "MatMulIntegerToFloat": ((1, 5),),
    "DynamicQuantizeMatMul": ((1, 3),),
    "DynamicQuantizeLSTM": ((1, 9), (2, 11)),
    "QAttention": ((1, 7),),
}
"""Operators whose integer weight may be signed: inputs of weight and zero point."""


def has_runtime_domain(node: ir.Node) -> bool:
    """Say whether the node is of the standard or of onnxruntime's domain."""
    return node.domain in _DOMAINS


def list_ports(node: ir.Node) -> tuple[Port, ...]:
    """Return how integers go through a node; none for one that is not understood."""
    if not has_runtime_domain(node):
        return ()
    if node.op_type == "QGemm" and find_input(node, 7) is None:
        return (Port((0,), (), (2,)),)  # its result is float
    if (ports := _ACTIVATIONS.get(node.op_type)) is not None:
        return ports
    match node.op_type:
        case "Concat":
            return (Port(tuple(range(len(node.inputs))), (0,)),)
        case "QLinearConcat":
            count = (len(node.inputs) - 2) // 3
            values = tuple(2 + 3 * i for i in range(count))
            return (Port(values, (0,), (1, *(i + 2 for i in values))),)
        case "Split":
            return (Port((0,), tuple(range(len(node.outputs)))),)
        case "Pad":
            fill = (2,) if edit.read_attribute(node, "mode", "constant") == "constant" else ()
            return (Port((0,), (0,), fill),)
        case _:
            mover = _MOVERS.get(node.op_type)
            return () if mover is None or node.domain == MICROSOFT else (mover,)


def find_runtime_producer(value: ir.Value | None, *ops: str) -> ir.Node | None:
    """Return the node behind a value when it is one of these of a domain known here."""
    node = value.producer() if value is not None else None
    return node if node is not None and has_runtime_domain(node) and node.op_type in ops else None


def find_input(node: ir.Node, index: int) -> ir.Value | None:
    """Return an input, None when it is left out."""
    return node.inputs[index] if index < len(node.inputs) else None


def set_input(node: ir.Node, index: int, value: ir.Value) -> None:
    """Set an input that may not be there yet."""
    if index >= len(node.inputs):
        node.resize_inputs(index + 1)
    node.replace_input_with(index, value)


@dataclass(frozen=True)
class ConstantGrid:
    """The constant grid of a pair's node."""

    scale: NDArray[Any]  # float, scalar or one a channel
    zero: NDArray[Any]  # of the integers' dtype and the shape of `scale`
    axis: int  # channel axis; it counts only where `scale` has more than one element

    @property
    def single(self) -> bool:
        """One grid over the whole tensor."""
        return self.scale.size == 1

    def is_same_grid(self, other: ConstantGrid) -> bool:
        """Say whether equal integers stand for equal numbers on both."""
        return (
            self.scale.dtype == other.scale.dtype
            and self.zero.dtype == other.zero.dtype
            and np.array_equal(self.scale.reshape(-1), other.scale.reshape(-1))
            and np.array_equal(self.zero.reshape(-1), other.zero.reshape(-1))
            and (self.single or self.axis == other.axis)
        )


def read_grid(node: ir.Node) -> ConstantGrid | None:
    """Return the grid of a QuantizeLinear or DequantizeLinear; None unless it is constant.

    Blocked grids and integers of fewer than 8 bits are not read.
    """
    scale = edit.const_array(find_input(node, 1))
    if scale is None or scale.ndim > 1 or edit.read_attribute(node, "block_size", 0):
        return None
    zero = edit.const_array(find_input(node, 2))
    if zero is None:
        if find_input(node, 2) is not None:
            return None
        dtype = _find_integer_type(node)
        if dtype is None:
            return None
        zero = np.zeros(scale.shape, dtype)
    if zero.dtype.kind not in "iu" or zero.size != scale.size:
        return None
    return ConstantGrid(scale, zero, int(edit.read_attribute(node, "axis", 1)))


def quantize_array(values: NDArray[Any], on: ConstantGrid) -> NDArray[Any]:
    """Round as QuantizeLinear does: half to even in the dtype of the values, saturated."""
    limits = np.iinfo(on.zero.dtype)
    scale = reshape_for_axis(on.scale, on, values.ndim)
    zero = reshape_for_axis(on.zero, on, values.ndim)
    wide = np.rint(values / scale.astype(values.dtype)) + zero.astype(values.dtype)
    return np.asarray(np.clip(wide, limits.min, limits.max), on.zero.dtype)


def reshape_for_axis(array: NDArray[Any], on: ConstantGrid, rank: int) -> NDArray[Any]:
    """Shape a grid's scale or zero point so that it broadcasts with a tensor of this rank."""
    if on.single:
        return array.reshape(())
    shape = [1] * rank
    shape[on.axis] = -1
    return array.reshape(shape)


def is_weight(value: ir.Value | None) -> bool:
    """Say whether a value is the float form of constant integers: a DequantizeLinear of one."""
    node = find_runtime_producer(value, "DequantizeLinear")
    return node is not None and edit.const_tensor(node.inputs[0]) is not None


def is_rounded(value: ir.Value | None) -> bool:
    """Say whether a value comes out of a DequantizeLinear of an activation."""
    node = find_runtime_producer(value, "DequantizeLinear")
    return node is not None and edit.const_tensor(node.inputs[0]) is None


def is_integer(value: ir.Value | None) -> bool:
    """Say whether a value comes out of any DequantizeLinear."""
    return find_runtime_producer(value, "DequantizeLinear") is not None


def list_consumers(value: ir.Value) -> Sequence[ir.Node]:
    """Return the nodes that read a value, each once."""
    return list(dict.fromkeys(node for node, _ in value.uses()))


def _find_integer_type(node: ir.Node) -> np.dtype[Any] | None:
    """Return the dtype of the integers where no zero point says it."""
    dtype = find_element_type(node.inputs[0])
    if node.op_type == "QuantizeLinear":
        code = int(edit.read_attribute(node, "output_dtype", 0))
        dtype = ir.DataType(code) if code else ir.DataType.UINT8
    whole = dtype is not None and dtype.name in ("INT8", "UINT8", "INT16", "UINT16", "INT32")
    return np.dtype(dtype.numpy()) if whole and dtype is not None else None


def find_element_type(value: ir.Value | None) -> ir.DataType | None:
    """Return a value's type: that of the tensor of a constant, else what is known of it."""
    tensor = edit.const_tensor(value)
    if tensor is not None:
        return tensor.dtype
    return value.dtype if value is not None else None
