"""Weights stored as int8, arithmetic in float: a quarter of the file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
import onnx_ir as ir

from ortune.core.backend import Backend
from ortune.core.errors import Refused
from ortune.core.facts import Facts
from ortune.core.observer import Ranges
from ortune.core.step import Quantizer
from ortune.model import edit
from ortune.quantizers import _grid
from ortune.quantizers._layers import transposed

READS = {"Gather": (0,), "LSTM": (1, 2), "GRU": (1, 2), "RNN": (1, 2)}
"""Operator -> inputs that are weights; input 1 of all others."""

AXES = {"Conv": 0, "LSTM": 1, "GRU": 1, "RNN": 1, "ConvTranspose": 1}
"""Operator -> channel axis of its weight; the last axis of all others."""


@dataclass(frozen=True)
class Int8Weights(Quantizer):
    """S8 weights behind DequantizeLinear, one step a channel; 73-75 % smaller.

    An embedding table is looked up in int8 and only the rows found are dequantized. Arithmetic
    stays in float: the speed is that of float32, no faster.

    Attributes:
        ops: Operators whose weights are stored as int8.
        min_size: Weights with fewer elements stay in float.
    """

    needs_opset: ClassVar[int] = 13

    ops: tuple[str, ...] = (
        "Conv",
        "ConvTranspose",
        "MatMul",
        "Gemm",
        "Gather",
        "LSTM",
        "GRU",
        "RNN",
    )
    min_size: int = 1024

    @classmethod
    def offers(cls, facts: Facts, backend: Backend) -> Iterable[Self]:
        """Yield the one setting, where integer weights run faster."""
        if "int8-weights" in backend.arithmetic and not facts.quantized:
            yield cls()

    def apply(self, model: ir.Model, ranges: Ranges) -> int:
        """Store the weights and return how many constants were replaced.

        Raises:
            Refused: No operator of `ops` has a large constant float32 weight.
        """
        edit.inline(model)
        axes: dict[ir.Value, int] = {}
        for node in edit.every_node(model):
            for source, axis in self._weights(node):
                # A table's columns, for every reader: a row's step could not follow the look-up.
                first = axis if node.op_type == "Gather" else axes.get(source, axis)
                axes[source] = first
        if not axes:
            raise Refused(
                f"no {', '.join(self.ops)} with a float32 weight of {self.min_size} elements",
                fix="see `ortune inspect` for the model's operators and dtypes",
            )
        editor = edit.Editor(model.graph)
        for source, axis in axes.items():
            _store(editor, source, axis)
        return len(axes)

    def _weights(self, node: ir.Node) -> Iterator[tuple[ir.Value, int]]:
        """Yield the large constants that a node multiplies or looks up, with their channel axis."""
        if node.domain or node.op_type not in self.ops:
            return
        for index in READS.get(node.op_type, (1,)):
            value = node.inputs[index] if index < len(node.inputs) else None
            if value is None:
                continue
            source, order = transposed(value)
            tensor = edit.const_tensor(source)
            if tensor is None or source is None or tensor.dtype != ir.DataType.FLOAT:
                continue
            rank = len(tensor.shape)
            if rank < 2 or tensor.size < self.min_size:
                continue
            axis = AXES.get(node.op_type, rank - 1)
            if node.op_type == "Gemm" and edit.attribute(node, "transB", 0):
                axis = 0
            if node.op_type != "Gather":
                yield source, order[axis]
            elif source is value and not edit.attribute(node, "axis", 0):
                yield source, rank - 1


def _store(editor: edit.Editor, source: ir.Value, axis: int) -> None:
    """Replace a float constant by integers, for every reader."""
    array = edit.const_array(source)
    assert array is not None
    grid = _grid.weight_grid(array, axis)
    stem = str(source.name)
    parts = [
        editor.constant(f"{stem}_int", grid.quantize(array)),
        editor.constant(f"{stem}_scale", grid.scale),
        editor.constant(f"{stem}_zero", grid.zero),
    ]
    last = axis == array.ndim - 1
    tables = [n for n, i in source.uses() if n.op_type == "Gather" and i == 0 and last]
    for node in tables:
        _look_up(editor, node, parts)
    others = [use for use in source.uses() if use.node not in tables]
    if others or source.is_graph_output():
        made = editor.node("DequantizeLinear", parts, {"axis": axis}, name=f"{stem}_dq")
        made.outputs[0].shape, made.outputs[0].type = source.shape, source.type
        producer = source.producer()
        home = source.graph if producer is None else producer.graph
        edit.insert_first(home or editor.graph, made)
        for node, index in others:
            node.replace_input_with(index, made.outputs[0])
    edit.discard(source)


def _look_up(editor: edit.Editor, node: ir.Node, parts: list[ir.Value]) -> None:
    """Gather integers, then dequantize what was found: the table is never made float."""
    output = node.outputs[0]
    made = editor.node(
        "DequantizeLinear", [output, *parts[1:]], {"axis": -1}, name=f"{output.name}_dq"
    )
    found = made.outputs[0]
    output.replace_all_uses_with(found, replace_graph_outputs=True)
    made.replace_input_with(0, output)
    found.shape, found.type = output.shape, ir.TensorType(ir.DataType.FLOAT)
    output.type = ir.TensorType(ir.DataType.INT8)
    node.replace_input_with(0, parts[0])
    edit.insert_after(node, made)
    name = output.name
    output.name = editor.fresh(f"{name}_int")
    found.name = name
