"""Take out of a model what changes nothing: dead nodes, unread weights, copies of weights."""

import hashlib
from collections.abc import Callable, Iterable

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortune.graph.ir.edit import Editor, detach_node, is_read, walk_graphs

_SAMPLED = 64
_WORTH = 1 << 10


def drop_dead(model: ir.Model) -> int:
    """Remove nodes and initializers that nothing reads, in all graphs, and return how many."""
    count = 0
    for graph in reversed(list(walk_graphs(model))):
        dead = [detach_node(n) for n in reversed(list(graph)) if not any(map(is_read, n.outputs))]
        graph.remove(dead, safe=True)
        count += len(dead)
    for body in model.graphs():
        for name, value in list(body.initializers.items()):
            if not (is_read(value) or value.is_graph_input()):
                del body.initializers[name]
                count += 1
    return count


def edit_nodes(model: ir.Model, attempt: Callable[[Editor, ir.Node], int]) -> int:
    """Try an edit at every node of all graphs, then drop what is dead; return how many were."""
    count = 0
    for graph in walk_graphs(model):
        editor = Editor(graph)
        count += sum(attempt(editor, node) for node in list(graph))
    if count:
        drop_dead(model)
    return count


def share_weights(model: ir.Model) -> int:
    """Let one of several initializers with equal content serve all readers; return how many went.

    Few elements are compared first, so that weights which differ are hardly read. Defaults of
    inputs, outputs and strings are left alone. A body's initializer gives way to one of the main
    graph where that saves `_WORTH` bytes and only standard operators read it: runtimes look for
    small constants, and for those of their own operators, in the body itself.
    """
    bodies = list(model.graph.subgraphs())
    movable = [value for b in bodies for value in b.initializers.values() if _may_leave(value)]
    count = _share_among([*model.graph.initializers.values(), *movable], model.graph)
    return count + sum(_share_among(body.initializers.values(), body) for body in bodies)


def _may_leave(value: ir.Value) -> bool:
    tensor = value.const_value
    standard = all(not node.domain for node, _ in value.uses())
    return standard and tensor is not None and tensor.nbytes >= _WORTH


def _share_among(values: Iterable[ir.Value], graph: ir.Graph) -> int:
    """Let initializers of `graph` serve for others, which may be of its bodies."""
    groups: dict[tuple[object, ...], list[ir.Value]] = {}
    for value in values:
        tensor = value.const_value
        fixed = not (value.is_graph_input() or value.is_graph_output())
        if tensor is not None and fixed and tensor.dtype != ir.DataType.STRING:
            key = (tensor.dtype, tuple(tensor.shape), tensor.nbytes)
            groups.setdefault(key, []).append(value)
    return sum(_share_equal(group, graph) for group in groups.values() if len(group) > 1)


def _share_equal(values: Iterable[ir.Value], graph: ir.Graph) -> int:
    count = 0
    sampled: dict[bytes, list[ir.Value]] = {}
    for value in values:
        content = _view_bytes(value)
        sample = content[:: max(1, content.size // _SAMPLED)].tobytes()
        sampled.setdefault(sample, []).append(value)
    for alike in sampled.values():
        twins: dict[bytes, ir.Value] = {}
        for value in alike if len(alike) > 1 else ():
            digest = hashlib.sha256(_view_bytes(value).data).digest()
            if value.graph is graph:
                twin = twins.setdefault(digest, value)
            else:
                twin = twins.get(digest, value)
            if twin is not value:
                value.replace_all_uses_with(twin)
                if value.graph is not None and value.name is not None:
                    del value.graph.initializers[value.name]
                count += 1
    return count


def _view_bytes(value: ir.Value) -> NDArray[np.uint8]:
    tensor = value.const_value
    if tensor is None:
        raise ValueError(f"'{value.name}' is not a constant")
    if isinstance(tensor, ir.PackedTensor):
        return tensor.numpy_packed().reshape(-1).view(np.uint8)
    return np.ascontiguousarray(tensor.numpy()).reshape(-1).view(np.uint8)
