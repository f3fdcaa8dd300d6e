"""Every node and every value of a model gets a name of its own."""

import onnx_ir as ir

from ortune.graph.ir.edit import Graph, NamesInUse, is_read


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
            changed += _take_name(node, f"{node.op_type}_{index}", names, seen)
    kept = {value for value in (*bodies[0].inputs, *bodies[0].outputs) if value.name}
    values = list(dict.fromkeys(value for body in bodies for value in _list_values(body)))
    names = NamesInUse(value.name for value in values if value.name)
    seen = {str(value.name) for value in kept}
    for value in values:
        maker = value.producer()
        if value in kept or (not value.name and maker is not None and not is_read(value)):
            continue  # an optional output that is left out: no name is its meaning
        stem = f"{maker.name}_out" if maker is not None else "value"
        changed += _take_name(value, stem, names, seen)
    return changed


def _take_name(item: ir.Node | ir.Value, stem: str, names: NamesInUse, seen: set[str]) -> bool:
    """Let an item keep a name that is its own, give it another else; say whether it changed."""
    changes = not item.name or item.name in seen
    if changes:
        item.name = names.reserve_name(item.name or stem, bare=not item.name)
    seen.add(str(item.name))
    return changes


def _list_values(body: Graph) -> list[ir.Value]:
    initializers = list(body.initializers.values()) if isinstance(body, ir.Graph) else []
    return [*body.inputs, *initializers, *(value for node in body for value in node.outputs)]
