"""Compute one node on constant inputs, with onnx's reference implementation."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator

from ortune.graph.ir.edit import read_attribute

_OPS_TEXT = (
    "Abs Add And ArgMax ArgMin Cast CastLike Ceil Clip Concat ConstantOfShape Cos CumSum Div "
    "Equal Erf Exp Expand EyeLike Flatten Floor Gather GatherElements GatherND Greater "
    "GreaterOrEqual Identity IsInf IsNaN Less LessOrEqual Log MatMul Max Min Mod Mul Neg "
    "NonZero Not OneHot Or Pow Range Reciprocal ReduceMax ReduceMean ReduceMin ReduceProd "
    "ReduceSum Relu Reshape Round ScatterElements ScatterND Shape Sigmoid Sign Sin Size Slice "
    "Softmax Split Sqrt Squeeze Sub Sum Tanh Tile Transpose Trilu Unsqueeze Where Xor"
)
FOLDED = frozenset(_OPS_TEXT.split())
"""Operators whose result is fixed by the inputs and computed alike by reference and runtimes."""

_FIRST_BROADCAST = 7
"""Before this opset element-wise operators broadcast by an attribute, which is left alone."""


def evaluate_node(
    node: ir.Node, inputs: Sequence[NDArray[Any] | None], opset: int
) -> list[NDArray[Any]] | None:
    """Return the node's outputs, or None when it is not certain that every runtime agrees.

    Args:
        inputs: One array an input; None for an optional input that is left out.
        opset: Version of the default domain.
    """
    if node.domain or node.op_type not in FOLDED or opset < _FIRST_BROADCAST:
        return None
    if any(array is not None and array.dtype.kind not in "biuf" for array in inputs):
        return None
    if any(attr.is_ref() for attr in node.attributes.values()) or _is_runtime_dependent(
        node, inputs
    ):
        return None
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            outputs = _run_reference(node, inputs, opset)
    except Exception as error:  # the reference raises whatever its code happens to
        logging.getLogger(__name__).debug("%s '%s': %s", node.op_type, node.name, error)
        return None
    return outputs if _has_declared_types(node, outputs) else None


def _is_runtime_dependent(node: ir.Node, inputs: Sequence[NDArray[Any] | None]) -> bool:
    """Runtimes differ in integer division below zero and in floats that do not fit an integer."""
    arrays = [array for array in inputs if array is not None]
    if node.op_type in ("Div", "Mod") and any(a.dtype.kind == "i" for a in arrays):
        return any((a < 0).any() for a in arrays) or not arrays[-1].all()
    if node.op_type == "Cast" and arrays[0].dtype.kind == "f":
        to = ir.DataType(read_attribute(node, "to", 0))
        if to == ir.DataType.STRING or to.bitwidth < 8:
            return True
        if to.is_integer():
            limit = np.iinfo(to.numpy())
            ok = np.isfinite(arrays[0]) & (arrays[0] >= limit.min) & (arrays[0] < limit.max)
            return not bool(ok.all())
    return False


def _run_reference(
    node: ir.Node, inputs: Sequence[NDArray[Any] | None], opset: int
) -> list[NDArray[Any]]:
    names = [f"i{index}" if array is not None else "" for index, array in enumerate(inputs)]
    output_names = [f"o{index}" if value.name else "" for index, value in enumerate(node.outputs)]
    proto = ir.serde.serialize_node(node)
    del proto.input[:], proto.output[:]
    proto.input.extend(names)
    proto.output.extend(output_names)
    graph = onnx.GraphProto(
        name="one",
        node=[proto],
        input=[onnx.ValueInfoProto(name=name) for name in names if name],
        output=[onnx.ValueInfoProto(name=name) for name in output_names if name],
    )
    model = onnx.ModelProto(ir_version=10, graph=graph)
    model.opset_import.add(domain="", version=opset)
    feeds = {name: array for name, array in zip(names, inputs, strict=True) if name}
    return [np.asarray(out) for out in ReferenceEvaluator(model).run(None, feeds)]


def _has_declared_types(node: ir.Node, arrays: Sequence[NDArray[Any]]) -> bool:
    named = [value for value in node.outputs if value.name]
    for value, array in zip(named, arrays, strict=True):
        if array.dtype.kind not in "biuf":
            return False
        if value.dtype is not None and value.dtype.numpy() != array.dtype:
            return False
        if value.shape is not None and not _has_shape(value.shape, array.shape):
            return False
    return True


def _has_shape(shape: ir.Shape, actual: tuple[int, ...]) -> bool:
    fixed = (a == b for a, b in zip(shape, actual, strict=False) if isinstance(a, int))
    return len(shape) == len(actual) and all(fixed)
