"""Turn what is the same in every run into constants."""

import math
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortune.graph.analysis.facts import count_weight_bytes
from ortune.graph.ir import edit, evaluate, match
from ortune.graph.shapes.known_values import SymbolicValues
from ortune.transforms.common.simplify.reshapes import make_copy_target

SMALL_BYTES = 64 << 10
"""A result up to this size is stored even where the file grows by it."""

LARGE_BYTES = 256 << 20
"""A larger result is never computed: a node on a weight is cheaper than a copy of it in memory."""

HELD_BYTES = 1 << 30
"""Results above `SMALL_BYTES` that are held in memory at most, until the file is written."""

_READ_BYTES = 4 << 30
"""Bytes of constants that are read at most: many nodes may reduce the same large weight."""

_NODE_BYTES = 64
"""About what a node takes in a file: results up to this size are no growth."""

_MARK = "_folded"
_BODIES_HOLD = 4
"""Version of the file format from which initializers need not be inputs as well."""


def fold_constants(model: ir.Model, symbolic_values: SymbolicValues, most_bytes: int) -> int:
    """Replace computations on constants by their results and return how many went.

    A result that would make the file grow by more than `SMALL_BYTES` is not stored, nor one above
    `LARGE_BYTES`, nor more than `HELD_BYTES` in all; an output of a graph keeps its node. Bodies
    are folded too, into constants of the main graph.

    Args:
        most_bytes: What the weights may become together.
    """
    editor = edit.Editor(model.graph)
    opset = model.opset_imports.get("", 0)
    spare = most_bytes - count_weight_bytes(model)
    # Results that are in memory already.
    stored = [v.const_value for n, v in model.graph.initializers.items() if _MARK in n]
    large = [t.nbytes for t in stored if isinstance(t, ir.Tensor) and t.nbytes > SMALL_BYTES]
    room, unread = HELD_BYTES - sum(large), _READ_BYTES
    bodies_hold = (model.ir_version or 0) >= _BODIES_HOLD
    count = 0
    for graph in (model.graph, *list(model.graph.subgraphs())):
        for node in list(graph):
            if node.op_type == "Constant" and not node.domain:
                count += _lift_constant(node, graph) if graph is model.graph or bodies_hold else 0
                continue
            results = _compute_results(node, symbolic_values, opset, room, unread)
            if isinstance(results, str):
                edit.note_refusal(model, node, results)
                continue
            if results is None:
                continue
            growth = sum(array.nbytes for array in results) - _count_freed_bytes(node)
            if growth > max(spare, _NODE_BYTES):
                edit.note_refusal(
                    model, node, "constants computed in advance would make the file grow"
                )
                continue
            spare -= growth if growth > _NODE_BYTES else 0
            unread -= _count_input_bytes(node)
            room -= sum(array.nbytes for array in results if array.nbytes > SMALL_BYTES)
            for value, array in zip(node.outputs, results, strict=False):
                if value.uses() and not value.is_graph_output():
                    ordered = np.asarray(array, order="C")
                    edit.redirect_uses(value, editor.add_constant(f"{value.name}{_MARK}", ordered))
                    count += 1
    return count


def settle_targets(model: ir.Model, symbolic_values: SymbolicValues) -> int:
    """Replace computed targets of Reshape and Expand by constants; return how many.

    A dimension that is known by the name of the source's is written as 0 (Reshape: copy it) or 1
    (Expand: keep it), one that is not known as -1 when it is the only one. Such a Reshape refuses
    an empty tensor whose empty dimension is copied.
    """
    editor = edit.Editor(model.graph)
    count = 0
    for node in match.nodes_of(model, "Reshape", "Expand"):
        target = _find_constant_target(node, symbolic_values) if len(node.inputs) > 1 else None
        if target is not None:
            constant = editor.add_constant(f"{node.name}_to", np.array(target, np.int64))
            node.replace_input_with(1, constant)
            node.attributes.pop("allowzero", None)
            count += 1
    return count


def take_branches(model: ir.Model, symbolic_values: SymbolicValues) -> int:
    """Put the branch that is always taken in the place of an If; return how many went."""
    count = 0
    for node in match.nodes_of(model, "If"):
        condition = symbolic_values.read_array(node.inputs[0])
        if condition is not None and condition.size == 1:
            name = "then_branch" if condition.reshape(-1)[0] else "else_branch"
            _splice_branch(model, node, node.attributes[name].as_graph())
            count += 1
    return count


