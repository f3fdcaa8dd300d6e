"""Every node and every value of a model gets a name of its own."""

from __future__ import annotations

import onnx_ir as ir

from ortune.graph.ir.edit import Graph, NamesInUse
from ortune.graph.ir.uses import is_read


def make_names_unique(model: ir.Model) -> int:
    """Name what has no name, rename what shares one, and return how many names changed.

    Names of the model's inputs and outputs stay. Of several that share a name, the first in the
    order of the file keeps it, values of the main graph before those of its bodies; the others get
    ``_2``, ``_3`` and so on. The result depends on the model alone, and a second call changes
    nothing. A function's names are a world of their own, as in ONNX.
    """
    changed = _rename_graph(model.graph)
    return changed + sum(_rename_graph(function) for function in model.functions.values())


def _rename_graph(graph: Graph) -> int:
    bodies: list[Graph] = [graph, *graph.subgraphs()]
    names = NamesInUse(node.name for body in bodies for node in body if node.name)
    seen: set[str] = set()
    changed = 0
    for body in bodies:
        for index, node in enumerate(body):
            if node.name and node.name not in seen:
                seen.add(node.name)
                continue
            stem = node.name or f"{node.op_type}_{index}"
            node.name = names.reserve_name(stem, bare=not node.name)
            seen.add(node.name)
            changed += 1
    return changed + _rename_values(bodies)


def _rename_values(bodies: list[Graph]) -> int:
    kept = {value for value in (*bodies[0].inputs, *bodies[0].outputs) if value.name}
    values = list(dict.fromkeys(value for body in bodies for value in _list_values(body)))
    names = NamesInUse(value.name for value in values if value.name)
    seen = {str(value.name) for value in kept}
    changed = 0
    for value in values:
        if value in kept:
            continue
        if value.name and value.name not in seen:
            seen.add(value.name)
            continue
        node = value.producer()
        if not value.name and node is not None and not is_read(value):
            continue  # an optional output that is left out: no name is its meaning
        stem = value.name or (f"{node.name}_out" if node is not None else "value")
        value.name = names.reserve_name(stem, bare=not value.name)
        seen.add(value.name)
        changed += 1
    return changed


def _list_values(body: Graph) -> list[ir.Value]:
    initializers = list(body.initializers.values()) if isinstance(body, ir.Graph) else []
    return [*body.inputs, *initializers, *(value for node in body for value in node.outputs)]
