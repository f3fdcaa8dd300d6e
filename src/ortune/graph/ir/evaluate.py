"""Compute one node on constant inputs, with onnx's reference implementation."""

import logging
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

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

LARGEST = 64 << 20
"""Bytes that the outputs may take where the caller has no bound of its own."""

_MOST_PRODUCTS = {"f": 1 << 36, "i": 1 << 30, "u": 1 << 30}
"""Multiplications of a MatMul that take seconds; integers are slower, as no BLAS has them."""


def evaluate_node(
    node: ir.Node, inputs: Sequence[NDArray[Any] | None], opset: int, largest: int = LARGEST
) -> list[NDArray[Any]] | None:
    """Return the node's outputs, or None when it is not certain that every runtime agrees.

    Outputs that `bound_output_bytes` puts above `largest` bytes are not made either.

    Args:
        inputs: One array an input; None for an optional input that is left out.

    Raises:
        MemoryError: There is no memory for outputs that are within the bound.
    """
    if node.domain or node.op_type not in FOLDED or opset < _FIRST_BROADCAST:
        return None
    if any(array is not None and array.dtype.kind not in "biuf" for array in inputs):
        return None
    if any(attr.is_ref() for attr in node.attributes.values()):
        return None
    try:
        if bound_output_bytes(node, inputs) > largest or _is_long_product(node, inputs):
            return None
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            if _is_runtime_dependent(node, inputs):
                return None
            outputs = _run_reference(node, inputs, opset)
    except MemoryError:
        raise
    except Exception as error:  # the reference raises whatever its code happens to
        logging.getLogger(__name__).debug("%s '%s': %s", node.op_type, node.name, error)
        return None
    named = [value for value in node.outputs if value.name]
    for value, array in zip(named, outputs, strict=True):
        if array.dtype.kind not in "biuf":
            return None
        if value.dtype is not None and value.dtype.numpy() != array.dtype:
            return None
        if value.shape is not None and not _has_shape(value.shape, array.shape):
            return None
    return outputs


