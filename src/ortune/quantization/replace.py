"""One value in the place of another, and what is removed then."""

from __future__ import annotations

import onnx_ir as ir

from ortune.model.graph import edit
from ortune.model.graph.uses import is_read


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
