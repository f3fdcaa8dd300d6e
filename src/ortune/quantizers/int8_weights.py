"""Weights stored as int8, arithmetic in float: a quarter of the file."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal, Self

import onnx_ir as ir

from ortune.core import wording
from ortune.core.backend import Backend
from ortune.core.capabilities import Capabilities
from ortune.core.errors import BadSettings
from ortune.core.facts import Facts
from ortune.core.observer import Ranges
from ortune.core.roles import Role
from ortune.graph.ir import edit
from ortune.quantizers.common import grid as grids
from ortune.quantizers.common import layers, nodes
from ortune.quantizers.common.grid import Bits
from ortune.quantizers.common.weights.blockwise import PACKED, BlockWeights, Method
from ortune.quantizers.common.weights.integer_weights import StoredWeight, find_lookups, look_up

READS = {"Gather": (0,), "LSTM": (1, 2), "GRU": (1, 2), "RNN": (1, 2)}
"""Operator -> inputs that are weights; input 1 of all others."""

AXES = {"Conv": 0, "LSTM": 1, "GRU": 1, "RNN": 1, "ConvTranspose": 1}
"""Operator -> channel axis of its weight; the last axis of all others."""

OPS = "Conv ConvTranspose MatMul Gemm Gather LSTM GRU RNN"


@dataclass(frozen=True)
class Int8Weights(BlockWeights):
    """Weights of 8 bits, one step a channel or a block; 73-75 % smaller.

    An embedding table is looked up in int8 and only the rows found are dequantized. Arithmetic
    stays in float. What that costs depends on the runtime: onnxruntime 1.31 does not fold a
    DequantizeLinear when it loads but runs it every time (1.2 times the float latency on
    ResNet-50, 2.3 on EfficientNet-Lite0), unless the session sets ``session.disable_quant_qdq``;
    in front of a MatMul it makes an 8-bit MatMulNBits of the two, often faster than float.
    OpenVINO keeps the integers until they are used. The forms with blocks are of matrix products
    and tables alone.

    Attributes:
        fold: Write Cast and Mul instead of DequantizeLinear: onnxruntime folds those when it
            loads, and the latency is that of float32 exactly. Of the form ``channel``.
        form: ``channel``: DequantizeLinear with one step a channel, symmetric and rounded to the
            nearest. ``nbits`` and ``qdq``: in blocks, as in `int4-weights`.
    """

    role: ClassVar[Role] = Role.WEIGHTS
    bits: ClassVar[Bits] = 8

    ops: tuple[str, ...] = tuple(OPS.split())
    fold: bool = False
    form: Literal["channel", "nbits", "qdq"] = "channel"
    block: int = 128
    method: Method = "rtn"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.form == "channel" and (self.method != "rtn" or not self.symmetric):
            raise BadSettings(
                "int8-weights with one scale per channel is symmetric and rounds to the nearest",
                fix="add form=nbits or form=qdq, or leave method and symmetric out",
            )
        if self.form != "channel" and self.fold:
            raise BadSettings(
                f"fold=true has no meaning with form={self.form}", fix="leave one of the two out"
            )

    @classmethod
    def offers(cls, facts: Facts, backend: Backend, capabilities: Capabilities) -> Iterable[Self]:
        """Yield one step a channel where integers stay, blocks for networks of products.

        On the CPU onnxruntime makes a MatMulNBits of both: blocks of 128 are faster than the 32
        that it chooses (0.70 for 0.84 of float32 on MiniLM, 0.26 for 0.39 on a decoding GPT) at
        the same error. OpenVINO is as fast with blocks of 32, which are 4 dB cleaner.
        """
        alone = facts.has("MatMul") and not facts.has("Conv", "LSTM", "GRU", "RNN")
        if facts.quantized or facts.has(*PACKED) or not facts.has_float_layers:
            return
        if "int8-weights" in backend.arithmetic:
            if alone:
                yield cls(form="nbits", block=32)
            yield cls()
        elif "int8-dynamic" in backend.arithmetic and alone:
            yield cls(form="nbits")

    def apply(self, model: ir.Model, ranges: Ranges) -> int:
        """Store the weights and return how many constants were replaced, as in blocks."""
        if self.form != "channel":
            return super().apply(model, ranges)
        layers.flatten_model(model)
        axes: dict[ir.Value, int] = {}
        among = nodes.select_nodes(model, self.include, self.exclude)
        for node in edit.walk_nodes(model):
            for source, axis in self._list_weights(node) if node in among else ():
                # A table's columns, for every reader: a row's step could not follow the look-up.
                first = axis if node.op_type == "Gather" else axes.get(source, axis)
                axes[source] = first
        unbounded = layers.note_unbounded_weights(model, self.ops)
        if not axes:
            layers.refuse_without_layers(
                model,
                f"no {', '.join(self.ops)} with a float32 weight of "
                f"{wording.format_count(self.min_size, 'element')}{unbounded}",
            )
        editor = edit.Editor(model.graph)
        for source, axis in axes.items():
            _store_weight(editor, source, axis, fold=self.fold)
        return len(axes)

    def _list_weights(self, node: ir.Node) -> Iterator[tuple[ir.Value, int]]:
        """Yield the large constants that a node multiplies or looks up, with their channels."""
        if node.domain or node.op_type not in self.ops:
            return
        for index in READS.get(node.op_type, (1,)):
            value = node.inputs[index] if index < len(node.inputs) else None
            if value is None:
                continue
            source, order = layers.resolve_transpose(value)
            tensor = edit.const_tensor(source)
            if tensor is None or source is None or tensor.dtype != ir.DataType.FLOAT:
                continue
            rank = len(tensor.shape)
            if rank < 2 or tensor.size < self.min_size or not layers.has_bounded_values(source):
                continue
            axis = AXES.get(node.op_type, rank - 1)
            if node.op_type == "Gemm" and edit.read_attribute(node, "transB", 0):
                axis = 0
            if node.op_type != "Gather":
                yield source, order[axis]
            elif source is value and not edit.read_attribute(node, "axis", 0):
                yield source, rank - 1


def _store_weight(editor: edit.Editor, source: ir.Value, axis: int, *, fold: bool) -> None:
    array = edit.const_array(source)
    assert array is not None
    grid = grids.make_weight_grid(array, axis)
    stem = str(source.name)
    integers = editor.add_constant(f"{stem}_int", grid.quantize(array))
    tables = find_lookups(source) if axis == array.ndim - 1 else []
    if tables or not fold:
        scale = editor.add_constant(f"{stem}_scale", grid.scale)
        zero = editor.add_constant(f"{stem}_zero", grid.zero)
    for node in tables:
        stored = StoredWeight(integers, scale, zero, axis, tuple(range(array.ndim)), grid)
        look_up(editor, node, stored)
    if remaining_uses := tuple(source.uses()):
        new_nodes: tuple[ir.Node, ...]
        if fold:
            shape = [-1 if i == grid.axis else 1 for i in range(array.ndim)]
            factor = editor.add_constant(f"{stem}_scale", grid.scale.reshape(shape))
            new_nodes = nodes.make_cast_and_mul(editor, stem, integers, factor)
        else:
            new_nodes = (nodes.make_dequantize(editor, stem, [integers, scale, zero], axis),)
        producer = source.producer()
        home = source.graph if producer is None else producer.graph
        edit.insert_first(home or editor.graph, *new_nodes)
        for node, index in remaining_uses:
            node.replace_input_with(index, new_nodes[-1].outputs[0])
    edit.discard_constant(source)
