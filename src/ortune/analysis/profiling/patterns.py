"""Parts of a model that could be one kernel, by rewrites and by graph patterns.

Nothing is changed: rewrites are tried on copies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ortune.core.step import Step, Transform
from ortune.model.graph import edit

_ACTIVATIONS = frozenset(
    ("Relu", "Sigmoid", "Tanh", "LeakyRelu", "Clip", "HardSigmoid", "HardSwish", "Elu", "Mish")
)
_BETWEEN = frozenset(("Mul", "Div", "Add", "Where", "Cast", "Transpose", "Reshape", "Sub"))
_STEPS_BACK = 6
"""Scaling, masking and casting between the scores' product and the softmax."""


@dataclass(frozen=True)
class Change:
    """What a rewrite would do.

    Attributes:
        removed: Names of the nodes that would go.
        added: Number of nodes that would come.
    """

    removed: frozenset[str]
    added: int


def change(model: ir.Model, steps: Sequence[Step], last: Step) -> Change:
    """Try steps on a copy and return what the last one changes; nothing where it is refused."""
    copy = model.clone()
    edit.inline(copy)
    before: set[str] = set()
    try:
        for step in steps:
            if step == last:
                before = _names(copy)
            if isinstance(step, Transform):
                step.apply(copy)
    except Exception:  # a build would take the step back, whatever it stumbled over
        return Change(frozenset(), 0)
    after = _names(copy)
    return Change(frozenset(before - after), len(after - before))


def weighted(model: ir.Model, ops: Iterable[str]) -> frozenset[str]:
    """Return the names of the nodes of some operators that have a constant matrix."""
    wanted = frozenset(ops)
    return frozenset(
        node.name
        for node in edit.every_node(model)
        if node.op_type in wanted and node.name and any(map(_matrix, node.inputs[1:]))
    )


def _matrix(value: ir.Value | None) -> bool:
    """Whether a value is constant and of two dimensions or more; also behind a DQ."""
    if value is None:
        return False
    source = value.producer()
    if source is not None and source.op_type == "DequantizeLinear":
        value = source.inputs[0]
    tensor = None if value is None else value.const_value
    return tensor is not None and len(tensor.shape) >= 2


def attention(model: ir.Model) -> Iterator[frozenset[str]]:
    """Yield the nodes of every softmax between two products, with what scales and masks."""
    for node in edit.every_node(model):
        if node.op_type != "Softmax" or node.domain:
            continue
        after = [use.node for out in node.outputs for use in out.uses()]
        product = next((one for one in after if one.op_type == "MatMul"), None)
        chain = _back_to(node, "MatMul")
        if product is not None and chain:
            nodes = [*chain, node, product]
            yield frozenset(one.name for one in nodes if one.name)


def activations(model: ir.Model) -> Iterator[frozenset[str]]:
    """Yield every convolution whose only reader is an activation, with it."""
    for node in edit.every_node(model):
        if node.op_type not in _ACTIVATIONS:
            continue
        source = node.inputs[0].producer() if node.inputs and node.inputs[0] else None
        if source is None or source.op_type not in ("Conv", "ConvTranspose", "BatchNormalization"):
            continue
        if len(list(source.outputs[0].uses())) == 1 and source.name and node.name:
            yield frozenset({source.name, node.name})


def neighbours(model: ir.Model, nodes: Iterable[str]) -> Counter[str]:
    """Count the operators that Q/DQ nodes stand beside: readers of a DQ, writers to a Q."""
    wanted, found = frozenset(nodes), Counter[str]()
    for node in edit.every_node(model):
        if node.name not in wanted:
            continue
        if node.op_type == "QuantizeLinear":
            source = node.inputs[0].producer() if node.inputs[0] else None
            found.update([source.op_type] if source else ["input"])
        else:
            readers = [use.node.op_type for out in node.outputs for use in out.uses()]
            found.update(readers or ["output"])
    return found


def _back_to(node: ir.Node, op: str) -> list[ir.Node]:
    """Follow a node's inputs back to an operator over element-wise ones; none if it is not."""
    chain: list[ir.Node] = []
    here = node
    for _ in range(_STEPS_BACK):
        sources = [value.producer() for value in here.inputs if value is not None]
        known = [one for one in sources if one is not None]
        product = next((one for one in known if one.op_type == op), None)
        if product is not None:
            return [*chain, product]
        inner = next((one for one in known if one.op_type in _BETWEEN), None)
        if inner is None:
            return []
        chain.append(inner)
        here = inner
    return []


def _names(model: ir.Model) -> set[str]:
    return {node.name for node in edit.every_node(model) if node.name}
