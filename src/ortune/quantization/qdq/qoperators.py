"""How each operator between pairs is written as one integer operator."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from ortune.model.graph import edit, qdq
from ortune.model.graph.qdq import MICROSOFT, Constants
from ortune.model.graph.uses import is_read, only_reader

UNARY = {
    "AveragePool": "QLinearAveragePool",
    "GlobalAveragePool": "QLinearGlobalAveragePool",
    "LeakyRelu": "QLinearLeakyRelu",
    "Sigmoid": "QLinearSigmoid",
    "Softmax": "QLinearSoftmax",
}
BINARY = {"Add": "QLinearAdd", "Mul": "QLinearMul"}
MOVING = (
    "DepthToSpace",
    "Flatten",
    "MaxPool",
    "Reshape",
    "Slice",
    "Squeeze",
    "Transpose",
    "Unsqueeze",
)
Inputs: TypeAlias = list[ir.Value | None]
NONE: tuple[None] = (None,)


@dataclass(frozen=True)
class Taken:
    """An integer operator in the place of a float one and the nodes around it.

    Attributes:
        op: Operator; of com.microsoft if `foreign`.
        last: The node whose output it makes: the QuantizeLinear, or the float node itself.
    """

    op: str
    inputs: Inputs
    attributes: dict[str, Any]
    last: ir.Node
    foreign: bool = False


@dataclass(frozen=True)
class Source:
    """Integers and their grid, as parts of an integer operator."""

    integers: ir.Value
    scale: ir.Value
    zero: ir.Value
    grid: Constants

    @property
    def parts(self) -> Inputs:
        """Integers, scale, zero point: the order of most operators."""
        return [self.integers, self.scale, self.zero]


class Operators:
    """Finds the integer operator of a node; constants are made scalars once."""

    def __init__(self, editor: edit.Editor) -> None:
        self._editor = editor
        self._scalars: dict[ir.Value, ir.Value] = {}

    def take(self, node: ir.Node) -> Taken | None:
        """Return what the node becomes, None when it stays in float."""
        if node.domain or len(node.outputs) < 1:
            return None
        match node.op_type:
            case "Conv":
                return self._conv(node)
            case "MatMul":
                return self._matmul(node)
            case "Gemm":
                return self._gemm(node)
            case "Concat":
                return self._concat(node)
            case op if op in UNARY:
                return self._unary(node)
            case op if op in BINARY:
                return self._binary(node)
            case op if op in MOVING:
                return self._moving(node)
            case _:
                return None

    def source(self, value: ir.Value | None, *, scalar: bool = True) -> Source | None:
        """Return the integers behind a DequantizeLinear, with a scalar grid unless a weight."""
        node = qdq.maker(value, "DequantizeLinear")
        grid = qdq.grid(node) if node is not None else None
        if node is None or grid is None or grid.zero.dtype not in (np.uint8, np.int8):
            return None
        if scalar and not grid.single:
            return None
        return self._source(node, node.inputs[0], grid)

    def end(self, node: ir.Node) -> tuple[ir.Node, Source] | None:
        """Return the QuantizeLinear behind a node; a Relu or Clip that it repeats is skipped."""
        behind = only_reader(node.outputs[0])
        if behind is not None and behind.op_type in ("Relu", "Clip") and not behind.domain:
            after = only_reader(behind.outputs[0])
            grid = qdq.grid(after) if after is not None else None
            if after is None or grid is None or not _repeats(behind, grid):
                return None
            behind = after
        if behind is None or behind.op_type != "QuantizeLinear" or not qdq.ours(behind):
            return None
        grid = qdq.grid(behind)
        if grid is None or not grid.single or grid.zero.dtype not in (np.uint8, np.int8):
            return None
        return behind, self._source(behind, behind.outputs[0], grid)

    def _source(self, node: ir.Node, integers: ir.Value | None, grid: Constants) -> Source:
        scale, zero = qdq.given(node, 1), qdq.given(node, 2)
        assert integers is not None and scale is not None
        if zero is None:
            zero = self._editor.constant(f"{node.name}_zero", grid.zero)
        if grid.single:
            scale, zero = self._scalar(scale), self._scalar(zero)
        return Source(integers, scale, zero, grid)

    def _scalar(self, value: ir.Value) -> ir.Value:
        array = edit.const_array(value)
        if array is None or array.ndim == 0:
            return value
        if value not in self._scalars:
            self._scalars[value] = self._editor.constant(f"{value.name}_scalar", array.reshape(()))
        return self._scalars[value]

    def _conv(self, node: ir.Node) -> Taken | None:
        x, end = self.source(node.inputs[0]), self.end(node)
        w = self.source(node.inputs[1], scalar=False)
        if x is None or w is None or end is None or not qdq.is_weight(node.inputs[1]):
            return None
        if not w.grid.single and w.grid.axis != 0:
            return None
        bias = self._bias(node, x, w)
        if bias is None or end[1].grid.zero.dtype != x.grid.zero.dtype:
            return None
        inputs = [*x.parts, *w.parts, end[1].scale, end[1].zero, *bias]
        return Taken("QLinearConv", inputs, dict(node.attributes), end[0])

    def _matmul(self, node: ir.Node) -> Taken | None:
        a, end = self.source(node.inputs[0]), self.end(node)
        b = self.source(node.inputs[1], scalar=False)
        if a is None or b is None or end is None:
            return None
        tensor = edit.const_tensor(b.integers)
        last = len(tensor.shape) - 1 if tensor is not None else None
        columns = b.grid.single or (last == 1 and b.grid.axis % 2 == 1)
        if not columns or end[1].grid.zero.dtype != a.grid.zero.dtype:
            return None
        return Taken("QLinearMatMul", [*a.parts, *b.parts, end[1].scale, end[1].zero], {}, end[0])

    def _gemm(self, node: ir.Node) -> Taken | None:
        a, b = self.source(node.inputs[0]), self.source(node.inputs[1], scalar=False)
        if a is None or b is None or edit.attribute(node, "beta", 1.0) != 1.0:
            return None
        channels = 0 if edit.attribute(node, "transB", 0) else 1
        if not b.grid.single and b.grid.axis % 2 != channels:
            return None
        bias = self._bias(node, a, b)
        alpha = float(edit.attribute(node, "alpha", 1.0))
        if bias is None or (alpha != 1.0 and bias):
            return None
        inputs: Inputs = [*a.parts, *b.parts, *(bias if bias else NONE)]
        end = self.end(node)
        if end is not None and end[1].grid.zero.dtype == a.grid.zero.dtype:
            return Taken(
                "QGemm", [*inputs, end[1].scale, end[1].zero], _without_beta(node), end[0], True
            )
        return Taken("QGemm", inputs, _without_beta(node), node, True)

    def _unary(self, node: ir.Node) -> Taken | None:
        x, end = self.source(node.inputs[0]), self.end(node)
        if x is None or end is None or end[1].grid.zero.dtype != x.grid.zero.dtype:
            return None
        attributes = dict(node.attributes)
        if node.op_type == "Softmax":
            attributes["opset"] = ir.AttrInt64("opset", 13)
            attributes.setdefault("axis", ir.AttrInt64("axis", -1))
        inputs = [*x.parts, end[1].scale, end[1].zero]
        return Taken(UNARY[node.op_type], inputs, attributes, end[0], True)

    def _binary(self, node: ir.Node) -> Taken | None:
        a, b, end = self.source(node.inputs[0]), self.source(node.inputs[1]), self.end(node)
        if a is None or b is None or end is None:
            return None
        if len({s.grid.zero.dtype for s in (a, b, end[1])}) > 1:
            return None
        inputs = [*a.parts, *b.parts, end[1].scale, end[1].zero]
        return Taken(BINARY[node.op_type], inputs, {}, end[0], True)

    def _concat(self, node: ir.Node) -> Taken | None:
        sources, end = [self.source(value) for value in node.inputs], self.end(node)
        if end is None:
            return None
        inputs: Inputs = [end[1].scale, end[1].zero]
        for one in sources:
            if one is None or one.grid.zero.dtype != end[1].grid.zero.dtype:
                return None
            inputs += one.parts
        return Taken("QLinearConcat", inputs, dict(node.attributes), end[0], True)

    def _moving(self, node: ir.Node) -> Taken | None:
        x, end = self.source(node.inputs[0]), self.end(node)
        if x is None or end is None or not x.grid.same(end[1].grid):
            return None
        if len(node.outputs) > 1 and node.outputs[1].uses():
            return None
        return Taken(node.op_type, [x.integers, *node.inputs[1:]], dict(node.attributes), end[0])

    def _bias(self, node: ir.Node, x: Source, w: Source) -> list[ir.Value] | None:
        """Return the bias in the steps of the product, no item without one; None: impossible."""
        value = qdq.given(node, 2)
        if value is None:
            return []
        steps = x.grid.scale.reshape(()).astype(np.float64) * w.grid.scale.reshape(-1)
        wide = qdq.maker(value, "DequantizeLinear")
        array = edit.const_array(value)
        if wide is not None:
            grid, held = qdq.grid(wide), edit.const_array(wide.inputs[0])
            if grid is None or held is None or held.dtype != np.int32 or grid.zero.any():
                return None
            if np.allclose(grid.scale.reshape(-1), steps, rtol=1e-5, atol=0):
                return [value for value in wide.inputs[:1] if value is not None]
            array = held * grid.scale.astype(np.float64)
        if array is None or array.ndim > 2 or array.size != array.shape[-1]:
            return None
        rounded = np.rint(array.reshape(-1) / steps)
        if np.abs(rounded).max(initial=0) > np.iinfo(np.int32).max:
            return None
        return [self._editor.constant(f"{value.name}_int32", rounded.astype(np.int32))]


def _without_beta(node: ir.Node) -> dict[str, Any]:
    return {name: held for name, held in node.attributes.items() if name != "beta"}


def _repeats(node: ir.Node, grid: Constants) -> bool:
    """Whether a grid ends where a Relu or Clip cuts, or within: it need not be written."""
    limits = np.iinfo(grid.zero.dtype)
    scale, zero = float(grid.scale.reshape(-1)[0]), int(grid.zero.reshape(-1)[0])
    low, high = (limits.min - zero) * scale, (limits.max - zero) * scale
    if node.op_type == "Relu":
        return low >= 0
    ends: Sequence[ir.Value | None] = [qdq.given(node, i) for i in (1, 2)]
    cuts = [edit.const_array(end) for end in ends]
    if any(end is not None and cut is None for end, cut in zip(ends, cuts, strict=True)):
        return False
    least = -np.inf if cuts[0] is None else float(cuts[0].reshape(-1)[0])
    most = np.inf if cuts[1] is None else float(cuts[1].reshape(-1)[0])
    slack = scale * 1e-3
    return low >= least - slack and high <= most + slack


def domain(taken: Taken) -> str:
    """Return the domain of the operator."""
    return MICROSOFT if taken.foreign else ""


def leftovers(graph: edit.Graph) -> Iterator[ir.Node]:
    """Yield DequantizeLinear and the like that nothing reads any more, last first."""
    for node in reversed(list(graph)):
        read = any(is_read(v) for v in node.outputs)
        if node.op_type in ("DequantizeLinear", "Relu", "Clip", "QuantizeLinear") and not read:
            yield node
