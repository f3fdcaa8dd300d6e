"""Turns a graph's float32 values into 16-bit ones, casting where an operator wants float32."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import onnx
import onnx_ir as ir

from ortune.core.errors import Refused
from ortune.model.graph import edit
from ortune.quantization.float16.format import FLOAT16, Format
from ortune.quantization.types import ValueKind, formal, schema

FLOAT = ir.DataType.FLOAT
CONTROL = ("If", "Loop", "Scan")
"""Operators whose bodies are converted with them."""

BIASED = ("BatchNormalization", "Conv", "ConvTranspose", "Gemm", "LayerNormalization")
"""Operators whose inputs from the third on are added: tiny ones may become zero."""

_FIXED_TEXT = (
    "Bernoulli BitCast BlackmanWindow DequantizeLinear DynamicQuantizeLinear EyeLike "
    "HammingWindow HannWindow MelWeightMatrix Multinomial QuantizeLinear RandomNormal "
    "RandomNormalLike RandomUniform RandomUniformLike"
)
FIXED = frozenset(_FIXED_TEXT.split())
"""Operators whose numbers, not only their precision, depend on the type."""

PAIRS = ("QuantizeLinear", "DequantizeLinear")
"""Those of them whose scale may be 16-bit, from opset 19 on: the integers then are others."""


Halves: TypeAlias = Sequence[bool | None]
"""Whether each value of a node is to be in half; None where it is not float."""


class Halver:
    """Converts one model's graphs in place, by the kinds of its values before; not its functions.

    Attributes:
        kept: Nodes that stay in float32: blocked operators, pinned nodes, and what cannot.
    """

    def __init__(
        self,
        model: ir.Model,
        kinds: Mapping[ir.Value, ValueKind],
        format: Format = FLOAT16,
        block: Collection[str] = (),
        pinned: Collection[ir.Node] = (),
        *,
        pairs: bool = False,
    ) -> None:
        self.count = 0
        self.kept = 0
        self._kinds = kinds
        self._format = format
        self._block = frozenset(block) | (FIXED - {*PAIRS} if pairs else FIXED)
        self._pinned = frozenset(pinned)
        self._versions = model.opset_imports
        self._editor = edit.Editor(model.graph)
        self._halves: set[ir.Value] = set()
        self._constants: dict[ir.Value, ir.Value] = {}
        self._casts: dict[tuple[ir.Value, ir.DataType, ir.Graph | None], ir.Value] = {}

    def main(self, graph: ir.Graph, *, keep_io: bool) -> None:
        """Convert the main graph."""
        if not keep_io:
            for value in graph.inputs:
                if not value.is_initializer():
                    self._make_half(value)
        self._nodes(graph)
        for index, value in enumerate(graph.outputs):
            self._border(graph, index, value, half=not keep_io)

    def _body(self, graph: ir.Graph, *, open_to_half: bool) -> None:
        """Convert a body; one that must stay float32 still casts what it captures."""
        if not open_to_half:
            self._nodes(graph, open_to_half=False)
            return
        for value in graph.inputs:
            self._make_half(value)
        self._nodes(graph)
        for index, value in enumerate(list(graph.outputs)):
            if self._kinds.get(value) is ValueKind.FLOAT and value not in self._halves:
                graph.outputs[index] = self._cast(value, self._format.dtype, before=graph)

    def _nodes(self, graph: ir.Graph, *, open_to_half: bool = True) -> None:
        for node in list(graph):
            if node.op_type == "Constant" and not node.domain:
                continue
            inputs, outputs = self._wanted(node, open_to_half=open_to_half)
            for body in edit.bodies(node):
                self._body(body, open_to_half=node.op_type in CONTROL)
            for index, half in enumerate(inputs):
                value = node.inputs[index]
                if half is not None and value is not None:
                    node.replace_input_with(index, self._as(value, node, half=half))
            for value, half in zip(node.outputs, outputs, strict=True):
                if half:
                    self._make_half(value)
            converted = any(inputs) or any(outputs)
            self.count += converted
            self.kept += not converted and any(x is not None for x in outputs)
            if any(outputs):
                dtype = self._format.dtype
                match node.op_type:
                    case "Cast":
                        node.attributes["to"] = ir.AttrInt64("to", int(dtype))
                    case "SequenceEmpty":
                        node.attributes["dtype"] = ir.AttrInt64("dtype", int(dtype))
                    case "ConstantOfShape":
                        held = edit.attribute(node, "value", None)
                        array = np.zeros(1) if held is None else held.numpy()
                        array = self._format.array(array)
                        node.attributes["value"] = ir.AttrTensor("value", ir.tensor(array))
                    case _:
                        pass

    def _wanted(self, node: ir.Node, *, open_to_half: bool) -> tuple[Halves, Halves]:
        given = [None if v is None else self._kinds.get(v, ValueKind.OTHER) for v in node.inputs]
        inputs = [kind in (ValueKind.FLOAT, ValueKind.FLOATS) for kind in given]
        outputs = [self._kinds[v] is not ValueKind.OTHER for v in node.outputs]
        if not open_to_half:
            allowed_in, allowed_out = [False] * len(inputs), [False] * len(outputs)
        elif node.op_type in CONTROL and not node.domain:
            allowed_in, allowed_out = [True] * len(inputs), [True] * len(outputs)
        else:
            allowed_in, allowed_out = self._allowed(node)
        return _where(inputs, allowed_in), _where(outputs, allowed_out)

    def _allowed(self, node: ir.Node) -> tuple[list[bool], list[bool]]:
        """Say of each input and output whether the type is allowed and the constants fit."""
        known = schema(node.op_type, node.domain, self._versions.get(node.domain, 1))
        blocked = bool(node.domain) or node.op_type in self._block or node in self._pinned
        blocked = blocked or any(True for _ in edit.bodies(node))
        blocked = blocked or _scatters_sums(node) or not self._fits(node)
        blocked = blocked or (node.op_type in PAIRS and not self._keeps_scale(node))
        blocked = blocked or (self._format is FLOAT16 and _crashes(node))
        if known is None or blocked:
            return [False] * len(node.inputs), [False] * len(node.outputs)
        variables = {
            c.type_param_str: bool(self._format.types & set(c.allowed_type_strs))
            for c in known.type_constraints
        }
        return (
            _in_variables(variables, known.inputs, len(node.inputs)),
            _in_variables(variables, known.outputs, len(node.outputs)),
        )

    def _fits(self, node: ir.Node) -> bool:
        return all(
            self._format.holds(array, may_vanish=node.op_type in BIASED and index >= 2)
            for index, value in enumerate(node.inputs)
            if value is not None
            and self._kinds.get(value) is ValueKind.FLOAT
            and (array := edit.const_array(value)) is not None
        )

    def _keeps_scale(self, node: ir.Node) -> bool:
        """Every step of a pair must be a normal number: none may become 0 or lose digits."""
        scale = edit.const_array(node.inputs[1])
        return scale is not None and bool(np.all(scale >= self._format.smallest))

    def _as(self, value: ir.Value, node: ir.Node, *, half: bool) -> ir.Value:
        """Return the value in the wanted type, through a Cast before `node` if need be."""
        if edit.const_tensor(value) is not None:
            return self._constant(value) if half else value
        if (value in self._halves) is half:
            return value
        if self._kinds[value] is ValueKind.FLOATS:
            name = self._format.name
            raise Refused(
                f"sequence '{value.name}' passes between {name} and float32 operators",
                fix=f"block the operators around {node.op_type}, or leave {name} out",
            )
        to = self._format.dtype if half else FLOAT
        key = (value, to, node.graph)
        if key not in self._casts:
            self._casts[key] = self._cast(value, to, before=node)
        return self._casts[key]

    def _constant(self, value: ir.Value) -> ir.Value:
        if value not in self._constants:
            array = edit.const_array(value)
            assert array is not None
            narrow = self._format.array(array)
            self._constants[value] = self._editor.constant(f"{value.name}_half", narrow)
        return self._constants[value]

    def _cast(self, value: ir.Value, to: ir.DataType, *, before: ir.Node | ir.Graph) -> ir.Value:
        """Cast a value in front of a node, or at the end of a graph."""
        suffix = "float" if to == FLOAT else "half"
        made = self._editor.node("Cast", [value], {"to": int(to)}, name=f"{value.name}_{suffix}")
        made.outputs[0].shape, made.outputs[0].type = value.shape, ir.TensorType(to)
        if isinstance(before, ir.Graph):
            before.append(made)
        else:
            edit.insert_before(before, made)
        return made.outputs[0]

    def _border(self, graph: ir.Graph, index: int, value: ir.Value, *, half: bool) -> None:
        """Give a main output the type it shall have, under the name it had."""
        if self._kinds.get(value) is not ValueKind.FLOAT or (value in self._halves) is half:
            return
        if value.is_graph_input() or value.is_initializer():
            return
        name = str(value.name)
        cast = self._cast(value, self._format.dtype if half else FLOAT, before=graph)
        graph.outputs[index] = cast
        value.name = self._editor.fresh(f"{name}_inner")
        cast.name = name

    def _make_half(self, value: ir.Value) -> None:
        match self._kinds.get(value):
            case ValueKind.FLOAT:
                value.type = ir.TensorType(self._format.dtype)
            case ValueKind.FLOATS:
                value.type = ir.SequenceType(ir.TensorType(self._format.dtype))
            case _:
                return
        self._halves.add(value)


def _scatters_sums(node: ir.Node) -> bool:
    """onnxruntime's CPU kernels scatter float16, but do not add or multiply it."""
    scatters = node.op_type in ("ScatterElements", "ScatterND")
    return scatters and edit.attribute(node, "reduction", "none") != "none"


