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
from ortune.quantizers.common.layers import has_bounded_values
from ortune.quantizers.common.nodes import add_constants, make_dequantize, replace_value
from ortune.quantizers.common.weights.integer_weights import StoredWeight, find_lookups

SMALLEST_TABLE = 1024
"""Tables with fewer elements stay in float."""


def find_tables(model: ir.Model) -> dict[ir.Value, list[ir.Node]]:
    """Return the float32 tables that rows are looked up in, with the nodes that do so."""
    readers: dict[ir.Value, list[ir.Node]] = {}
    for node in nodes_of(model, "Gather"):
        source = node.inputs[0]
        tensor = edit.const_tensor(source)
        if source is None or tensor is None or tensor.dtype != ir.DataType.FLOAT:
            continue
        if (
            len(tensor.shape) == 2
            and tensor.size >= SMALLEST_TABLE
            and has_bounded_values(source)
            and node in find_lookups(source)
        ):
            readers.setdefault(source, []).append(node)
    return readers


def store_tables(
    model: ir.Model,
    editor: edit.Editor,
    tables: Mapping[ir.Value, Sequence[ir.Node]],
    stored: Mapping[ir.Value, StoredWeight],
    excluded: Collection[ir.Node],
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
    for source, nodes in tables.items():
        gathers = [node for node in nodes if node not in excluded]
        if gathers and (alone or source in stored):
            table = stored.get(source) or _store_table(editor, source)
            for node in gathers:
                look_up(editor, node, table)
            edit.discard_constant(source)
            count += 1
    if count:
        edit.add_note(model, f"{wording.format_count(count, 'embedding table')} made int8")
    if len(tables) > count:
        edit.add_note(
            model, f"{wording.format_count(len(tables) - count, 'embedding table')} left in float"
        )


def _store_table(editor: edit.Editor, source: ir.Value) -> StoredWeight:
    array = edit.const_array(source)
    assert array is not None
    grid = grids.make_weight_grid(array, 1)
    return StoredWeight.add_weight(editor, str(source.name), grid.quantize(array), grid, 1, (0, 1))


def look_up(editor: edit.Editor, node: ir.Node, table: StoredWeight) -> None:
    """Gather integers and make those float that were found."""
    output = node.outputs[0]
    stem = str(output.name)
    rows = editor.make_node("Gather", [table.integers, node.inputs[1]], name=f"{stem}_rows")
    rows.outputs[0].shape, rows.outputs[0].dtype = output.shape, table.dtype
    new_nodes = [rows, *_dequantize_rows(editor, stem, rows.outputs[0], node, table)]
    edit.insert_after(node, *new_nodes)
    replace_value(output, new_nodes[-1].outputs[0])
    new_nodes[-1].outputs[0].type = ir.TensorType(ir.DataType.FLOAT)


def _dequantize_rows(
    editor: edit.Editor, stem: str, rows: ir.Value, node: ir.Node, table: StoredWeight
) -> Iterator[ir.Node]:
    """Yield what makes the rows found float: each has the step of its channel, or of its row."""
    if table.axis != 0:
        axis = None if table.axis is None else -1
        yield make_dequantize(editor, stem, [rows, table.scale, table.zero], axis)
        return
    # DequantizeLinear takes no step a row: it takes the zero points off, the steps follow.
    zero = table.grid.zero.reshape(-1)[:1].reshape(())
    parts = add_constants(editor, stem, one=np.asarray(1, np.float32), zero=np.asarray(zero))
    whole = make_dequantize(editor, f"{stem}_whole", [rows, *parts], None)
    steps = editor.make_node("Gather", [table.scale, node.inputs[1]], name=f"{stem}_steps")
    last = editor.add_constant("last_axis", np.array([-1], np.int64))
    column = editor.make_node("Unsqueeze", [steps.outputs[0], last], name=f"{stem}_column")
    yield whole
    yield steps
    yield column
    yield editor.make_node("Mul", [whole.outputs[0], column.outputs[0]], name=f"{stem}_wide")
