"""Put one value in the place of another, whatever reads it, outputs of graphs included."""

import onnx_ir as ir


def redirect_uses(old: ir.Value, new: ir.Value) -> bool:
    """Let everything that reads `old` read `new`; say whether it could be done.

    An output of a graph keeps its name, type and declared shape: `new` takes them over. That can
    not be done when `new` is an input, a constant, an output already, or of another graph.
    """
    graph = old.graph
    if old.is_graph_output():
        node = new.producer()
        if node is None or graph is None or node.graph is not graph or new.is_graph_output():
            return False
        name, old.name = old.name, None
        new.name = name
        new.type = old.type or new.type
        new.shape = old.shape if old.shape is not None else new.shape
        new.metadata_props.update(old.metadata_props)
        new.doc_string = old.doc_string or new.doc_string
        # `replace_graph_outputs` would go through all outputs in Python, for each of them.
        graph.outputs[graph.outputs.index(old)] = new
    old.replace_all_uses_with(new, replace_graph_outputs=True)
    return True


def remove_node(node: ir.Node) -> None:
    """Take a node that nothing reads out of its graph."""
    if node.graph is not None:
        node.graph.remove(node, safe=True)


def detach_node(node: ir.Node) -> ir.Node:
    """Let a node that nothing reads read nothing either, and return it.

    Many are then taken out of a graph at once by `Graph.remove`, which goes through all outputs.
    """
    for index in range(len(node.inputs)):
        node.replace_input_with(index, None)
    return node


def replace_node(node: ir.Node, *replacements: ir.Node) -> bool:
    """Put new nodes in the place of one of a single output; say whether it could be done.

    The last one's first output takes over the type, shape and readers, as `redirect_uses` does.
    """
    old, new = node.outputs[0], replacements[-1].outputs[0]
    if node.graph is None:
        return False
    new.type, new.shape = old.type or new.type, old.shape
    node.graph.insert_before(node, replacements)
    done = redirect_uses(old, new)
    for obsolete in [node] if done else reversed(replacements):
        remove_node(obsolete)
    return done
