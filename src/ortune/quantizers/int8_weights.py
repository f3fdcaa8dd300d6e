"""Weights stored as int8, arithmetic in float: a quarter of the file."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Self

import onnx_ir as ir

from ortune.core.backend import Backend
from ortune.core.errors import BadSettings, Refused
from ortune.core.facts import Facts
from ortune.core.observer import Probe, Ranges
from ortune.core.step import Quantizer
from ortune.model.graph import edit
from ortune.quantization import grid as grids
from ortune.quantization.block_grid import Spec
from ortune.quantization.layers import excluded, transposed
from ortune.quantization.roles import Role
from ortune.quantization.weights.blockwise import Blockwise, Method, included

READS = {"Gather": (0,), "LSTM": (1, 2), "GRU": (1, 2), "RNN": (1, 2)}
"""Operator -> inputs that are weights; input 1 of all others."""

AXES = {"Conv": 0, "LSTM": 1, "GRU": 1, "RNN": 1, "ConvTranspose": 1}
"""Operator -> channel axis of its weight; the last axis of all others."""


@dataclass(frozen=True)
class Int8Weights(Quantizer):
    """Weights of 8 bits, one step a channel or a block; 73-75 % smaller.

    An embedding table is looked up in int8 and only the rows found are dequantized. Arithmetic
    stays in float. What that costs depends on the runtime: onnxruntime 1.31 does not fold a
    DequantizeLinear when it loads but runs it every time (1.2 times the float latency on
    ResNet-50, 2.3 on EfficientNet-Lite0), unless the session sets ``session.disable_quant_qdq``;
    in front of a MatMul it makes an 8-bit MatMulNBits of the two, often faster than float.
    OpenVINO keeps the integers until they are used. The forms with blocks are of matrix products
    and tables alone.

    Attributes:
        ops: Operators whose weights are stored as int8.
        min_size: Weights with fewer elements stay in float.
        fold: Write Cast and Mul instead of DequantizeLinear: onnxruntime folds those when it
            loads, and the latency is that of float32 exactly. Of the form ``channel``.
        form: ``channel``: DequantizeLinear with one step a channel. ``nbits``: MatMulNBits and
            GatherBlockQuantized, onnxruntime's operators, in blocks. ``qdq``: DequantizeLinear in
            blocks, of opset 21.
        block: Weights that share a step in the forms with blocks: 16, 32, 64, 128 or 256.
        symmetric: Zero points in the middle, not stored; ``channel`` has no other.
        method: How weights are rounded in blocks: ``rtn``, ``hqq`` or ``gptq``, as in
            `int4-weights`.
        accuracy_level: What onnxruntime may round activations to inside a MatMulNBits: 0 and 1
            float32, 4 int8, the only one with a fast kernel.
        include: Names of nodes to look at; * and ? match, re: begins a regular expression. Empty
            looks at all.
        exclude: Names of nodes to leave in float.
        damping: For ``gptq``: share of the mean second moment that is added to all inputs'.
        act_order: For ``gptq``: the weights of large inputs are rounded first.
    """

    needs_opset: ClassVar[int] = 13
    role: ClassVar[Role] = Role.WEIGHTS

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
    fold: bool = False
    form: Literal["channel", "nbits", "qdq"] = "channel"
    block: int = 128
    symmetric: bool = True
    method: Method = "rtn"
    accuracy_level: int = 4
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    damping: float = 0.01
    act_order: bool = True

    def __post_init__(self) -> None:
        self._blockwise()
        if self.form == "channel" and (self.method != "rtn" or not self.symmetric):
            raise BadSettings(
                "int8-weights with one step a channel is symmetric and rounds to the nearest",
                fix="add form=nbits or form=qdq, or leave method and symmetric out",
            )
        if self.form != "channel" and self.fold:
            raise BadSettings(
                f"fold=true has no meaning with form={self.form}", fix="leave one of the two out"
            )

    @classmethod
    def offers(cls, facts: Facts, backend: Backend) -> Iterable[Self]:
        """Yield one step a channel where integers stay, blocks for networks of products.

        On the CPU onnxruntime makes a MatMulNBits of both: blocks of 128 are faster than the 32
        that it chooses (0.70 for 0.84 of float32 on MiniLM, 0.26 for 0.39 on a decoding GPT) at
        the same error. OpenVINO is as fast with blocks of 32, which are 4 dB cleaner.
        """
        alone = facts.has("MatMul") and not facts.has("Conv", "LSTM", "GRU", "RNN")
        if facts.quantized or facts.has("com.microsoft::MatMulNBits"):
            return
        if "int8-weights" in backend.arithmetic:
            if alone:
                yield cls(form="nbits", block=32)
            yield cls()
        elif "int8-dynamic" in backend.arithmetic and alone:
            yield cls(form="nbits")

    def probes(self, model: ir.Model) -> Sequence[Probe]:
        """Return the inputs of the products, for ``gptq``."""
        return self._blockwise().probes(model)

    def apply(self, model: ir.Model, ranges: Ranges) -> int:
        """Store the weights and return how many constants were replaced.

        Raises:
            Refused: No operator of `ops` has a large constant float32 weight.
            BadSettings: A pattern matches no node.
            BadData: The calibration samples do not serve a layer.
        """
        if self.form != "channel":
            return self._blockwise().apply(model, ranges)
        edit.inline(model)
        axes: dict[ir.Value, int] = {}
        left, allowed = excluded(model, self.exclude), included(model, self.include)
        for node in _chosen(model, left, allowed):
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
            _store(editor, source, axis, fold=self.fold)
        return len(axes)

    def _blockwise(self) -> Blockwise:
        return Blockwise(
            Spec(8, self.block, self.symmetric),
            self.method,
            "qdq" if self.form == "qdq" else "nbits",
            self.accuracy_level,
            tuple(op for op in self.ops if op in ("MatMul", "Gemm", "Gather")),
            self.min_size,
            self.include,
            self.exclude,
            self.damping,
            self.act_order,
        )

    def _weights(self, node: ir.Node) -> Iterator[tuple[ir.Value, int]]:
        """Yield the large constants that a node multiplies or looks up, with their channels."""
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


def _chosen(
    model: ir.Model, left: Collection[ir.Node], allowed: Collection[ir.Node] | None
) -> Iterator[ir.Node]:
    for node in edit.every_node(model):
        if node not in left and (allowed is None or node in allowed):
            yield node


def _store(editor: edit.Editor, source: ir.Value, axis: int, *, fold: bool) -> None:
    """Replace a float constant by integers, for every reader."""
    array = edit.const_array(source)
    assert array is not None
    grid = grids.weight_grid(array, axis)
    stem = str(source.name)
    integers = editor.constant(f"{stem}_int", grid.quantize(array))
    last = axis == array.ndim - 1
    tables = [n for n, i in source.uses() if n.op_type == "Gather" and i == 0 and last]
    parts = [] if fold and not tables else _grid_parts(editor, stem, grid)
    for node in tables:
        _look_up(editor, node, [integers, *parts])
    others = [use for use in source.uses() if use.node not in tables]
    if others:
        if fold:
            made = _cast_and_multiply(editor, stem, integers, grid, array.ndim)
        else:
            made = [
                editor.node(
                    "DequantizeLinear", [integers, *parts], {"axis": axis}, name=f"{stem}_dq"
                )
            ]
        wide = made[-1].outputs[0]
        wide.shape, wide.type = source.shape, ir.TensorType(ir.DataType.FLOAT)
        producer = source.producer()
        home = source.graph if producer is None else producer.graph
        edit.insert_first(home or editor.graph, *made)
        for node, index in others:
            node.replace_input_with(index, wide)
    edit.discard(source)


def _grid_parts(editor: edit.Editor, stem: str, grid: grids.Grid) -> list[ir.Value]:
    return [
        editor.constant(f"{stem}_scale", grid.scale),
        editor.constant(f"{stem}_zero", grid.zero),
    ]


def _cast_and_multiply(
    editor: edit.Editor, stem: str, integers: ir.Value, grid: grids.Grid, rank: int
) -> list[ir.Node]:
    shape = [-1 if axis == grid.axis else 1 for axis in range(rank)]
    cast = editor.node("Cast", [integers], {"to": int(ir.DataType.FLOAT)}, name=f"{stem}_cast")
    scale = editor.constant(f"{stem}_scale", grid.scale.reshape(shape))
    return [cast, editor.node("Mul", [cast.outputs[0], scale], name=f"{stem}_wide")]


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
