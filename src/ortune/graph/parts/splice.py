"""Put a piece of one model in the place of the same values of another."""

from __future__ import annotations

import onnx_ir as ir

from ortune.core.errors import BadModel
from ortune.graph.io import names
from ortune.graph.ir import edit, prune
from ortune.graph.ir.replace import redirect_uses

_MARK = "splice/"


def splice(model: ir.Model, piece: ir.Model) -> ir.Model:
    """Return a model with the outputs of `piece` in the place of its values of the same names.

    What the piece takes it reads from the model's values of these names. Both are left as they are
    and share their weights with the result. Functions are inlined.

    Raises:
        BadModel: Opsets differ, or the model has no value of such a name.
    """
    model, part = model.clone(), piece.clone()
    edit.inline_functions(model)
    edit.inline_functions(part)
    for domain, version in part.opset_imports.items():
        if model.opset_imports.setdefault(domain, version) != version:
            raise BadModel(
                f"opset {version} of domain '{domain}' beside {model.opset_imports[domain]}",
                fix="raise one of the two with `ortune apply MODEL raise-opset`",
            )
    outputs = [value for node in model.graph for value in node.outputs]
    inner = [*model.graph.inputs, *model.graph.initializers.values(), *outputs]
    values = {value.name: value for value in inner if value.name}
    matches = [values.get(str(v.name)) for v in (*part.graph.inputs, *part.graph.outputs)]
    if None in matches:
        interface = [*part.graph.inputs, *part.graph.outputs]
        lost = next(v.name for v, match in zip(interface, matches, strict=True) if match is None)
        raise BadModel(f"the model has no tensor '{lost}'", fix="compare two forms of one model")
    for value in part.graph.inputs:
        value.replace_all_uses_with(values[str(value.name)])
    replacements = {str(value.name): value for value in part.graph.outputs}
    part.graph.outputs.clear()
    _move_contents(part.graph, model.graph)
    for name, new in replacements.items():
        redirect_uses(values[name], new)
    model.graph.sort()
    prune.drop_dead(model)
    names.make_names_unique(model)
    return model


def _move_contents(source: ir.Graph, graph: ir.Graph) -> None:
    """Move nodes and weights over, under names of their own."""
    weights = list(source.initializers.values())
    nodes = list(source)
    source.initializers.clear()
    source.remove(nodes)
    outer = [body for node in nodes for body in edit.list_bodies(node)]
    bodies = dict.fromkeys(subgraph for body in outer for subgraph in (body, *body.subgraphs()))
    inside = (v for body in bodies for v in (*body.inputs, *(o for n in body for o in n.outputs)))
    outputs = (value for node in nodes for value in node.outputs)
    named: list[ir.Node | ir.Value] = [*nodes, *weights, *outputs, *inside]
    for item in named:
        if item.name:
            item.name = f"{_MARK}{item.name}"
    for value in weights:
        graph.register_initializer(value)
    edit.insert_first(graph, *nodes)
