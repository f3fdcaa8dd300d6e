"""Sizes of a model's tensors in a run, for runtimes that do not record them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import onnx_ir as ir

from ortune.core.session import Executed, Operand
from ortune.data.stream import Stream
from ortune.model.analysis.dataflow import Origin
from ortune.model.graph import edit
from ortune.model.graph.spec import dtype_name
from ortune.model.shapes.infer import infer

_SIZELESS = frozenset({ir.DataType.STRING, ir.DataType.UNDEFINED})


def sizes(model: ir.Model, stream: Path, batch: int) -> dict[str, Operand]:
    """Return the tensors whose size follows from the first sample; the model is left alone.

    Args:
        model: Without local functions.
        batch: Samples stacked into a run; 0 or 1 takes one.
    """
    copy = model.clone()
    for node in edit.every_node(copy):
        for value in node.outputs:
            value.shape = None
    sample = Stream(stream)[0]
    for value in copy.graph.inputs:
        if value.name in sample:
            shape = sample[value.name].shape
            rows = [shape[0] * max(1, batch), *shape[1:]] if shape else []
            value.shape = ir.Shape(rows)
    infer(copy)
    every = [v for node in edit.every_node(copy) for v in (*node.inputs, *node.outputs)]
    found = {str(v.name): _operand(v) for v in every if v is not None and v.name}
    return {name: one for name, one in found.items() if one is not None}


def filled(
    node: Executed, sources: Sequence[str], origin: Origin, known: Mapping[str, Operand]
) -> Executed:
    """Give an executed node the tensors of its sources where the runtime recorded none.

    It reads what its sources read from elsewhere, and writes what others read of theirs. Nothing
    is filled in unless all of it is known.
    """
    if not sources or (node.inputs and node.outputs):
        return node
    inside = set(sources)
    made = [name for one in sources for name in origin.outputs[one]]
    reads = [name for one in sources for name in origin.inputs[one] if name and name not in made]
    writes = [
        name
        for name in made
        if name in origin.results or not inside.issuperset(origin.readers.get(name, ()))
    ]
    reads = list(dict.fromkeys(reads))
    inputs = node.inputs or tuple(known[name] for name in reads if name in known)
    outputs = node.outputs or tuple(known[name] for name in writes if name in known)
    if not node.inputs and len(inputs) != len(reads):
        return node
    if not node.outputs and len(outputs) != len(writes):
        return node
    return replace(node, inputs=inputs, outputs=outputs)


def _operand(value: ir.Value) -> Operand | None:
    tensor, constant = value.const_value, value.const_value is not None
    shape = value.shape if tensor is None else tensor.shape
    dtype = value.dtype if tensor is None else tensor.dtype
    if shape is None or dtype is None or not all(isinstance(side, int) for side in shape):
        return None
    sides = tuple(int(str(side)) for side in shape)
    each = 0.0 if dtype in _SIZELESS else dtype.itemsize
    return Operand(dtype_name(dtype), sides, int(math.prod(sides) * each), constant)