def _crashes(node: ir.Node) -> bool:
    """A Transpose that moves the batch inwards and feeds a MatMul, or that MatMul.

    onnxruntime 1.31.1 fuses the two for float16, also through Casts, and then crashes in its NCHWc
    pass (level all).
    """
    match node.op_type:
        case "MatMul":
            sources = [value.producer() for value in node.inputs if value is not None]
            return any(source is not None and _moves_batch(source) for source in sources)
        case "Transpose":
            readers = [use.node.op_type for use in node.outputs[0].uses()]
            return "MatMul" in readers and _moves_batch(node)
        case _:
            return False


def _moves_batch(node: ir.Node) -> bool:
    if node.op_type == "Cast":
        source = None if node.inputs[0] is None else node.inputs[0].producer()
        return source is not None and source.op_type != "Cast" and _moves_batch(source)
    order = list(edit.attribute(node, "perm", ())) if node.op_type == "Transpose" else []
    rank = len(order)
    return rank > 2 and order[:-2] == list(range(1, rank - 1)) and 0 in order[-2:]


def _where(floats: Sequence[bool], allowed: Sequence[bool]) -> Halves:
    return [ok if is_float else None for is_float, ok in zip(floats, allowed, strict=True)]


def _in_variables(
    variables: dict[str, bool],
    parameters: Sequence[onnx.defs.OpSchema.FormalParameter],
    count: int,
) -> list[bool]:
    return [
        parameter is not None and variables.get(parameter.type_str, False)
        for parameter in formal(parameters, count)
    ]
