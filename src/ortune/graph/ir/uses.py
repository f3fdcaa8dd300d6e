"""Who reads a value."""

import onnx_ir as ir


def is_read(value: ir.Value) -> bool:
    """Say whether a node reads a value, or its graph puts it out."""
    return bool(value._uses) or value.is_graph_output()


def has_single_use(value: ir.Value) -> bool:
    """Say whether a value is read in one place only, by a node."""
    return len(value._uses) == 1 and not value.is_graph_output()


def list_readers(value: ir.Value, most: int) -> list[ir.Node]:
    """Return the first nodes that read a value, `most` of them; each stands once.

    `Value.uses` copies all: a weight with a hundred thousand readers once for each of them.
    """
    readers: dict[ir.Node, None] = {}
    for node, _ in value._uses:
        readers[node] = None
        if len(readers) == most:
            break
    return list(readers)


def only_reader(value: ir.Value) -> ir.Node | None:
    """Return the node that alone reads a value, of whatever operator; None where there is none."""
    return next(iter(value.uses())).node if has_single_use(value) else None