def _splice_branch(model: ir.Model, node: ir.Node, body: ir.Graph) -> None:
    graph = node.graph
    if graph is None:
        return
    outputs = list(body.outputs)
    body.outputs.clear()
    for name, value in list(body.initializers.items()):
        del body.initializers[name]
        model.graph.register_initializer(value)
    nodes = list(body)
    body.remove(nodes)
    # An Identity an output: what is passed through may be an input or a constant.
    ends = [ir.node("Identity", [v], name=f"{node.name}_{i}") for i, v in enumerate(outputs)]
    graph.insert_before(node, [*nodes, *ends])
    for old, end in zip(node.outputs, ends, strict=False):
        new = end.outputs[0]
        new.name, new.type, new.shape = f"{old.name}_taken", old.type, old.shape
        edit.redirect_uses(old, new)
    graph.remove(node, safe=True)


def _lift_constant(node: ir.Node, graph: ir.Graph) -> int:
    """Make a Constant node an initializer of its graph: runtimes look for a body's in the body."""
    value = node.outputs[0]
    tensor = edit.const_tensor(value)
    if tensor is None or value.is_graph_output():
        return 0
    name = value.name
    value.name = None
    kind, shape = ir.TensorType(tensor.dtype), ir.Shape(tensor.shape.numpy())
    initializer = ir.Value(name=name, type=kind, shape=shape, const_value=tensor)
    graph.register_initializer(initializer)
    value.replace_all_uses_with(initializer)
    graph.remove(node, safe=True)
    return 1


def _compute_results(
    node: ir.Node, symbolic_values: SymbolicValues, opset: int, room: int, unread: int
) -> list[NDArray[Any]] | str | None:
    """Return what a node makes of constants, or why that is not kept though it could be."""
    if node.outputs and all(v in symbolic_values.arrays for v in node.outputs if v.name):
        return [symbolic_values.arrays[value] for value in node.outputs if value.name]
    tensors = [edit.const_tensor(value) for value in node.inputs]
    for value, tensor in zip(node.inputs, tensors, strict=True):
        if value is not None and (tensor is None or edit.is_overridable(value)):
            return None
    if not node.inputs or not any(value.uses() for value in node.outputs):
        return None
    input_bytes = _count_input_bytes(node)
    size = _count_output_bytes(node)
    if input_bytes > min(LARGE_BYTES, unread) or size > max(SMALL_BYTES, _count_freed_bytes(node)):
        return None
    if size > SMALL_BYTES and size > room and node.op_type in evaluate.FOLDED and not node.domain:
        return "constants computed from weights would fill memory"
    largest = max(SMALL_BYTES, _count_freed_bytes(node))
    arrays = evaluate.evaluate_node(
        node, [edit.const_array(value) for value in node.inputs], opset, largest
    )
    return None if arrays is None or sum(a.nbytes for a in arrays) > largest else arrays


def _count_input_bytes(node: ir.Node) -> int:
    tensors = map(edit.const_tensor, node.inputs)
    return sum(tensor.nbytes for tensor in tensors if tensor is not None)


def _count_output_bytes(node: ir.Node) -> int:
    """Return the bytes of the outputs as far as shapes tell."""
    total = 0
    for value in node.outputs:
        shape = edit.shape_of(value)
        if shape is not None and value.dtype not in (None, ir.DataType.STRING):
            items = [dim for dim in shape if isinstance(dim, int)]
            total += math.prod(items) * (max(1, value.dtype.bitwidth // 8) if value.dtype else 1)
    return total


def _count_freed_bytes(node: ir.Node) -> int:
    """Return the bytes of the constants that only this node reads."""
    total = 0
    for value in set(node.inputs):
        tensor = edit.const_tensor(value)
        if value is not None and tensor is not None and len(edit.list_readers(value, 2)) == 1:
            total += tensor.nbytes
    return total


def _find_constant_target(node: ir.Node, symbolic_values: SymbolicValues) -> list[int] | None:
    """Return the constant that may stand for the second input, if it is not constant yet."""
    source, second = node.inputs[:2]
    shape = edit.shape_of(source)
    to = symbolic_values.read_partial(second)
    constant = edit.const_tensor(second) is not None or second in symbolic_values.arrays
    if constant or to is None or to.scalar:
        return None
    if node.op_type == "Reshape":
        target = make_copy_target(shape or (), to.items)
        return target if target.count(-1) <= 1 and 0 not in to.items else None
    if shape is None:
        return None
    target = []
    for index, item in enumerate(to.items):
        behind = len(shape) - len(to.items) + index
        if isinstance(item, int):
            target.append(item)
        elif item is not None and behind >= 0 and shape[behind] == item:
            target.append(1)
        else:
            return None
    return target
