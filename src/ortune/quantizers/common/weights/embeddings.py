"""Embedding tables in integers: rows are looked up as stored, and only those made float.

A DequantizeLinear in front of the Gather would make the whole table float in every run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from ortune.core import wording
from ortune.graph.ir import edit
from ortune.graph.ir.match import nodes_of
from ortune.quantizers.common import grid as grids
from ortune.quantizers.common.nodes import constants, dequantized, stand_in
from ortune.quantizers.common.weights.integer_weights import Stored, tables_of

SMALLEST_TABLE = 1024
"""Tables with fewer elements stay in float."""


def tables(model: ir.Model) -> dict[ir.Value, list[ir.Node]]:
    """Return the float32 tables that rows are looked up in, with the nodes that do so."""
    found: dict[ir.Value, list[ir.Node]] = {}
    for node in nodes_of(model, "Gather"):
        source = node.inputs[0]
        tensor = edit.const_tensor(source)
        if source is None or tensor is None or tensor.dtype != ir.DataType.FLOAT:
            continue
        if len(tensor.shape) == 2 and tensor.size >= SMALLEST_TABLE and node in tables_of(source):
            found.setdefault(source, []).append(node)
    return found


def store_tables(
    model: ir.Model,
    editor: edit.Editor,
    found: Mapping[ir.Value, Sequence[ir.Node]],
    stored: Mapping[ir.Value, Stored],
    left: Collection[ir.Node],
    *,
    alone: bool,
) -> None:
    """Store tables as int8, for every node that looks rows up in them; note how many were.

    A table of its own has one step a column. One that a layer multiplies too (a tied embedding)
    is stored once, with the steps of the layer.

    Args:
        stored: Weights that layers have stored, by their float constant.
        alone: Whether tables that no layer multiplies are stored.
    """
    count = 0
    for source, nodes in found.items():
        wanted = [node for node in nodes if node not in left]
        if wanted and (alone or source in stored):
            held = stored.get(source) or _own(editor, source)
            for node in wanted:
                look_up(editor, node, held)
            edit.discard(source)
            count += 1
    if count:
        edit.note(model, f"{wording.count(count, 'embedding table')} made int8")
    if len(found) > count:
        edit.note(model, f"{wording.count(len(found) - count, 'embedding table')} left in float")


def _own(editor: edit.Editor, source: ir.Value) -> Stored:
    array = edit.const_array(source)
    assert array is not None
    grid = grids.weight_grid(array, 1)
    return Stored.add(editor, str(source.name), grid.quantize(array), grid, 1, (0, 1))


def look_up(editor: edit.Editor, node: ir.Node, held: Stored) -> None:
    """Gather integers and make those float that were found."""
    output = node.outputs[0]
    stem = str(output.name)
    rows = editor.node("Gather", [held.integers, node.inputs[1]], name=f"{stem}_rows")
    rows.outputs[0].shape, rows.outputs[0].dtype = output.shape, held.dtype
    made = [rows, *_widen(editor, stem, rows.outputs[0], node, held)]
    edit.insert_after(node, *made)
    stand_in(output, made[-1].outputs[0])
    made[-1].outputs[0].type = ir.TensorType(ir.DataType.FLOAT)


def _widen(
    editor: edit.Editor, stem: str, rows: ir.Value, node: ir.Node, held: Stored
) -> Iterator[ir.Node]:
    """Yield what makes the rows found float: each has the step of its channel, or of its row."""
    if held.axis != 0:
        axis = None if held.axis is None else -1
        yield dequantized(editor, stem, [rows, held.scale, held.zero], axis)
        return
    # DequantizeLinear takes no step a row: it takes the zero points off, the steps follow.
    zero = held.grid.zero.reshape(-1)[:1].reshape(())
    parts = constants(editor, stem, one=np.asarray(1, np.float32), zero=np.asarray(zero))
    whole = dequantized(editor, f"{stem}_whole", [rows, *parts], None)
    steps = editor.node("Gather", [held.scale, node.inputs[1]], name=f"{stem}_steps")
    last = editor.constant("last_axis", np.array([-1], np.int64))
    column = editor.node("Unsqueeze", [steps.outputs[0], last], name=f"{stem}_column")
    yield whole
    yield steps
    yield column
    yield editor.node("Mul", [whole.outputs[0], column.outputs[0]], name=f"{stem}_wide")
