"""Layer normalization spelled out in primitive operators becomes one LayerNormalization."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ortune.core.facts import Facts
from ortune.core.step import Stage, Transform
from ortune.model import prune
from ortune.model.dims import overridable
from ortune.model.edit import Editor, attribute, const_array, const_tensor
from ortune.model.match import enclosed, maker, near, number, other, reader
from ortune.model.replace import forward
from ortune.model.shapes import infer
from ortune.model.spec import dims


@dataclass(frozen=True)
class FuseLayerNorm(Transform):
    """Over the last axes, with constant scale and, if there is one, shift.

    With d = x - mean(x) and v = mean(d d)::

        scale d / sqrt(v + epsilon) + shift                           PyTorch and its kin
        x k + (shift - mean(x) k),  k = scale / sqrt(v + epsilon)     TensorFlow

    where the division may be a product with a reciprocal and d may be computed twice. Exact up to
    the order of the operations. Only float32, in which the operator computes inside.
    onnxruntime fuses the first form itself; done here, every runtime and every later step sees it.

    Needs opset 17; does nothing on older models (`raise-opset` lifts them).
    """

    stage: ClassVar[Stage] = Stage.FUSE
    needs_opset: ClassVar[int] = 17
    """Lowest default-domain opset that has the operator."""

    def applies(self, facts: Facts) -> bool:
        """The parts are there."""
        return facts.has("ReduceMean") and facts.has("Sqrt") and facts.has("Sub")

    def apply(self, model: ir.Model) -> int:
        """Edit the model in place and return how many were fused."""
        if model.opset_imports.get("", 0) < self.needs_opset:
            return 0
        infer(model)
        editor = Editor(model.graph)
        count = 0
        for graph in (model.graph, *model.graph.subgraphs()):
            for node in list(graph):
                if node.op_type == "Sqrt" and not node.domain and node.graph is not None:
                    count += _fuse(node, editor)
        if count:
            prune.drop_dead(model)
        return count


@dataclass(frozen=True)
class _Spread:
    """What is below the root: x, its mean, the deviations, axes, epsilon, and the nodes."""

    x: ir.Value
    mean: ir.Value
    axes: tuple[int, ...]
    epsilon: float
    nodes: tuple[ir.Node, ...]


@dataclass(frozen=True)
class _Affine:
    """What is above it."""

    scale: ir.Value
    shift: ir.Value | None
    nodes: tuple[ir.Node, ...]


def _fuse(root: ir.Node, editor: Editor) -> int:
    below = _below(root.inputs[0])
    above = _above(root.outputs[0], below) if below is not None else None
    if below is None or above is None or below.x.dtype != ir.DataType.FLOAT:
        return 0
    last = above.nodes[-1]
    tail = _tail(below)
    weights = [value for value in (above.scale, above.shift) if value is not None]
    if tail is None or not all(_fits(value, tail) for value in weights):
        return 0
    if not enclosed({root, *below.nodes, *above.nodes}, last) or last.graph is None:
        return 0
    norm = editor.node(
        "LayerNormalization",
        [below.x, *weights],
        {"axis": -len(tail), "epsilon": below.epsilon},
        name=f"{last.name}_layer_norm",
    )
    made = norm.outputs[0]
    made.type, made.shape = last.outputs[0].type, last.outputs[0].shape
    last.graph.insert_before(last, norm)
    forward(last.outputs[0], made)
    return 1


def _below(value: ir.Value | None) -> _Spread | None:
    """variance + epsilon, the variance being mean((x - mean(x))^2)."""
    add = maker(value, "Add")
    if add is None:
        return None
    for one in add.inputs:
        variance = maker(one, "ReduceMean")
        epsilon = number(other(add, one))
        square = maker(variance.inputs[0], "Pow", "Mul") if variance is not None else None
        if variance is None or square is None or epsilon is None:
            continue
        if square.op_type == "Pow" and not near(square.inputs[1], 2.0, tolerance=0.0):
            continue
        if square.op_type == "Mul" and square.inputs[0] is not square.inputs[1]:
            continue
        deviation = maker(square.inputs[0], "Sub")
        mean = maker(deviation.inputs[1], "ReduceMean") if deviation is not None else None
        if deviation is None or mean is None or mean.inputs[0] is not deviation.inputs[0]:
            continue
        axes = _axes(mean)
        x = deviation.inputs[0]
        if x is None or axes is None or axes != _axes(variance):
            continue
        nodes = (add, variance, square, deviation, mean)
        return _Spread(x, mean.outputs[0], axes, epsilon, nodes)
    return None


def _axes(node: ir.Node) -> tuple[int, ...] | None:
    """Return the axes, an attribute before opset 18, an input since; None unless dims are kept."""
    if not attribute(node, "keepdims", 1):
        return None
    if len(node.inputs) > 1:
        array = None if overridable(node.inputs[1]) else const_array(node.inputs[1])
        return None if array is None else tuple(int(axis) for axis in array.reshape(-1))
    axes = attribute(node, "axes", None)
    return None if axes is None else tuple(axes)


def _above(root: ir.Value, below: _Spread) -> _Affine | None:
    """Follow the root to where scale and shift have been applied."""
    users = [node for node, _ in root.uses()]
    if len(users) != 1 or root.is_graph_output():
        return None
    user = users[0]
    if user.op_type == "Div" and user.inputs[1] is root and _is_deviation(user.inputs[0], below):
        return _scale_and_shift(user.outputs[0], [user, *_own_deviation(user.inputs[0], below)])
    if user.op_type != "Reciprocal" or user.domain:
        return None
    product = reader(user.outputs[0], "Mul")
    factor = other(product, user.outputs[0]) if product is not None else None
    if product is None or factor is None:
        return None
    if _is_deviation(factor, below):
        nodes = [user, product, *_own_deviation(factor, below)]
        return _scale_and_shift(product.outputs[0], nodes)
    return _line(product, factor, user, below)


def _is_deviation(value: ir.Value | None, below: _Spread) -> bool:
    """The same Sub, or another of the same operands: some exporters compute it twice."""
    node = maker(value, "Sub")
    if node is None or node.inputs[0] is not below.x:
        return False
    mean = maker(node.inputs[1], "ReduceMean")
    same = node.inputs[1] is below.mean
    twin = mean is not None and mean.inputs[0] is below.x and _axes(mean) == below.axes
    return same or twin


def _own_deviation(value: ir.Value | None, below: _Spread) -> list[ir.Node]:
    node = maker(value, "Sub")
    if node is None or node in below.nodes:
        return []
    mean = maker(node.inputs[1], "ReduceMean")
    return [node] if mean is None or mean in below.nodes else [node, mean]


def _scale_and_shift(value: ir.Value, nodes: list[ir.Node]) -> _Affine | None:
    product = reader(value, "Mul")
    scale = other(product, value) if product is not None else None
    if product is None or scale is None:
        return None
    total = reader(product.outputs[0], "Add")
    shift = other(total, product.outputs[0]) if total is not None else None
    if total is None or shift is None or const_tensor(shift) is None:
        return _Affine(scale, None, (*nodes, product))
    return _Affine(scale, shift, (*nodes, product, total))


def _line(product: ir.Node, scale: ir.Value, root: ir.Node, below: _Spread) -> _Affine | None:
    """x k + (shift - mean k), with k made by `product`."""
    k = product.outputs[0]
    scaled = {other(node, k): node for node, _ in k.uses() if maker(node.outputs[0], "Mul")}
    if set(scaled) != {below.x, below.mean} or len(k.uses()) != 2:
        return None
    rest = reader(scaled[below.mean].outputs[0], "Sub")
    total = reader(scaled[below.x].outputs[0], "Add")
    if rest is None or total is None or rest.inputs[1] is not scaled[below.mean].outputs[0]:
        return None
    shift = rest.inputs[0]
    if shift is None or other(total, scaled[below.x].outputs[0]) is not rest.outputs[0]:
        return None
    return _Affine(scale, shift, (root, product, *scaled.values(), rest, total))


def _tail(below: _Spread) -> tuple[int, ...] | None:
    """Return the sizes of the normalized axes when these are the last ones, and known."""
    shape = dims(below.x.shape)
    if shape is None:
        return None
    count = len(below.axes)
    wanted = set(range(len(shape) - count, len(shape)))
    if {axis % len(shape) for axis in below.axes} != wanted:
        return None
    tail = tuple(dim for dim in shape[len(shape) - count :] if isinstance(dim, int))
    return tail if len(tail) == count else None


def _fits(value: ir.Value, tail: tuple[int, ...]) -> bool:
    tensor = const_tensor(value)
    if tensor is None or overridable(value) or tensor.dtype != ir.DataType.FLOAT:
        return False
    return tuple(tensor.shape) == tail