def bound_output_bytes(node: ir.Node, inputs: Sequence[NDArray[Any] | None]) -> float:
    """Return bytes that a node's outputs together do not exceed, which may be infinity.

    It follows from the shapes of the inputs, and from their numbers where these are the shape of
    the result. What the file declares of the output is not asked for its shape: it may lie.

    Args:
        node: One of the operators in FOLDED.
        inputs: As for `evaluate_node`.
    """
    arrays = [array for array in inputs if array is not None]
    if not arrays:
        return math.inf
    dtype = node.outputs[0].dtype
    width = 8 if dtype is None or dtype.is_string() else max(1, dtype.bitwidth // 8)
    return width * _ELEMENTS.get(node.op_type, _count_largest)(node, arrays)


_Arrays: TypeAlias = Sequence[NDArray[Any]]


def _count_largest(node: ir.Node, arrays: _Arrays) -> int:
    """Count empty axes as 1: a reduction of one makes a number for each place beside it."""
    return int(max(1, arrays[0].ndim, math.prod(max(1, dim) for dim in arrays[0].shape)))


def _count_range(node: ir.Node, arrays: _Arrays) -> float:
    start, limit, delta = (_list_numbers(array)[0] for array in arrays)
    return max(0, (limit - start) / delta + 1) if delta else 0


def _count_gathered(node: ir.Node, arrays: _Arrays) -> int:
    shape, axis = arrays[0].shape, read_attribute(node, "axis", 0) % arrays[0].ndim
    return arrays[1].size * math.prod(shape[:axis] + shape[axis + 1 :])


def _count_gathered_tuples(node: ir.Node, arrays: _Arrays) -> int:
    depth = arrays[1].shape[-1] + read_attribute(node, "batch_dims", 0)
    return math.prod(arrays[1].shape[:-1]) * math.prod(arrays[0].shape[depth:])


def _count_products(arrays: _Arrays) -> int:
    """Return the multiplications of a MatMul; an inner axis that is empty counts as one."""
    first, second = (array.shape for array in arrays)
    rows, inner = (1, *first)[-2:]
    columns = second[-1] if len(second) > 1 else 1
    batch = math.prod(_broadcast_dims(first[:-2], second[:-2]))
    return int(batch * rows * max(1, inner) * columns)


def _broadcast_dims(*shapes: Sequence[int]) -> list[int]:
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    return [max(column) for column in zip(*padded, strict=True)]


def _list_numbers(array: NDArray[Any]) -> list[Any]:
    """Python's integers do not overflow."""
    numbers: list[Any] = array.reshape(-1).tolist()
    return numbers


_BROADCAST_TEXT = (
    "Add And Clip Div Equal Greater GreaterOrEqual Less LessOrEqual Max Min Mod Mul Or Pow Sub "
    "Sum Where Xor"
)
_ELEMENTS: Mapping[str, Callable[[ir.Node, _Arrays], float]] = {
    **dict.fromkeys(
        _BROADCAST_TEXT.split(),
        lambda node, arrays: math.prod(_broadcast_dims(*(array.shape for array in arrays))),
    ),
    "Concat": lambda node, arrays: sum(array.size for array in arrays),
    "ConstantOfShape": lambda node, arrays: math.prod(_list_numbers(arrays[0])),
    "Expand": lambda node, arrays: math.prod(
        _broadcast_dims(arrays[0].shape, _list_numbers(arrays[1]))
    ),
    "Gather": _count_gathered,
    "GatherElements": lambda node, arrays: arrays[1].size,
    "GatherND": _count_gathered_tuples,
    "MatMul": lambda node, arrays: _count_products(arrays) // max(1, arrays[0].shape[-1]),
    "NonZero": lambda node, arrays: arrays[0].ndim * arrays[0].size,
    "OneHot": lambda node, arrays: arrays[0].size * int(_list_numbers(arrays[1])[0]),
    "Range": _count_range,
    "Tile": lambda node, arrays: (
        arrays[0].size * math.prod(max(1, n) for n in _list_numbers(arrays[1]))
    ),
}
"""Operators whose result has more elements than their first input: how many at most."""


def _is_long_product(node: ir.Node, inputs: Sequence[NDArray[Any] | None]) -> bool:
    arrays = [array for array in inputs if array is not None]
    if node.op_type != "MatMul":
        return False
    return _count_products(arrays) > _MOST_PRODUCTS.get(arrays[0].dtype.kind, 0)


def _is_runtime_dependent(node: ir.Node, inputs: Sequence[NDArray[Any] | None]) -> bool:
    """Runtimes differ in integer division below zero and in numbers that do not fit an integer.

    Powers, sums, products and ranges of integers onnxruntime computes in doubles, which end where
    NumPy wraps around.
    """
    arrays = [array for array in inputs if array is not None]
    if arrays and arrays[0].dtype.kind in "iu" and node.op_type in _IN_DOUBLES:
        largest = min(_EXACT_DOUBLE, np.iinfo(arrays[0].dtype).max)
        return not _IN_DOUBLES[node.op_type](*(a.astype(np.float64) for a in arrays)) <= largest
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


_EXACT_DOUBLE = 1 << 53
_IN_DOUBLES: Mapping[str, Callable[..., float]] = {
    "Pow": lambda base, exponent: np.max(np.abs(base) ** exponent, initial=0),
    "Range": lambda start, limit, step: max(abs(start), abs(limit), abs(step)).item(),
    "ReduceMean": lambda data, *axes: np.sum(data) if np.min(data) >= 0 else math.inf,
    "ReduceProd": lambda data, *axes: np.prod(np.maximum(np.abs(data), 1)),
    "ReduceSum": lambda data, *axes: np.sum(np.abs(data)),
}
"""How large the numbers become that the runtime computes on the way, at most."""


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


def _has_shape(shape: ir.Shape, actual: tuple[int, ...]) -> bool:
    fixed = (a == b for a, b in zip(shape, actual, strict=False) if isinstance(a, int))
    return len(shape) == len(actual) and all(fixed)
