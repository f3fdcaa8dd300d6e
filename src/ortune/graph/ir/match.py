"""Small questions that rewrites ask about the graph around a node."""

from collections.abc import Collection, Iterator

import onnx_ir as ir

from ortune.graph.ir import edit

NOT_NEGATIVE = ("Relu", "Sigmoid", "HardSigmoid", "Softmax", "Abs")
"""Operators that make nothing below 0."""
RANDOM = frozenset(
    {"RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Bernoulli"}
    | {"Multinomial"}
)
"""Operators that draw numbers."""


def qualify_operator(node: ir.Node) -> str:
    """Return a node's operator, that of another domain as ``com.microsoft::Gelu``."""
    return f"{node.domain}::{node.op_type}" if node.domain else node.op_type


def nodes_of(model: ir.Model, *ops: str) -> Iterator[ir.Node]:
    """Yield the nodes of these operators, bodies included; safe while nodes come and go."""
    for graph in (model.graph, *model.graph.subgraphs()):
        for node in list(graph):
            if node.op_type in ops and not node.domain and node.graph is not None:
                yield node


def find_producer(value: ir.Value | None, *ops: str) -> ir.Node | None:
    """Return the node behind a value when it is one of these operators of the default domain."""
    node = value.producer() if value is not None else None
    return node if node is not None and not node.domain and node.op_type in ops else None


def find_consumer(value: ir.Value, *ops: str) -> ir.Node | None:
    """Return the only node that reads a value when it is one of these operators."""
    readers = edit.list_readers(value, 2)
    if len(readers) != 1 or value.is_graph_output():
        return None
    node = readers.pop()
    return node if not node.domain and node.op_type in ops else None


def find_other_operand(node: ir.Node, value: ir.Value | None) -> ir.Value | None:
    """Return the operand of a binary node that is not `value`; None when neither is."""
    if len(node.inputs) != 2 or value not in node.inputs:
        return None
    return node.inputs[1 if node.inputs[0] is value else 0]


def read_scalar(value: ir.Value | None) -> float | None:
    """Return a constant of one element as a float; None for anything else."""
    tensor = edit.const_tensor(value)
    if tensor is None or tensor.size != 1 or edit.is_overridable(value):
        return None
    array = edit.const_array(value)
    if array is None or array.dtype.kind not in "iuf":
        return None
    return float(array.reshape(-1)[0])


def read_reduction_axes(node: ir.Node) -> tuple[int, ...] | None:
    """Return the axes of a reduction, an attribute or an input; None unless dims are kept."""
    if not edit.read_attribute(node, "keepdims", 1):
        return None
    if len(node.inputs) > 1 and node.inputs[1] is not None:
        array = edit.read_fixed_array(node.inputs[1])
        return None if array is None else tuple(int(axis) for axis in array.reshape(-1))
    axes = edit.read_attribute(node, "axes", None)
    return None if axes is None else tuple(axes)


def scalar_for(constant: ir.Value | None, value: ir.Value | None) -> bool:
    """Say whether arithmetic with a one-element constant keeps the shape of `value`."""
    tensor = edit.const_tensor(constant)
    if tensor is None or tensor.size != 1:
        return False
    if len(tensor.shape) == 0:
        return True
    shape = edit.shape_of(value)
    return shape is not None and len(tensor.shape) <= len(shape)


def is_enclosed(nodes: Collection[ir.Node], last: ir.Node) -> bool:
    """Say whether nothing outside of `nodes` reads what they make, but for `last`'s outputs.

    All must be in the graph of `last`.
    """
    for node in nodes:
        if node.graph is not last.graph:
            return False
        if node is last:
            continue
        for value in node.outputs:
            if value.is_graph_output() or any(user not in nodes for user, _ in value.uses()):
                return False
    return True
