"""Normalizations: a value over the root of its mean square, its scale and shift."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ortune.graph.ir import edit, match
from ortune.transforms.common.formulas.formula import NO_KERNEL, Site, replace_formula


@dataclass(frozen=True)
class Root:
    """The root ``sqrt(mean(d d) + epsilon)`` and who reads it."""

    squared: ir.Value
    axes: tuple[int, ...]  # of the mean, as written
    epsilon: float
    inverse: bool  # whether `value` is the inverse of the root
    value: ir.Value  # the root, or its inverse
    nodes: tuple[ir.Node, ...]  # all that compute `value` from d


def find_roots(mean: ir.Node) -> Iterator[Root]:
    """Yield what the mean of squares goes into: the root, then its inverse where there is one."""
    axes = match.read_reduction_axes(mean)
    square = match.find_producer(mean.inputs[0], "Mul", "Pow") if mean.inputs else None
    if axes is None or square is None or not is_square(square):
        return
    d = square.inputs[0]
    add = match.find_consumer(mean.outputs[0], "Add", "Sum")
    epsilon = (
        match.read_scalar(match.find_other_operand(add, mean.outputs[0]))
        if add is not None
        else None
    )
    if add is None or epsilon is None or d is None:
        return
    nodes: tuple[ir.Node, ...] = (square, mean, add)
    total = add.outputs[0]
    node = match.find_consumer(total, "Sqrt", "Pow")
    if node is None:
        return
    nodes = (*nodes, node)
    if node.op_type == "Pow":
        exponent = match.read_scalar(node.inputs[1]) if node.inputs[0] is total else None
        if exponent == -0.5:
            yield Root(d, axes, epsilon, True, node.outputs[0], nodes)
        if exponent != 0.5:
            return
    root = node.outputs[0]
    yield Root(d, axes, epsilon, False, root, nodes)
    inverse = match.find_consumer(root, "Reciprocal", "Div")
    if inverse is None:
        return
    if inverse.op_type == "Reciprocal" or (
        inverse.inputs[1] is root and match.read_scalar(inverse.inputs[0]) == 1.0
    ):
        yield Root(d, axes, epsilon, True, inverse.outputs[0], (*nodes, inverse))


def is_square(node: ir.Node) -> bool:
    """Say whether a Mul or Pow squares its first operand."""
    if node.op_type == "Pow":
        return match.read_scalar(node.inputs[1]) == 2.0
    return node.inputs[0] is node.inputs[1]


def find_quotient(root: Root, by: ir.Value) -> ir.Node | None:
    """Return the node that makes `by` over the root, when nothing else reads the root."""
    node = match.find_consumer(root.value, "Mul" if root.inverse else "Div")
    if node is None or match.find_other_operand(node, root.value) is not by:
        return None
    return node if root.inverse or node.inputs[1] is root.value else None


@dataclass(frozen=True)
class TrailingAxes:
    """The last axes of a value, which are normalized; sizes and rank are None where not known."""

    sizes: tuple[int | None, ...]
    rank: int | None

    def accepts_weight(self, weight: ir.Value | None) -> bool:
        """Say whether a float32 value has one number for each place of these axes.

        Leading ones are allowed in a constant. An axis of unknown size is taken to be as long as
        the weight: were it 1, all would be 0.
        """
        shape = edit.shape_of(weight)
        if weight is None or shape is None or weight.dtype != ir.DataType.FLOAT:
            return False
        extra = len(shape) - len(self.sizes)
        if extra < 0 or any(dim != 1 for dim in shape[:extra]):
            return False
        fixed = edit.const_tensor(weight) is not None and not edit.is_overridable(weight)
        if extra and (self.rank is None or len(shape) > self.rank or not fixed):
            return False
        pairs = zip(self.sizes, shape[extra:], strict=True)
        return all(dim == s if s else isinstance(dim, int) and dim > 1 for s, dim in pairs)

    def strip_leading_axes(self, weight: ir.Value, editor: edit.Editor) -> ir.Value:
        """Return a weight that fits without its leading ones."""
        array = edit.const_array(weight)
        if array is None or array.ndim == len(self.sizes):
            return weight
        flat = array.reshape(array.shape[array.ndim - len(self.sizes) :])
        return editor.add_constant(f"{weight.name}_flat", flat)


def require_trailing_axes(
    model: ir.Model, mean: ir.Node, x: ir.Value, axes: tuple[int, ...]
) -> TrailingAxes | None:
    """Return the axes when these are the last ones of a float32 value, else refuse."""
    shape, count = edit.shape_of(x), len(axes)
    if shape is None:
        rank, trailing = None, sorted(axes) == list(range(-count, 0))
        sizes: tuple[int | None, ...] = (None,) * count
    else:
        rank = len(shape)
        trailing = {axis % rank for axis in axes} == set(range(rank - count, rank))
        sizes = tuple(dim if isinstance(dim, int) else None for dim in shape[rank - count :])
    if not count or not trailing:
        edit.note_refusal(model, mean, "the axes are not the last ones")
        return None
    if x.dtype != ir.DataType.FLOAT:
        edit.note_refusal(model, mean, NO_KERNEL)
        return None
    return TrailingAxes(sizes, rank)


@dataclass(frozen=True)
class Deviation:
    """The deviation ``x - mean(x)`` and the nodes that compute it."""

    x: ir.Value
    mean: ir.Value
    axes: tuple[int, ...]
    nodes: tuple[ir.Node, ...]


def match_deviation(root: Root) -> Deviation | None:
    """Return what is squared as a deviation from the mean over the same axes, if it is one."""
    node = match.find_producer(root.squared, "Sub")
    mean = match.find_producer(node.inputs[1], "ReduceMean") if node is not None else None
    if node is None or mean is None or mean.inputs[0] is not node.inputs[0]:
        return None
    x, axes = node.inputs[0], match.read_reduction_axes(mean)
    if x is None or axes is None or axes != root.axes:
        return None
    return Deviation(x, mean.outputs[0], axes, (node, mean))


@dataclass(frozen=True)
class ScaleAndShift:
    """What is above the division; the last of the nodes makes the result."""

    scale: ir.Value | None
    shift: ir.Value | None
    nodes: tuple[ir.Node, ...]


def scale_and_shift(node: ir.Node, last: TrailingAxes, *, shifts: bool) -> ScaleAndShift:
    """Return what a node's result is multiplied by, and with `shifts` what is added then."""
    product = match.find_consumer(node.outputs[0], "Mul")
    scale = match.find_other_operand(product, node.outputs[0]) if product is not None else None
    if product is None or not last.accepts_weight(scale):
        return ScaleAndShift(None, None, (node,))
    total = match.find_consumer(product.outputs[0], "Add") if shifts else None
    shift = match.find_other_operand(total, product.outputs[0]) if total is not None else None
    if total is None or not last.accepts_weight(shift):
        return ScaleAndShift(scale, None, (node, product))
    return ScaleAndShift(scale, shift, (node, product, total))


def replace_by_norm(
    model: ir.Model,
    editor: edit.Editor,
    op: str,
    x: ir.Value,
    *,
    root: Root,
    above: ScaleAndShift,
    last: TrailingAxes,
) -> int:
    """Let a norm take the place of a formula, as `put` does; without a scale it is 1."""
    end = above.nodes[-1]
    sizes = [size for size in last.sizes if size is not None]
    if above.scale is not None:
        scale = last.strip_leading_axes(above.scale, editor)
    elif len(sizes) == len(last.sizes):
        scale = editor.add_constant("norm_scale", np.ones(sizes, np.float32))
    else:
        edit.note_refusal(model, end, "there is no scale, and the size of an axis is not known")
        return 0
    weights = [scale]
    if above.shift is not None:
        weights.append(last.strip_leading_axes(above.shift, editor))
    site = Site((x, *weights), frozenset((*root.nodes, *above.nodes)), end)
    settings = {"axis": -len(last.sizes), "epsilon": root.epsilon}
    done = replace_formula(model, editor, site, op, settings)
    if not done:
        for weight in weights:
            edit.discard_constant(weight)
    return done
