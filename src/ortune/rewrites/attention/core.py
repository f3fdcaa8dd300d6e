"""Find scaled dot-product attention: what a Softmax's rows are made of, and what reads them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from ortune.model.graph import edit
from ortune.model.graph.match import maker, number, scalar_for


@dataclass(frozen=True)
class Select:
    """Scores kept where `keep` holds (does not hold: `inverse`), elsewhere one number.

    Attributes:
        inverse: The condition says what is left out.
    """

    keep: ir.Value
    fill: ir.Value
    inverse: bool


@dataclass(frozen=True)
class Core:
    """``softmax(scale query key^T + masks) value``, of rank 4, key still transposed.

    Attributes:
        query: ``[batch, heads, queries, size]``.
        key: ``[batch, heads, size, keys]``.
        value: ``[batch, heads, keys, size of a value]``.
        scale: What was multiplied onto the product; factors on query and key are still in them.
        masks: Added to the scores, or selecting among them, from the scores on.
        guarded: Rows that are not numbers are replaced by zeros.
        product: The MatMul that makes the result.
    """

    query: ir.Value
    key: ir.Value
    value: ir.Value
    scale: float
    masks: tuple[ir.Value | Select, ...]
    guarded: bool
    product: ir.Node


class NotFusable(Exception):
    """It is attention, and the text says why it is left alone."""


def find(softmax: ir.Node) -> Core | None:
    """Return the attention around a Softmax, None when it is another's.

    Raises:
        NotFusable: It is, but cannot be written as one operator.
    """
    scores, rows = softmax.inputs[0], softmax.outputs[0]
    if scores is None or _traced(scores) is None:
        return None
    after = _product(rows)
    if after is None:
        return None
    product, guarded, inner = after
    value = product.inputs[1]
    rank = None if scores.shape is None else len(scores.shape)
    if rank != 4 or value is None or value.shape is None or len(value.shape) != 4:
        raise NotFusable("its tensors are not known to have four dimensions")
    if edit.attribute(softmax, "axis", -1) not in (-1, rank - 1):
        raise NotFusable("its Softmax is not over the keys")
    if scores.dtype != ir.DataType.FLOAT:
        raise NotFusable("it is not of float32")
    found = _traced(scores)
    if found is None:
        return None
    path, masks, scale = found
    # Check that nothing else reads the scores or the probabilities.
    own = {*path, *inner, softmax}
    for node in (*path, softmax, *inner):
        for made in node.outputs:
            outside = [user for user, _ in made.uses() if user not in own]
            last = made is (inner[-1] if inner else softmax).outputs[0]
            if made.is_graph_output() or len(outside) > (1 if last else 0):
                raise NotFusable("its scores or probabilities are read elsewhere too")
    first = path[-1]
    query, key = first.inputs
    if query is None or key is None or {n.graph for n in (*path, *inner)} != {softmax.graph}:
        raise NotFusable("its parts lie in several graphs")
    if scale <= 0:
        raise NotFusable("its scale is not positive")
    return Core(query, key, value, scale, tuple(reversed(masks)), guarded, product)


_Trace = tuple[list[ir.Node], list["ir.Value | Select"], float]


def _traced(value: ir.Value, scale: float = 1.0, depth: int = 8) -> _Trace | None:
    """Follow scores back to the product of two activations."""
    node = value.producer()
    if node is None or node.domain or depth == 0:
        return None
    if node.op_type == "MatMul":
        constant = any(edit.const_tensor(one) is not None for one in node.inputs)
        return None if constant else ([node], [], 1.0)
    for inner, mask, factor in _steps(node):
        found = _traced(inner, scale, depth - 1)
        if found is None:
            continue
        path, masks, below = found
        if factor != 1.0 and masks:
            raise NotFusable("its mask is scaled together with the scores")
        return [node, *path], [mask, *masks] if mask is not None else masks, below * factor
    return None


def _steps(node: ir.Node) -> Iterator[tuple[ir.Value, ir.Value | Select | None, float]]:
    """Yield what may be the scores one step before: the value, a mask, a factor."""
    parts = [value for value in node.inputs if value is not None]
    if len(parts) != len(node.inputs):
        return
    if node.op_type == "Add":
        yield parts[0], parts[1], 1.0
        yield parts[1], parts[0], 1.0
    elif node.op_type == "Mul":
        for one, two in (parts, reversed(parts)):
            factor = _factor(two, one)
            if factor is not None:
                yield one, None, factor
    elif node.op_type == "Div":
        factor = _factor(parts[1], parts[0])
        if factor:
            yield parts[0], None, 1 / factor
    elif node.op_type == "Where":
        if number(parts[2]) is not None:
            yield parts[1], Select(parts[0], parts[2], False), 1.0
        if number(parts[1]) is not None:
            yield parts[2], Select(parts[0], parts[1], True), 1.0
    elif node.op_type == "Identity":
        yield parts[0], None, 1.0


def _factor(constant: ir.Value, value: ir.Value) -> float | None:
    return number(constant) if scalar_for(constant, value) else None


def _product(rows: ir.Value) -> tuple[ir.Node, bool, list[ir.Node]] | None:
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
    test = maker(node.inputs[0], "IsNaN") if node.op_type == "Where" and not node.domain else None
    return test is not None and test.inputs[0] is rows and number(node.inputs[1]) == 0.0
