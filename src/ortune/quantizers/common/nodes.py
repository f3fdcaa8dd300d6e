"""Nodes that the writers of integers add, and how values take each other's place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortune.graph.ir import edit
from ortune.graph.ir.uses import is_read


def constants(editor: edit.Editor, stem: str, **arrays: NDArray[Any]) -> list[ir.Value]:
    """Add constants, named after a stem and their keywords."""
    return [editor.constant(f"{stem}_{name}", array) for name, array in arrays.items()]


def dequantized(
    editor: edit.Editor,
    stem: str,
    parts: Sequence[ir.Value],
    axis: int | None = None,
    domain: str = "",
) -> ir.Node:
    """Return a DequantizeLinear of integers, their steps and zero points."""
    attributes = {} if axis is None else {"axis": axis}
    node = editor.node("DequantizeLinear", parts, attributes, name=f"{stem}_dq", domain=domain)
    node.outputs[0].shape, node.outputs[0].dtype = parts[0].shape, ir.DataType.FLOAT
    return node


def cast_and_multiplied(
    editor: edit.Editor, stem: str, integers: ir.Value, factor: ir.Value
) -> tuple[ir.Node, ir.Node]:
    """Return the Cast and Mul of constant integers, which onnxruntime folds when it loads."""
    cast = editor.node("Cast", [integers], {"to": int(ir.DataType.FLOAT)}, name=f"{stem}_cast")
    made = editor.node("Mul", [cast.outputs[0], factor], name=f"{stem}_wide")
    made.outputs[0].shape, made.outputs[0].dtype = integers.shape, ir.DataType.FLOAT
    return cast, made


def put_behind(value: ir.Value, home: edit.Graph, *nodes: ir.Node) -> None:
    """Place nodes right behind a tensor, or in front of the graph that takes it from outside."""
    producer = value.producer()
    if producer is None or producer.graph is not home:
        edit.insert_first(home, *nodes)
    else:
        edit.insert_after(producer, *nodes)


def multiplied(
    editor: edit.Editor, value: ir.Value, factor: NDArray[np.float32], home: edit.Graph
) -> ir.Value:
    """Return a value's product with factors along its last axis, which nothing reads yet."""
    held = editor.constant(f"{value.name}_factor", factor)
    made = editor.node("Mul", [value, held], name=f"{value.name}_smooth")
    made.outputs[0].shape, made.outputs[0].type = value.shape, value.type
    put_behind(value, home, made)
    return made.outputs[0]


def sum_of_one(editor: edit.Editor, value: ir.Value, suffix: str) -> ir.Value:
    """Return a copy of a value that nothing reads yet: runtimes look no further through a Sum."""
    made = editor.node("Sum", [value], name=f"{value.name}_{suffix}")
    made.outputs[0].shape, made.outputs[0].type = value.shape, value.type
    producer = value.producer()
    assert producer is not None
    edit.insert_after(producer, made)
    return made.outputs[0]


def stand_in(old: ir.Value, new: ir.Value) -> None:
    """Let everything read `new` instead of `old`, graph outputs included.

    `new` takes over name, type and shape; what was made for `old` alone is removed.
    """
    new.shape, new.type = old.shape, old.type
    old.replace_all_uses_with(new, replace_graph_outputs=True)
    name, old.name = old.name, None
    new.name = name
    discard_back(old)


def discard_back(value: ir.Value | None) -> None:
    """Remove a value that nothing reads any more, and before it what was made for it alone."""
    ahead = [value]
    while ahead:
        one = ahead.pop()
        if one is None or is_read(one):
            continue
        node = one.producer()
        if node is None:
            edit.discard(one)
        elif node.graph is not None and not any(map(is_read, node.outputs)):
            ahead += node.inputs
            node.graph.remove(node, safe=True)


def take_output(editor: edit.Editor, graph: ir.Graph, value: ir.Value, instead: ir.Value) -> None:
    """Make `instead` a graph's output in a value's place, under the name it had."""
    name, outputs = str(value.name), graph.outputs
    for index, output in enumerate(outputs):
        if output is value:
            outputs[index] = instead
    value.name = editor.fresh(f"{name}_float")
    instead.name = name
