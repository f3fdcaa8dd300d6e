"""Constants of a graph: which there are, and which a caller may put another value in for."""

from collections.abc import Iterator
from typing import Any

import onnx_ir as ir
from numpy.typing import NDArray

from ortune.graph.ir import edit


def is_overridable(value: ir.Value | None) -> bool:
    """Say whether a constant is only the default of an input, which a caller may override."""
    value = edit.follow_identities(value)
    return value is not None and value.is_graph_input() and value.is_initializer()


def read_fixed_array(value: ir.Value | None) -> NDArray[Any] | None:
    """Return a constant that no caller may override; None for anything else."""
    return None if is_overridable(value) else edit.const_array(value)


def list_named_weights(model: ir.Model) -> Iterator[tuple[str, ir.TensorProtocol]]:
    """Yield initializers and Constant nodes of all graphs, by the name of their value."""
    return ((str(value.name), tensor) for value, tensor in list_weights(model))


def list_weights(model: ir.Model) -> Iterator[tuple[ir.Value, ir.TensorProtocol]]:
    """Yield the values of initializers and Constant nodes of all graphs, with their tensors."""
    for graph in edit.walk_graphs(model):
        if isinstance(graph, ir.Graph):
            for value in graph.initializers.values():
                if value.const_value is not None:
                    yield value, value.const_value
        for node in graph:
            if node.op_type == "Constant" and not node.domain:
                tensor = edit.const_tensor(node.outputs[0])
                if tensor is not None:
                    yield node.outputs[0], tensor
