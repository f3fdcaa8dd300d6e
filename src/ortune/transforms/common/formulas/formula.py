"""Match formulas written in primitive operators, norms too; replace them by one node."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir
from numpy.typing import ArrayLike

from ortune.core.backend import Backend
from ortune.graph.analysis.facts import bound_weight_bytes
from ortune.graph.ir import edit, match, prune, qdq
from ortune.graph.shapes.infer import infer_shapes

_DEEPEST = 8
_TOLERANCE = 2e-5
"""Relative; exporters round constants such as 0.7978845608 at the sixth digit."""

READ_ELSEWHERE = "a part of it is read elsewhere"
INCOMPLETE = "a part of it is read elsewhere, or the formula goes on in another way"
WIDENS = "a constant in it has a higher rank than its input"
NO_KERNEL = "float16, bfloat16 and float64 would be computed otherwise"


@dataclass(frozen=True)
class FactoredProduct:
    """A product ``scale x factors[0] x factors[1] ...`` and the nodes that compute it."""

    scale: float
    factors: tuple[ir.Value, ...]  # a value of a power comes once for each exponent
    nodes: tuple[ir.Node, ...] = ()

    def multiply_by(self, more: FactoredProduct, *nodes: ir.Node) -> FactoredProduct:
        """Multiply two products; `nodes` are those that do so."""
        parts = (*self.nodes, *more.nodes, *nodes)
        return FactoredProduct(self.scale * more.scale, self.factors + more.factors, parts)

    def divide_by(self, divisor: float, *nodes: ir.Node) -> FactoredProduct:
        """Divide by a constant."""
        return FactoredProduct(self.scale / divisor, self.factors, (*self.nodes, *nodes))

    def equals_product(self, scale: float, factors: Sequence[ir.Value]) -> bool:
        """Say whether it is this product, whatever the order; rounded constants count as equal."""
        if len(factors) != len(self.factors) or not is_close(self.scale, scale):
            return False
        return sorted(map(id, factors)) == sorted(map(id, self.factors))


def is_close(actual: float, expected: float) -> bool:
    """Say whether a constant is meant."""
    return math.isclose(actual, expected, rel_tol=_TOLERANCE)


def factor_product(
    value: ir.Value, stops: Iterable[ir.Value], depth: int = _DEEPEST
) -> FactoredProduct:
    """Take a value apart through Mul, Div by a constant, and Pow with a small whole exponent.

    Args:
        value: Any value; what cannot be taken apart is a factor itself.
        stops: Values that are factors as they are.
        depth: How many nodes deep to go.
    """
    ends = list(stops)
    constant = match.read_scalar(value)
    if constant is not None:
        return FactoredProduct(constant, ())
    whole = FactoredProduct(1.0, (value,))
    node = match.find_producer(value, "Mul", "Div", "Pow") if depth and value not in ends else None
    if node is None or len(node.inputs) != 2:
        return whole
    first, second = node.inputs
    if first is None or second is None:
        return whole
    if node.op_type == "Mul":
        lhs, rhs = (factor_product(v, ends, depth - 1) for v in (first, second))
        return lhs.multiply_by(rhs, node)
    second_number = match.read_scalar(second)
    if node.op_type == "Div" and second_number:
        return factor_product(first, ends, depth - 1).divide_by(second_number, node)
    if node.op_type == "Div" or second_number not in (2.0, 3.0):
        return whole
    base = factor_product(first, ends, depth - 1)
    result = FactoredProduct(1.0, ())
    for _ in range(int(second_number)):
        result = result.multiply_by(FactoredProduct(base.scale, base.factors))
    return FactoredProduct(result.scale, result.factors, (*base.nodes, node))


def follow_products(
    value: ir.Value, scale: float, factors: Sequence[ir.Value]
) -> FactoredProduct | None:
    """Follow the only readers of a value until it has been multiplied by all that is wanted.

    Returns:
        What it was multiplied by; the last of its nodes makes the whole product.
    """
    accumulated = FactoredProduct(1.0, ())
    for _ in range(len(factors) + 2):
        node = match.find_consumer(value, "Mul", "Div")
        operand = match.find_other_operand(node, value) if node is not None else None
        if node is None or operand is None or operand is value:
            return None
        if node.op_type == "Mul":
            accumulated = accumulated.multiply_by(factor_product(operand, factors), node)
        else:
            divisor = match.read_scalar(operand)
            if not divisor or node.inputs[0] is not value:
                return None
            accumulated = accumulated.divide_by(divisor, node)
        if accumulated.equals_product(scale, factors):
            return accumulated
        value = node.outputs[0]
    return None


Attempt: TypeAlias = Callable[[ir.Model, ir.Node, edit.Editor], int | str]
"""Rewrites around a node: returns how many were, or why it is left alone."""


def at_each(model: ir.Model, attempt: Attempt, *ops: str, since: int = 0) -> int:
    """Infer shapes, try a rewrite at every node of these operators, and drop what is dead.

    Args:
        since: Opset before which nothing is done.

    Returns:
        How many were rewritten.
    """
    if model.opset_imports.get("", 0) < since:
        return 0
    infer_shapes(model)
    editor = edit.Editor(model.graph)
    count = 0
    for node in match.nodes_of(model, *ops):
        outcome = attempt(model, node, editor)
        if isinstance(outcome, str):
            edit.note_refusal(model, node, outcome)
        else:
            count += outcome
    if count:
        prune.drop_dead(model)
    return count


def at_each_foreign(model: ir.Model, attempt: Attempt, *ops: str) -> int:
    """Like `at_each`, for a rewrite that puts in operators of onnxruntime's own."""
    count = at_each(model, attempt, *ops)
    if count:
        model.opset_imports.setdefault(qdq.MICROSOFT, 1)
    return count


