"""Names for lengths that nothing is known of, so that equal ones are seen to be equal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import onnx_ir as ir

from ortune.model.graph.edit import every_graph
from ortune.model.graph.spec import shape_of
from ortune.model.shapes.infer import infer
from ortune.model.shapes.known_values import Known
from ortune.model.shapes.node import infer_node


@contextmanager
def named(model: ir.Model) -> Iterator[None]:
    """Give every unknown length a name of its own where it first appears, for the block's time.

    What follows from it gets the same name, through arithmetic on shapes too. That a length has a
    name says nothing about it: it may be 1.
    """
    infer(model)
    made: set[str] = set()
    known = Known()
    for node in model.graph:
        infer_node(node, model.opset_imports, known)
        for value in node.outputs:
            _name(value, made)
    try:
        yield
    finally:
        for graph in every_graph(model):
            for value in (*graph.inputs, *(v for node in graph for v in node.outputs)):
                shape = shape_of(value)
                if shape is not None and made & {d for d in shape if isinstance(d, str)}:
                    value.shape = ir.Shape([None if d in made else d for d in shape])


def _name(value: ir.Value, made: set[str]) -> None:
    shape = shape_of(value)
    if shape is None or None not in shape or value.is_graph_output():
        return
    full = [f"length {len(made)}.{at}" if d is None else d for at, d in enumerate(shape)]
    made.update(str(new) for old, new in zip(shape, full, strict=True) if old is None)
    value.shape = ir.Shape(full)
