"""Find scaled dot-product attention, and give its masks the form that kernels take."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortune.graph.ir import edit, match
from ortune.graph.ir.edit import shape_of
from ortune.graph.shapes.infer import infer_node, infer_shapes
from ortune.graph.shapes.known_values import SymbolicValues
from ortune.graph.shapes.named_dims import broadcast_shapes


@dataclass(frozen=True)
class Select:
    """Scores kept where `keep` holds (does not hold: `inverse`), elsewhere one number."""

    keep: ir.Value
    fill: ir.Value
    inverse: bool


@dataclass(frozen=True)
class Core:
    """``softmax(scale query key^T + masks) value``, of rank 4, key still transposed."""

    query: ir.Value  # ``[batch, heads, queries, size]``
    key: ir.Value  # ``[batch, heads, size, keys]``
    value: ir.Value  # ``[batch, heads, keys, size of a value]``
    # What was multiplied onto the product; factors on query and key are still in them.
    scale: float
    # Added to the scores, or selecting among them, from the scores on.
    masks: tuple[ir.Value | Select, ...]
    guarded: bool  # rows that are not numbers are replaced by zeros
    product: ir.Node  # the MatMul that makes the result


class NotFusable(Exception):
    """It is attention, and the text says why it is left alone."""


def find_attention(softmax: ir.Node) -> Core | None:
    """Return the attention around a Softmax, None when it is another's.

    Raises:
        NotFusable: It is, but cannot be written as one operator.
    """
    scores, rows = softmax.inputs[0], softmax.outputs[0]
    if scores is None or _trace_scores(scores) is None:
        return None
    after = _find_value_product(rows)
    if after is None:
        return None
    product, guarded, inner = after
    value = product.inputs[1]
    rank = None if scores.shape is None else len(scores.shape)
    if rank != 4 or value is None or value.shape is None or len(value.shape) != 4:
        raise NotFusable("its tensors are not known to have four dimensions")
    if edit.read_attribute(softmax, "axis", -1) not in (-1, rank - 1):
        raise NotFusable("its Softmax is not over the keys")
    if scores.dtype != ir.DataType.FLOAT:
        raise NotFusable("it is not of float32")
    trace = _trace_scores(scores)
    if trace is None:
        return None
    path, masks, scale = trace
    # Check that nothing else reads the scores or the probabilities.
    core_nodes = {*path, *inner, softmax}
    for node in (*path, softmax, *inner):
        for output in node.outputs:
            outside = [user for user, _ in output.uses() if user not in core_nodes]
            last = output is (inner[-1] if inner else softmax).outputs[0]
            if output.is_graph_output() or len(outside) > (1 if last else 0):
                raise NotFusable("its scores or probabilities are read elsewhere too")
    first = path[-1]
    query, key = first.inputs
    if query is None or key is None or {n.graph for n in (*path, *inner)} != {softmax.graph}:
        raise NotFusable("its parts lie in several graphs")
    if scale <= 0:
        raise NotFusable("its scale is not positive")
    return Core(query, key, value, scale, tuple(reversed(masks)), guarded, product)


_Trace = tuple[list[ir.Node], list["ir.Value | Select"], float]


def _trace_scores(value: ir.Value, scale: float = 1.0, depth: int = 8) -> _Trace | None:
    node = value.producer()
    if node is None or node.domain or depth == 0:
        return None
    if node.op_type == "MatMul":
        constant = any(edit.const_tensor(operand) is not None for operand in node.inputs)
        return None if constant else ([node], [], 1.0)
    for inner, mask, factor in _list_steps(node):
        trace = _trace_scores(inner, scale, depth - 1)
        if trace is None:
            continue
        path, masks, below = trace
        if factor != 1.0 and masks:
            raise NotFusable("its mask is scaled together with the scores")
        return [node, *path], [mask, *masks] if mask is not None else masks, below * factor
    return None


def _list_steps(node: ir.Node) -> Iterator[tuple[ir.Value, ir.Value | Select | None, float]]:
    """Yield what may be the scores one step before: the value, a mask, a factor."""
    parts = [value for value in node.inputs if value is not None]
    if len(parts) != len(node.inputs):
        return
    if node.op_type == "Add":
        yield parts[0], parts[1], 1.0
        yield parts[1], parts[0], 1.0
    elif node.op_type == "Mul":
        for scores, operand in (parts, reversed(parts)):
            factor = _read_factor(operand, scores)
            if factor is not None:
                yield scores, None, factor
    elif node.op_type == "Div":
        factor = _read_factor(parts[1], parts[0])
        if factor:
            yield parts[0], None, 1 / factor
    elif node.op_type == "Where":
        if match.read_scalar(parts[2]) is not None:
            yield parts[1], Select(parts[0], parts[2], False), 1.0
        if match.read_scalar(parts[1]) is not None:
            yield parts[2], Select(parts[0], parts[1], True), 1.0
    elif node.op_type == "Identity":
        yield parts[0], None, 1.0


def _read_factor(constant: ir.Value, value: ir.Value) -> float | None:
    return match.read_scalar(constant) if match.scalar_for(constant, value) else None


def _find_value_product(rows: ir.Value) -> tuple[ir.Node, bool, list[ir.Node]] | None:
    """Return the MatMul with the values, whether NaN becomes zero, and the nodes on the way."""
    inner: list[ir.Node] = []
    guarded = False
    while True:
        readers = list(dict.fromkeys(node for node, _ in rows.uses()))
        product = next((n for n in readers if n.op_type == "MatMul" and n.inputs[0] is rows), None)
        if product is not None and not product.domain:
            return product, guarded, inner
        test = next((n for n in readers if n.op_type == "IsNaN"), None)
        guard = next((n for n in readers if _is_guard(n, rows)), None)
        step = next((n for n in readers if n.op_type in ("Dropout", "Identity")), None)
        if guard is not None and test is not None and guard.inputs[0] is test.outputs[0]:
            guarded, rows = True, guard.outputs[0]
            inner += [test, guard]
        elif step is not None:
            if step.op_type == "Dropout" and len(step.inputs) > 2 and step.inputs[2] is not None:
                raise NotFusable("it drops out at random")
            rows = step.outputs[0]
            inner.append(step)
        else:
            return None


def _is_guard(node: ir.Node, rows: ir.Value) -> bool:
    if node.op_type != "Where" or node.domain:
        return False
    test = match.find_producer(node.inputs[0], "IsNaN")
    return test is not None and test.inputs[0] is rows and match.read_scalar(node.inputs[1]) == 0.0


@contextmanager
def name_unknown_lengths(model: ir.Model) -> Iterator[None]:
    """Give every unknown length a name of its own where it first appears, for the block's time.

    What follows from it gets the same name, through arithmetic on shapes too. That a length has a
    name says nothing about it: it may be 1.
    """
    infer_shapes(model)
    length_names: set[str] = set()
    inferred = SymbolicValues()
    for node in model.graph:
        infer_node(node, model.opset_imports, inferred)
        for value in node.outputs:
            shape = shape_of(value)
            if shape is None or None not in shape or value.is_graph_output():
                continue
            stem = f"length {len(length_names)}"
            full = [f"{stem}.{at}" if dim is None else dim for at, dim in enumerate(shape)]
            length_names |= {str(new) for old, new in zip(shape, full, strict=True) if old is None}
            value.shape = ir.Shape(full)
    try:
        yield
    finally:
        for graph in edit.walk_graphs(model):
            for value in (*graph.inputs, *(v for node in graph for v in node.outputs)):
                shape = shape_of(value)
                if shape is not None and length_names & {d for d in shape if isinstance(d, str)}:
                    value.shape = ir.Shape([None if d in length_names else d for d in shape])


LOWEST = float(np.finfo(np.float32).min)
"""Of float32. The Attention kernel takes it for minus infinity and gives zeros for a row of it."""
ALMOST = float(np.nextafter(np.float32(LOWEST), np.float32(0)))
"""The next number: a row of it is uniform, and any score is lost in it, as in the lowest one."""
_ABSORBS = -1e30
_FILLS = -1e4


@dataclass
class Masks:
    """Makes each mask once, cached by what it is made from; `editor` names what is new."""

    editor: edit.Editor
    cache: dict[tuple[object, ...], ir.Value] = field(default_factory=dict)

    def merge_masks(
        self,
        masks: tuple[ir.Value | Select, ...],
        query: ir.Value,
        keys: tuple[ir.Value, int],
        at: ir.Node,
        *,
        guarded: bool,
        zeroes: bool,
    ) -> ir.Value | None:
        """Return the sum of masks as ``[batch or 1, heads or 1, queries, keys]``.

        Args:
            query: ``[batch, queries, ...]``.
            keys: A tensor and its axis that is as long as the keys.
            at: New nodes are placed before it.
            guarded: Rows that hold no number had become zeros.
            zeroes: The kernel gives zeros for a row of minus infinity or of the lowest number,
                instead of what the parts give: no number, or the mean of the values.

        Raises:
            NotFusable: It cannot be had.
        """
        total: ir.Value | None = None
        for mask in masks:
            value = self._add_select(mask, at, len(masks)) if isinstance(mask, Select) else mask
            total = value if total is None else self._add_node("Add", [total, value], at)
        if total is None:
            return None
        extremes = _find_extremes(total)
        if zeroes and "lowest" in extremes:
            total = self._replace_lowest(total, at, infinite="infinity" in extremes)
        if zeroes and "infinity" in extremes and not guarded:
            # Make rows of minus infinity alone what their softmax was: no number.
            axes = self._add_integers((-1,))
            highest = self._add_node("ReduceMax", [total, axes], at)
            lowest = self._add_number(-np.inf)
            nothing = self._add_node("Equal", [highest, lowest], at, ir.DataType.BOOL)
            total = self._add_node("Where", [nothing, self._add_number(np.nan), total], at)
        # Bring the last two dimensions to their lengths, and the rank to four.
        shape, of_query, of_key = shape_of(total), shape_of(query), shape_of(keys[0])
        if shape is None:
            raise NotFusable("the rank of its mask is not known")
        shape = (1,) * (4 - len(shape)) + tuple(shape)
        target_dims = (
            of_query[1] if of_query is not None else None,
            of_key[keys[1]] if of_key is not None else None,
        )
        if of_query is not None and of_query[0] == 1 != shape[0]:
            raise NotFusable("its mask has more batches than its queries")
        if all(a == b and a is not None for a, b in zip(shape[2:], target_dims, strict=True)):
            if (rank := len(shape_of(total) or ())) == 4:
                return total
            axes = self._add_integers(tuple(range(4 - rank)))
            return self._add_node("Unsqueeze", [total, axes], at)
        rows = self._add_length(query, 1, at)
        columns = self._add_length(keys[0], keys[1], at)
        unit_dims = self._add_integers((1, 1))
        to = self._add_node("Concat", [unit_dims, rows, columns], at, ir.DataType.INT64, axis=0)
        spread = self._add_node("Expand", [total, to], at)
        spread.shape = ir.Shape([*shape[:2], *target_dims])
        return spread

    def _add_select(self, mask: Select, at: ir.Node, count: int) -> ir.Value:
        fill = match.read_scalar(mask.fill)
        if fill is None or fill > _FILLS:
            raise NotFusable("what it puts in the place of scores is not a mask")
        if fill > _ABSORBS:
            if count > 1:
                raise NotFusable(f"it is masked twice, once by {fill:g} instead of the score")
            fill = ALMOST
        parts = [self._add_number(0.0), self._add_number(fill)]
        return self._add_node("Where", [mask.keep, *(parts[::-1] if mask.inverse else parts)], at)

    def _replace_lowest(self, mask: ir.Value, at: ir.Node, *, infinite: bool) -> ir.Value:
        """Put the next number in the place of the lowest one."""
        node = match.find_producer(mask, "Where")
        almost = self._add_number(ALMOST)
        if node is not None:
            swapped = [almost if match.read_scalar(v) == LOWEST else v for v in node.inputs]
            operands = [value for value in node.inputs[1:] if match.read_scalar(value) != LOWEST]
            if len(operands) == 1 and "lowest" not in _find_extremes(operands[0]):
                return self._add_node("Where", swapped, at)
        if not infinite:
            return self._add_node("Max", [mask, almost], at)
        lowest = self._add_node("Equal", [mask, self._add_number(LOWEST)], at, ir.DataType.BOOL)
        return self._add_node("Where", [lowest, almost, mask], at)

    def _add_length(self, value: ir.Value, axis: int, at: ir.Node) -> ir.Value:
        shape = shape_of(value)
        size = shape[axis] if shape is not None else None
        if isinstance(size, int):
            return self._add_integers((size,))
        return self._add_node(
            "Shape", [value], at, ir.DataType.INT64, start=axis, end=axis + 1, of=size
        )

    def _add_number(self, value: float) -> ir.Value:
        return self._add_constant(np.array(value, np.float32), repr(value))

    def _add_integers(self, values: tuple[int, ...]) -> ir.Value:
        return self._add_constant(np.array(values, np.int64), repr(values))

    def _add_constant(self, array: NDArray[Any], name: str) -> ir.Value:
        key = ("constant", array.dtype.name, name)
        if key not in self.cache:
            self.cache[key] = self.editor.add_constant("attention_constant", array)
        return self.cache[key]

    def _add_node(
        self,
        op: str,
        inputs: list[ir.Value | None],
        at: ir.Node,
        dtype: ir.DataType = ir.DataType.FLOAT,
        of: int | str | None = None,
        **attributes: int,
    ) -> ir.Value:
        """Make a node, or return the one made before; equal named lengths are one length."""
        read = (of,) if isinstance(of, str) else tuple(_identity_key(value) for value in inputs)
        key = (op, at.graph, read, tuple(sorted(attributes.items())) if not of else ())
        if key not in self.cache:
            node = self.editor.make_node(op, inputs, attributes, name=f"attention_mask_{op}")
            node.outputs[0].dtype = dtype
            _infer_broadcast_shape(node)
            edit.insert_before(at, node)
            self.cache[key] = node.outputs[0]
        return self.cache[key]


def has_infinity(masks: tuple[ir.Value | Select, ...]) -> bool:
    """Say whether a mask may hold minus infinity."""
    values = [mask.fill if isinstance(mask, Select) else mask for mask in masks]
    return any("infinity" in _find_extremes(value) for value in values)


def _identity_key(value: ir.Value | None) -> object:
    """Equal numbers are one, wherever they are stored."""
    scalar = match.read_scalar(value)
    shape = shape_of(value)
    return value if scalar is None else (repr(scalar), shape, value.dtype if value else None)


def _infer_broadcast_shape(node: ir.Node) -> None:
    value = node.outputs[0]
    shapes = [shape_of(operand) for operand in node.inputs]
    first = shapes[0]
    if node.op_type in ("Add", "Where", "Max", "Equal"):
        known_shapes = [shape for shape in shapes if shape is not None]
        value.shape = None if None in shapes else ir.Shape(broadcast_shapes(known_shapes))
    elif node.op_type == "ReduceMax" and first is not None:
        value.shape = ir.Shape([*first[:-1], 1])
    elif node.op_type == "Unsqueeze" and first is not None:
        value.shape = ir.Shape([*(1,) * (4 - len(first)), *first])


_BOTH = frozenset({"lowest", "infinity"})
_PASSING_TEXT = "Expand Unsqueeze Squeeze Reshape Slice Gather Transpose Identity"
_PASSING = tuple(_PASSING_TEXT.split())


def _find_extremes(value: ir.Value | None, depth: int = 12) -> frozenset[str]:
    """Say which of the lowest number and minus infinity a mask may hold."""
    array = edit.const_array(value) if value is not None else None
    if array is not None:
        extremes = {"infinity": -np.inf, "lowest": LOWEST}
        return frozenset(name for name, number in extremes.items() if (array == number).any())
    node = value.producer() if value is not None else None
    if node is None or node.domain or depth == 0:
        return _BOTH
    if node.op_type == "Where":
        yes, no = (_find_extremes(value, depth - 1) for value in node.inputs[1:])
        return yes | no
    if node.op_type in _PASSING:
        return _find_extremes(node.inputs[0], depth - 1)
    if node.op_type == "Add":
        first, second = (_find_extremes(value, depth - 1) for value in node.inputs)
        return first | second | ({"infinity"} if first and second else set())
    if node.op_type == "Mul":
        # ``(1 - mask) * number`` and its like, the mask an integer or a truth value.
        for mask, other in (node.inputs, reversed(node.inputs)):
            factor = match.read_scalar(other)
            if factor is not None and np.isfinite(factor) and _has_small_values(mask):
                return frozenset({"lowest"} if abs(factor) >= -_ABSORBS else ())
        return _BOTH
    return frozenset() if _has_small_values(value) else _BOTH


def _has_small_values(value: ir.Value | None, depth: int = 8) -> bool:
    """Say whether a value is made of integers, truth values and small numbers."""
    scalar = match.read_scalar(value)
    if scalar is not None:
        return abs(scalar) < -_ABSORBS
    node = value.producer() if value is not None else None
    if node is None or node.domain or depth == 0:
        return False
    source = node.inputs[0] if node.inputs else None
    if node.op_type == "Cast" and source is not None and source.dtype is not None:
        return source.dtype.is_integer() or source.dtype == ir.DataType.BOOL
    if node.op_type in ("Sub", *_PASSING):
        both = node.inputs if node.op_type == "Sub" else node.inputs[:1]
        return all(_has_small_values(operand, depth - 1) for operand in both)
    return False
