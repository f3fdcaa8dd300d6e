"""One value in the place of another, under the name that it had."""

from __future__ import annotations

import onnx_ir as ir


def stand_in(old: ir.Value, new: ir.Value) -> None:
    """Let everything read `new` instead of `old`, graph outputs included.

    `new` takes over name, type and shape; the node of `old` is left for the caller to remove.
    """
    new.shape, new.type = old.shape, old.type
    old.replace_all_uses_with(new, replace_graph_outputs=True)
    name, old.name = old.name, None
    new.name = name
