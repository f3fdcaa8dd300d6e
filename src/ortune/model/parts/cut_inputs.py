"""Where ways round the beginning of a piece come into it."""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from ortune.model.parts.extract import reads


def crossings(piece: ir.Model, named: Collection[str]) -> list[str]:
    """Return the tensors that would have to be inputs too, so that no way goes round `named`.

    Nodes that depend on an input of `named` read them; they depend on the other inputs alone.
    """
    inside = {value for value in piece.graph.inputs if value.name in named}
    given = [value for value in piece.graph.inputs if not value.is_initializer()]
    outside = {value for value in given if value not in inside}
    found: dict[str, None] = {}
    for node in piece.graph:
        read = list(reads(node))
        if not inside.isdisjoint(read):
            inside.update(node.outputs)
            found |= dict.fromkeys(str(value.name) for value in read if value in outside)
        elif not outside.isdisjoint(read):
            outside.update(node.outputs)
    ends = (str(value.name) for value in piece.graph.outputs if value in outside)
    return [name for name in found if name not in set(ends)]