def beyond_cpu(backend: Backend) -> bool:
    """Say whether a backend has onnxruntime's own operators and is not its CPU provider."""
    return qdq.MICROSOFT in backend.domains and backend.name() != "cpu"


@dataclass(frozen=True)
class Site:
    """A formula that was found."""

    inputs: tuple[ir.Value | None, ...]  # what the new node reads
    nodes: frozenset[ir.Node]  # all that compute the formula
    last: ir.Node  # the one of them whose output is the result


def replace_formula(
    model: ir.Model,
    editor: edit.Editor,
    site: Site,
    op: str,
    attributes: Mapping[str, Any] | None = None,
    *,
    domain: str = "",
    outputs: int = 1,
) -> int:
    """Let one node take the place of a formula; 1 when it did, else 0 and a refusal.

    Only where nothing outside reads a part of it. The first of `outputs` is the result.
    """
    last = site.last
    if not match.is_enclosed(site.nodes, last) or last.graph is None:
        edit.note_refusal(model, last, READ_ELSEWHERE)
        return 0
    stem = f"{last.name}_{op.lower()}"
    old = last.outputs[0]
    replacement = editor.make_node(
        op, site.inputs, attributes, name=stem, domain=domain, outputs=outputs, like=old
    )
    last.graph.insert_before(last, replacement)
    edit.redirect_uses(old, replacement.outputs[0])
    return 1


def put_gated(
    model: ir.Model,
    editor: edit.Editor,
    site: Site,
    op: str,
    attributes: Mapping[str, Any] | None = None,
) -> int:
    """Replace a formula by ``op(x)``, with x its only input, as `replace_formula` does."""
    x, graph = site.inputs[0], site.last.graph
    if x is None or graph is None:
        return 0
    name = f"{site.last.name}_{op.lower()}"
    gate = editor.make_node(op, [x], attributes, name=name, like=x)
    graph.insert_before(site.last, gate)
    if replace_formula(model, editor, Site((x, gate.outputs[0]), site.nodes, site.last), "Mul"):
        return 1
    graph.remove(gate, safe=True)
    return 0


def of_one(model: ir.Model, site: Site, types: Iterable[ir.DataType]) -> bool:
    """Say whether an element-wise formula of one value may become a node; refuse if not."""
    x = site.inputs[0]
    if x is None or x.dtype is None:
        return False
    if x.dtype not in types:
        edit.note_refusal(model, site.last, NO_KERNEL)
        return False
    read = {value for node in site.nodes for value in node.inputs if value is not None}
    outer = [value for value in read if value.producer() not in site.nodes and value is not x]
    if not all(match.scalar_for(value, x) or match.read_scalar(value) is None for value in outer):
        edit.note_refusal(model, site.last, WIDENS)
        return False
    return True


class Chain:
    """Collects nodes in order, in no graph yet, named after what they are made for."""

    def __init__(self, editor: edit.Editor, stem: str) -> None:
        self.nodes: list[ir.Node] = []
        self.editor, self._stem = editor, stem

    def add(
        self, op: str, *inputs: ir.Value | None, attributes: edit.Attributes | None = None
    ) -> ir.Value:
        """Add a node and return its only output."""
        return self.add_multi_output(op, *inputs, attributes=attributes)[0]

    def add_multi_output(
        self,
        op: str,
        *inputs: ir.Value | None,
        attributes: edit.Attributes | None = None,
        outputs: int = 1,
    ) -> Sequence[ir.Value]:
        """Add a node and return its outputs."""
        name = f"{self._stem}_{op}"
        node = self.editor.make_node(op, inputs, attributes, name=name, outputs=outputs)
        self.nodes.append(node)
        return node.outputs

    def add_constant(self, label: str, array: ArrayLike, dtype: Any = np.int64) -> ir.Value:
        """Add a constant."""
        return self.editor.add_constant(f"{self._stem}_{label}", np.asarray(array, dtype))

    def add_cast(self, value: ir.Value, to: ir.DataType) -> ir.Value:
        """Add a Cast."""
        return self.add("Cast", value, attributes={"to": to.value})


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
        if 4 * math.prod(sizes) > bound_weight_bytes(0):
            edit.note_refusal(model, end, "there is no scale, and one of ones would be too large")
            return 0
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
