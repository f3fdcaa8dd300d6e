"""Weights and biases of layers, and tables that are looked up, stored as integers.

Rows of a table are looked up as stored, and only those made float: a DequantizeLinear in front of
the Gather would make the whole table float in every run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortune.core import wording
from ortune.graph.ir import edit, match
from ortune.quantizers.common.grid import Grid, Kind, make_weight_grid, quantize_bias
from ortune.quantizers.common.layers import Layer, has_bounded_values, resolve_transpose
from ortune.quantizers.common.nodes import (
    add_constants,
    discard_upstream,
    make_dequantize,
    replace_value,
)
from ortune.quantizers.common.qdq.runtime_rules import Target, Treatment, has_rule
from ortune.quantizers.common.qdq.smooth import Smoothing, add_product


@dataclass(frozen=True)
class StoredWeight:
    """A weight in the file, once for all that read it."""

    integers: ir.Value
    scale: ir.Value
    zero: ir.Value
    axis: int | None  # channels in `integers`; None for one step for all
    order: tuple[int, ...]  # axes of the float constant, in the order they have in `integers`
    grid: Grid  # the steps, with the channels where the layer sees them

    @classmethod
    def add_weight(
        cls,
        editor: edit.Editor,
        stem: str,
        integers: NDArray[Any],
        grid: Grid,
        axis: int | None,
        order: tuple[int, ...],
    ) -> StoredWeight:
        """Add the constants of a weight."""
        whole, scale, zero = add_constants(
            editor, stem, int=integers, scale=grid.scale, zero=grid.zero
        )
        return cls(whole, scale, zero, axis, order, grid)

    @property
    def dtype(self) -> ir.DataType:
        """Data type of the integers."""
        return ir.DataType.from_numpy(self.grid.zero.dtype)


Key: TypeAlias = tuple[ir.Value, float, ir.Value | None, tuple[int, ...]]
"""What makes weights differ: constant, factor taken off a Gemm, smoothed activation, and the
order of axes where nothing may stand behind the integers."""


class Packer:
    """Packs the layers of a model; a weight that several layers share is stored once.

    Layers that share a weight agree on its channels, or take one step for all of it. A layer that
    reads it transposed transposes the integers, which runtimes do once, at load; for a target that
    wants them straight they are stored once more. Integers lie in the main graph; every body that
    uses them has a DequantizeLinear of its own, as runtimes look for it beside the layer.
    """

    def __init__(
        self,
        editor: edit.Editor,
        layers: Sequence[Layer],
        *,
        per_channel: bool,
        reduce_range: bool,
        kind: Kind,
        target: Target = "cpu",
    ) -> None:
        self._editor = editor
        self._target: Target = target
        self._float_bias = has_rule(target, Treatment.FLOAT_BIAS)
        self._straight = has_rule(target, Treatment.STRAIGHT)
        self._reduce_range = reduce_range
        self._kind: Kind = kind
        self._axes: dict[ir.Value, set[int | None]] = {}
        self._orders: dict[ir.Value, set[tuple[int, ...]]] = {}
        for layer in layers:
            source, order = resolve_transpose(layer.weight)
            alone = per_channel and self._by_channel(layer)
            self._axes.setdefault(source, set()).add(order[layer.axis] if alone else None)
            self._orders.setdefault(source, set()).add(order)
        self._stored: dict[Key, StoredWeight] = {}
        self._read: dict[tuple[int, int, tuple[int, ...]], ir.Value] = {}

    def pack_layer(
        self, layer: Layer, step: NDArray[np.float32], smooth: Smoothing | None = None
    ) -> None:
        """Store a layer's weight and bias, by the scalar step of its activation's grid."""
        source, order = resolve_transpose(layer.weight)
        axes = self._axes[source]
        axis = layer.axis if len(axes) == 1 and None not in axes else None
        # The integer kernel of a Gemm has no factor.
        alpha = float(edit.read_attribute(layer.node, "alpha", 1.0)) if layer.op == "Gemm" else 1.0
        if alpha != 1.0:
            layer.node.attributes["alpha"] = ir.AttrFloat32("alpha", 1.0)
        kept = order if self._straight else ()
        key = (source, alpha, None if smooth is None else layer.x, kept)
        array = layer.read_weight() if alpha == 1.0 else layer.read_weight() * np.float32(alpha)
        fitted = array if smooth is None else smooth.scale_weight(layer, array)
        stored = self._stored.get(key)
        if stored is None:
            grid = make_weight_grid(fitted, axis, self._kind, reduce_range=self._reduce_range)
        else:
            grid = replace(stored.grid, axis=axis)
        whole = layer.bias is None or self._float_bias
        wide = grid if whole else self._quantize_bias(layer, layer.node, 2, grid, step)
        if stored is None or not np.array_equal(wide.scale, stored.grid.scale):
            stored = self._store_weight(layer, wide.quantize(fitted), wide)
            self._stored.setdefault(key, stored)
        last = layer.node
        if layer.op == "MatMul" and not self._float_bias:
            last = self._join_bias(layer, replace(stored.grid, axis=axis), step)
        if smooth is not None and smooth.split:
            add_product(self._editor, layer, array, smooth.split, last)
        rounded = self._dequantize_weight(stored, order, _find_graph(layer.node))
        layer.node.replace_input_with(1, rounded)
        discard_upstream(layer.weight)

    def list_stored_weights(self) -> dict[ir.Value, StoredWeight]:
        """Return the weights stored so far, by their float constant."""
        return {source: stored for (source, *_), stored in self._stored.items()}

    def _by_channel(self, layer: Layer) -> bool:
        per_tensor = has_rule(self._target, Treatment.PER_TENSOR, layer.op, "any group")
        return not per_tensor and (len(layer.shape) == 2 or layer.convolves)

    def _store_weight(self, layer: Layer, integers: NDArray[Any], grid: Grid) -> StoredWeight:
        """Add a weight's integers, in the order of axes that most readers want."""
        source, order = resolve_transpose(layer.weight)
        orders = self._orders[source]
        alike = self._straight or (len(orders) == 1 and not find_lookups(source))
        kept = order if alike else tuple(range(len(order)))
        turned = integers.transpose([order.index(axis) for axis in kept])
        axis = None if grid.axis is None else kept.index(order[grid.axis])
        stem = str(source.name if not alike else layer.weight.name)
        whole = np.ascontiguousarray(turned)
        return StoredWeight.add_weight(self._editor, stem, whole, grid, axis, kept)

    def _dequantize_weight(
        self, stored: StoredWeight, order: tuple[int, ...], home: ir.Graph
    ) -> ir.Value:
        """Return a stored weight in float, with the axes of the constant in an order."""
        key = (id(stored), id(home), order)
        if key not in self._read:
            perm = [stored.order.index(axis) for axis in order]
            new_nodes = []
            integers = stored.integers
            stem = str(stored.integers.name).removesuffix("_int")
            if perm != sorted(perm):
                node = self._editor.make_node("Transpose", [integers], {"perm": perm})
                shape = stored.integers.shape
                assert shape is not None
                integers = node.outputs[0]
                integers.shape = ir.Shape([shape[i] for i in perm])
                integers.dtype = stored.dtype
                new_nodes.append(node)
            axis = None if stored.axis is None else perm.index(stored.axis)
            new_nodes.append(
                make_dequantize(self._editor, stem, [integers, stored.scale, stored.zero], axis)
            )
            edit.insert_first(home, *new_nodes)
            self._read[key] = new_nodes[-1].outputs[0]
        return self._read[key]

    def _join_bias(self, layer: Layer, grid: Grid, step: NDArray[np.float32]) -> ir.Node:
        """Keep what onnxruntime makes of a MatMul and an Add behind it in integers.

        It joins the two to one Gemm for matrices and for tensors of fixed shape, and a Gemm whose
        bias is float stays in float: a constant bias is rounded, and a MatMul before any other
        addition becomes a Gemm at once.

        Returns:
            The last node of the layer: the Add of a bias, else the product.
        """
        shape, uses = layer.x.shape, tuple(layer.node.outputs[0].uses())
        if len(uses) != 1 or uses[0].node.op_type != "Add":
            return layer.node
        add, index = uses[0].node, 1 - uses[0].idx
        array = edit.const_array(add.inputs[index])
        if array is not None and array.shape == (layer.shape[-1],):
            if shape is not None and (len(shape) == 2 or shape.is_static()):
                self._quantize_bias(layer, add, index, grid, step)
            return add
        if shape is not None and len(shape) == 2:
            layer.node.op_type = "Gemm"
        return layer.node

    def _quantize_bias(
        self, layer: Layer, node: ir.Node, index: int, grid: Grid, step: NDArray[np.float32]
    ) -> Grid:
        old = node.inputs[index]
        array = edit.const_array(old)
        if array is None or old is None or not has_bounded_values(old):
            return grid
        values, scale, wide = quantize_bias(array.reshape(-1), step, grid)
        stem = str(old.name)
        zero = np.zeros(scale.shape, np.int32)
        parts = add_constants(self._editor, stem, int=values, scale=scale, zero=zero)
        axis = None if wide.axis is None else 0
        dequantize = make_dequantize(self._editor, stem, parts, axis)
        edit.insert_first(_find_graph(node), dequantize)
        node.replace_input_with(index, dequantize.outputs[0])
        edit.discard_constant(old)
        return wide


def find_lookups(source: ir.Value) -> list[ir.Node]:
    """Return the nodes that look rows up in a constant."""
    return [
        node
        for node, index in source.uses()
        if node.op_type == "Gather"
        and not node.domain
        and index == 0
        and not edit.read_attribute(node, "axis", 0)
    ]


def _find_graph(node: ir.Node) -> ir.Graph:
    assert node.graph is not None
    return node.graph


SMALLEST_TABLE = 1024
"""Tables with fewer elements stay in float."""


def find_tables(model: ir.Model) -> dict[ir.Value, list[ir.Node]]:
    """Return the float32 tables that rows are looked up in, with the nodes that do so."""
    readers: dict[ir.Value, list[ir.Node]] = {}
    for node in match.nodes_of(model, "Gather"):
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
            table = stored.get(source)
            if table is None:
                array = edit.const_array(source)
                assert array is not None
                grid, name = make_weight_grid(array, 1), str(source.name)
                whole = grid.quantize(array)
                table = StoredWeight.add_weight(editor, name, whole, grid, 1, (0, 1))
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
