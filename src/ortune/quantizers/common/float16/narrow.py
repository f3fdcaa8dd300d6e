"""The conversion to the 16-bit formats: fields, what stays in float32, the casts between."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal, Self, TypeAlias

import numpy as np
import onnx
import onnx_ir as ir

from ortune.core.backend import Backend
from ortune.core.capabilities import Capabilities
from ortune.core.errors import BadData, Refused
from ortune.core.facts import Facts
from ortune.core.observer import Probe, Ranges
from ortune.core.plugins.bounds import Bounds
from ortune.core.step import Noise, Quantizer, Step
from ortune.core.wording import format_count, join_names
from ortune.graph.io.wellformed import load_schema
from ortune.graph.ir import edit
from ortune.quantizers.common.float16 import overflow
from ortune.quantizers.common.float16.islands import (
    HEAVY,
    MAX_NAMES,
    WideSlices,
    describe_islands,
    group_into_layers,
    list_narrow_nodes,
    select_islands,
)
from ortune.quantizers.common.float16.overflow import (
    CONTROL,
    FLOAT16,
    MASK,
    MOVERS,
    Format,
    Rules,
    ValueKind,
    find_sequence_nodes,
    infer_value_kinds,
    list_formal_parameters,
)
from ortune.quantizers.common.layers import flatten_model
from ortune.quantizers.common.nodes import escape_pattern, select_nodes

FLOAT = ir.DataType.FLOAT

BIASED = ("BatchNormalization", "Conv", "ConvTranspose", "Gemm", "LayerNormalization")
"""Operators whose inputs from the third on are added: tiny ones may become zero."""

_FIXED_TEXT = (
    "Bernoulli BitCast BlackmanWindow DequantizeLinear DynamicQuantizeLinear EyeLike "
    "HammingWindow HannWindow MeanVarianceNormalization MelWeightMatrix Multinomial "
    "QuantizeLinear RandomNormal RandomNormalLike RandomUniform RandomUniformLike"
)
FIXED = frozenset(_FIXED_TEXT.split())
"""Operators whose numbers, not only their precision, depend on the type.

The body that the standard gives MeanVarianceNormalization has float32 constants: in float16 a
runtime without a kernel for it refuses the model.
"""

PAIRS = ("QuantizeLinear", "DequantizeLinear")
"""Those of them whose scale may be 16-bit, from opset 19 on: the integers then are others."""


Halves: TypeAlias = Sequence[bool | None]
"""Whether each value of a node is to be in half; None where it is not float."""


class HalfConverter:
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

    def convert_graph(self, graph: ir.Graph, *, keep_io: bool) -> None:
        """Convert the main graph."""
        if not keep_io:
            for value in graph.inputs:
                if not value.is_initializer():
                    self._make_half(value)
        self._convert_nodes(graph)
        for index, value in enumerate(graph.outputs):
            if value.is_graph_input() or value.is_initializer():
                continue
            if self._kinds.get(value) is ValueKind.FLOAT and (value in self._halves) is keep_io:
                # A Cast makes the type that the output shall have, under the name that it had.
                name = str(value.name)
                to = FLOAT if keep_io else self._format.dtype
                graph.outputs[index] = cast = self._insert_cast(value, to, before=graph)
                value.name = self._editor.reserve_name(f"{name}_inner")
                cast.name = name

    def _convert_body(self, graph: ir.Graph, *, open_to_half: bool) -> None:
        """Convert a body; one that must stay float32 still casts what it captures."""
        if not open_to_half:
            self._convert_nodes(graph, open_to_half=False)
            return
        for value in graph.inputs:
            self._make_half(value)
        self._convert_nodes(graph)
        for index, value in enumerate(list(graph.outputs)):
            if self._kinds.get(value) is ValueKind.FLOAT and value not in self._halves:
                graph.outputs[index] = self._insert_cast(value, self._format.dtype, before=graph)

    def _convert_nodes(self, graph: ir.Graph, *, open_to_half: bool = True) -> None:
        for node in list(graph):
            if node.op_type == "Constant" and not node.domain:
                continue
            inputs, outputs = self._select_halves(node, open_to_half=open_to_half)
            for body in edit.list_bodies(node):
                self._convert_body(body, open_to_half=node.op_type in CONTROL)
            for index, half in enumerate(inputs):
                value = node.inputs[index]
                if half is not None and value is not None:
                    node.replace_input_with(index, self._convert_value(value, node, half=half))
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
                        fill = edit.read_attribute(node, "value", None)
                        array = np.zeros(1) if fill is None else fill.numpy()
                        array = self._format.round_values(array)
                        node.attributes["value"] = ir.AttrTensor("value", ir.tensor(array))
                    case _:
                        pass

    def _select_halves(self, node: ir.Node, *, open_to_half: bool) -> tuple[Halves, Halves]:
        input_kinds = [
            None if v is None else self._kinds.get(v, ValueKind.OTHER) for v in node.inputs
        ]
        inputs = [kind in (ValueKind.FLOAT, ValueKind.FLOATS) for kind in input_kinds]
        outputs = [self._kinds[v] is not ValueKind.OTHER for v in node.outputs]
        if not open_to_half:
            allowed_in, allowed_out = [False] * len(inputs), [False] * len(outputs)
        elif node.op_type in CONTROL and not node.domain:
            allowed_in, allowed_out = [True] * len(inputs), [True] * len(outputs)
        else:
            allowed_in, allowed_out = self._find_allowed(node)
        return _mask_floats(inputs, allowed_in), _mask_floats(outputs, allowed_out)

    def _find_allowed(self, node: ir.Node) -> tuple[list[bool], list[bool]]:
        """Say of each input and output whether the type is allowed and the constants fit."""
        op_schema = load_schema(node.op_type, node.domain, self._versions.get(node.domain, 1))
        blocked = bool(node.domain) or node.op_type in self._block or node in self._pinned
        blocked = blocked or any(True for _ in edit.list_bodies(node))
        blocked = (
            blocked
            or _scatters_sums(node)
            or not all(
                self._format.can_hold(array, may_vanish=node.op_type in BIASED and index >= 2)
                for index, value in enumerate(node.inputs)
                if value is not None
                and self._kinds.get(value) is ValueKind.FLOAT
                and (array := edit.const_array(value)) is not None
            )
        )
        if node.op_type in PAIRS:  # every step a normal number: none may become 0 or lose digits
            scale = edit.const_array(node.inputs[1])
            blocked = blocked or scale is None or not np.all(scale >= self._format.smallest)
        blocked = blocked or (self._format is FLOAT16 and _is_crashing_pattern(node))
        if op_schema is None or blocked:
            return [False] * len(node.inputs), [False] * len(node.outputs)
        variables = {
            c.type_param_str: bool(self._format.types & set(c.allowed_type_strs))
            for c in op_schema.type_constraints
        }
        return (
            _in_variables(variables, op_schema.inputs, len(node.inputs)),
            _in_variables(variables, op_schema.outputs, len(node.outputs)),
        )

    def _convert_value(self, value: ir.Value, node: ir.Node, *, half: bool) -> ir.Value:
        """Return the value in the wanted type, through a Cast before `node` if need be."""
        constant = edit.const_tensor(value) is not None
        if constant and half:
            if value not in self._constants:
                array = edit.const_array(value)
                assert array is not None
                narrow = self._format.round_values(array)
                self._constants[value] = self._editor.add_constant(f"{value.name}_half", narrow)
            return self._constants[value]
        if constant or (value in self._halves) is half:
            return value
        if self._kinds[value] is ValueKind.FLOATS:
            name = self._format.name
            raise Refused(
                f"sequence '{value.name}' passes between {name} and float32 operators",
                fix=f"leave {name} out, or name all operators that make and read it in the step's "
                "`block`",
            )
        to = self._format.dtype if half else FLOAT
        key = (value, to, node.graph)
        if key not in self._casts:
            self._casts[key] = self._insert_cast(value, to, before=node)
        return self._casts[key]

    def _insert_cast(
        self, value: ir.Value, to: ir.DataType, *, before: ir.Node | ir.Graph
    ) -> ir.Value:
        """Cast a value in front of a node, or at the end of a graph."""
        suffix = "float" if to == FLOAT else "half"
        cast_node = self._editor.make_node(
            "Cast", [value], {"to": int(to)}, name=f"{value.name}_{suffix}"
        )
        cast_node.outputs[0].shape, cast_node.outputs[0].type = value.shape, ir.TensorType(to)
        if isinstance(before, ir.Graph):
            before.append(cast_node)
        else:
            edit.insert_before(before, cast_node)
        return cast_node.outputs[0]

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
    """Say whether a scatter adds or multiplies: onnxruntime's CPU kernels cannot in float16."""
    scatters = node.op_type in ("ScatterElements", "ScatterND")
    return scatters and edit.read_attribute(node, "reduction", "none") != "none"


def _is_crashing_pattern(node: ir.Node) -> bool:
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
    order = list(edit.read_attribute(node, "perm", ())) if node.op_type == "Transpose" else []
    rank = len(order)
    return rank > 2 and order[:-2] == list(range(1, rank - 1)) and 0 in order[-2:]


def _mask_floats(floats: Sequence[bool], allowed: Sequence[bool]) -> Halves:
    return [ok if is_float else None for is_float, ok in zip(floats, allowed, strict=True)]


def _in_variables(
    variables: dict[str, bool],
    parameters: Sequence[onnx.defs.OpSchema.FormalParameter],
    count: int,
) -> list[bool]:
    return [
        parameter is not None and variables.get(parameter.type_str, False)
        for parameter in list_formal_parameters(parameters, count)
    ]


CARRIERS = ("Add", "Concat", "Max", "Min", "Pad", "Sub", "Where")
"""Operators that forward a large constant as it is."""

CAST_OPSET = 13
"""Opset of the Casts in a model that has no standard operators yet."""

PAIR_OPSET = 19
"""Opset from which a scale of QuantizeLinear and DequantizeLinear may be 16-bit."""


@dataclass(frozen=True)
class HalfPrecision(Quantizer):
    """Weights and activations in a 16-bit floating-point format.

    Attributes:
        keep_io: Inputs and outputs keep their float32, through a Cast at the border.
        block: Operators that stay in float32, such as LSTM.
        include: Node names to convert, all others stay; * and ? match, re: begins a regular
            expression. Empty for all.
        exclude: Node names that stay in float32.
        margin: What was measured may be this many times larger on other data.
        loss: Largest relative error that one operator may make of the rounding of its inputs.
        islands: Layers to give back to float32, the worst first, by what each takes off the error
            of the outputs in forward runs; ``auto`` for as few as bring them to 50 dB.
        pairs: Q/DQ pairs take 16-bit scales: TensorRT joins pairs and layers of one type alone.
        sums: What the runtime adds up products in; where that is the 16-bit format, long or large
            sums of products stay in float32 too.
    """

    needs_data: ClassVar[bool] = False
    added: ClassVar[frozenset[str]] = frozenset({"islands", "pairs"})
    format: ClassVar[Format]

    keep_io: bool = True
    block: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    margin: float = 2.0
    loss: float = 0.03
    sums: str = "float32"
    pairs: bool = False
    islands: Annotated[int, Bounds(high=1024)] | Literal["auto"] = 0

    @classmethod
    def offers(cls, facts: Facts, backend: Backend, capabilities: Capabilities) -> Iterable[Self]:
        """Yield the one setting, where arithmetic of this name is faster."""
        if cls.name() in backend.arithmetic and not facts.quantized:
            yield cls()

    @property
    def keeps_io(self) -> bool:
        return self.keep_io

    def probes(self, model: ir.Model) -> Sequence[Probe]:
        """Return every float32 tensor between nodes that may be converted."""
        _prepare_model(model)
        value_kinds = infer_value_kinds(model)
        return overflow.list_probes(list(self._list_open_nodes(model, value_kinds)), value_kinds)

    def rescues(self, facts: Facts) -> Iterable[tuple[Step, ...]]:
        """Yield it with the layers in float32 that cost most accuracy."""
        if not self.islands:
            yield (replace(self, islands="auto"),)

    def refined(self, model: ir.Model, ranges: Ranges, noise: Noise | None) -> Self:
        """Return it with the islands among what it excludes; a note names them.

        Raises:
            BadData: There are no samples.
            Refused: There is nothing to convert.
        """
        if not self.islands:
            return self
        if noise is None:
            raise BadData(
                f"{self} needs samples: what a layer costs is measured",
                fix="give samples with --data, or leave `islands` out",
            )
        plain = replace(self, islands=0)
        _prepare_model(model)
        trial, nodes = model.clone(), list(model.graph)
        converted = list(trial.graph)
        plain.apply(trial, ranges)
        parts = group_into_layers(nodes, list_narrow_nodes(converted, self.format.dtype))
        most = None if self.islands == "auto" else self.islands
        selection = select_islands(model, parts, self.format, noise, most)
        edit.add_note(model, describe_islands(selection, nodes))
        names = [str(nodes[k].name) for layer in selection.layers for k in layer if nodes[k].name]
        return replace(plain, exclude=(*self.exclude, *map(escape_pattern, names)))

    def apply(self, model: ir.Model, ranges: Ranges) -> int:
        """Convert the model and return how many nodes became 16-bit; notes say what did not."""
        rules = Rules(self.format, self.margin, self.loss, wide_sums=self.sums == "float32")
        name = self.format.name
        _prepare_model(model)
        if self.pairs and model.opset_imports.get("", 0) < PAIR_OPSET:
            raise Refused(
                f"pairs have {name} scales from opset {PAIR_OPSET} on",
                fix=f"apply raise-opset(to={PAIR_OPSET}) first, or leave `pairs` out",
            )
        value_kinds = infer_value_kinds(model)
        nodes = list(self._list_open_nodes(model, value_kinds))
        pins = overflow.find_pins(nodes, value_kinds, ranges, rules) if ranges else []
        stay = self._list_excluded_nodes(model) | {pin.node for pin in pins}
        stay |= frozenset() if ranges else find_overflow_readers(nodes, self.format)
        slices = WideSlices(model, value_kinds, keep_io=self.keep_io)
        stay |= slices.find_choices(nodes)
        stay |= slices.find_makers(stay)
        if self.keep_io:
            stay |= find_sequence_nodes(model, value_kinds)
        stay |= _find_enclosed_nodes(
            model, value_kinds, stay, self._fixed_ops, keep_io=self.keep_io
        )
        model.opset_imports.setdefault("", CAST_OPSET)
        halver = HalfConverter(model, value_kinds, self.format, self.block, stay, pairs=self.pairs)
        halver.convert_graph(model.graph, keep_io=self.keep_io)
        if not halver.count:
            raise Refused(f"no float32 operator can be {name}", fix=f"leave {name} out")
        _clean_casts(model)
        for graph in edit.walk_graphs(model):
            if isinstance(graph, ir.Graph):
                for value in list(graph.initializers.values()):
                    edit.discard_constant(value)
            for node in reversed(list(graph)):
                if node.op_type == "Constant" and not node.domain:
                    edit.discard_constant(node.outputs[0])
        if halver.kept:
            edit.add_note(model, f"left in float32: {format_count(halver.kept, 'node')}")
        text = "no measured range forbids it" if ranges else "ranges were not measured: no data"
        if pins:
            named = join_names(list(map(str, pins)), MAX_NAMES)
            text = f"{len(pins)} of them by measured ranges: {named}"
        edit.add_note(model, text)
        if model.functions:
            edit.add_note(
                model, f"left in float32: {format_count(len(model.functions), 'local function')}"
            )
        return halver.count

    def _list_open_nodes(
        self, model: ir.Model, value_kinds: Mapping[ir.Value, ValueKind]
    ) -> Iterator[ir.Node]:
        """Yield the nodes that are converted unless a measured value forbids it."""
        named = self._list_excluded_nodes(model)
        fixed = {*CONTROL, *self._fixed_ops, "Constant"}
        for graph in (model.graph, *model.graph.subgraphs()):
            for node in graph:
                if node.domain or node.op_type in fixed or node in named:
                    continue
                has_floats = any(overflow.list_float_values(node, value_kinds))
                if has_floats and not any(True for _ in edit.list_bodies(node)):
                    yield node

    @property
    def _fixed_ops(self) -> frozenset[str]:
        """Operators that stay in float32, whatever was measured."""
        return (FIXED - {*PAIRS} if self.pairs else FIXED) | {*self.block}

    def _list_excluded_nodes(self, model: ir.Model) -> frozenset[ir.Node]:
        return frozenset(edit.walk_nodes(model)) - select_nodes(model, self.include, self.exclude)


def find_overflow_readers(nodes: Sequence[ir.Node], format: Format) -> frozenset[ir.Node]:
    """Return the nodes that read what a constant beyond the format puts into a tensor.

    A fill of -1e9 in a Where makes a tensor that overflows, whoever reads it. This is what can be
    known without data.
    """
    affected: set[ir.Node] = set()
    carriers = (node for node in nodes if node.op_type in CARRIERS)
    todo = [node for node in carriers if _has_overflowing_fill(node, format)]
    candidates = set(nodes)
    while todo:
        readers = {use.node for value in todo.pop().outputs for use in value.uses()} & candidates
        todo += [n for n in readers - affected if n.op_type in (*CARRIERS, *MOVERS)]
        affected |= readers
    return frozenset(affected)


def _has_overflowing_fill(node: ir.Node, format: Format) -> bool:
    arrays = [edit.const_array(value) for value in node.inputs]
    return any(
        array is not None
        and array.dtype.kind == "f"
        and array.size
        and format.largest < np.abs(array).max() < MASK
        for array in arrays
    )


def _prepare_model(model: ir.Model) -> None:
    flatten_model(model)
    for node in edit.walk_nodes(model):
        if node.op_type.startswith("Optional"):
            raise Refused(
                f"{node.op_type} '{node.name}' holds a value of optional type",
                fix="leave 16-bit floats out",
            )


def _find_enclosed_nodes(
    model: ir.Model,
    value_kinds: Mapping[ir.Value, ValueKind],
    stay: Collection[ir.Node],
    fixed: Collection[str],
    *,
    keep_io: bool,
) -> frozenset[ir.Node]:
    """Return light nodes that read and feed float32 only: converting them takes Casts for nothing.

    A Cast down and up again would also lose what the pinned neighbours keep.
    """
    wide = set(stay)
    ends = {id(value) for value in model.graph.outputs} if keep_io else set()

    def from_wide(value: ir.Value) -> bool:
        node = value.producer()
        if node is None:
            return keep_io and value.graph is model.graph
        return node in wide or bool(node.domain) or node.op_type in fixed

    def to_wide(value: ir.Value) -> bool:
        readers = [use.node for use in value.uses()]
        if value.is_graph_output() and id(value) not in ends:
            return False
        return all(n in wide or n.domain or n.op_type in fixed for n in readers)

    changed = bool(wide)
    while changed:
        changed = False
        for node in edit.walk_nodes(model) if wide else ():
            if node in wide or node.domain or node.op_type in (*HEAVY, *CONTROL, "Constant"):
                continue
            floats = overflow.list_float_values(node, value_kinds)
            read = [value for value in floats if value not in node.outputs]
            written = [v for v in node.outputs if value_kinds.get(v) is ValueKind.FLOAT]
            if read and written and all(map(from_wide, read)) and all(map(to_wide, written)):
                wide.add(node)
                changed = True
    return frozenset(wide - set(stay))


def _clean_casts(model: ir.Model) -> None:
    """Remove Casts that change nothing.

    Those are Casts to the type that a value has, and a Cast back behind one that widened. A Cast
    back behind one that narrowed rounds, and stays.
    """
    for node in edit.walk_nodes(model):
        if node.op_type != "Cast" or node.domain or node.outputs[0].is_graph_output():
            continue
        source = node.inputs[0]
        to = ir.DataType(edit.read_attribute(node, "to", 0))
        if source is None or node.graph is None:
            continue
        before = source.producer()
        same = source.dtype == to
        if not same and before is not None and before.op_type == "Cast" and not before.domain:
            origin = before.inputs[0]
            narrow = to in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
            widened = narrow and source.dtype == ir.DataType.FLOAT
            if origin is not None and origin.dtype == to and widened:
                source, same = origin, True
        if same:
            node.outputs[0].replace_all_uses_with(source)
            node.graph.remove(node, safe=True)
    for node in reversed(list(edit.walk_nodes(model))):
        dead = node.op_type == "Cast" and not node.domain and not node.outputs[0].uses()
        if dead and not node.outputs[0].is_graph_output() and node.graph is not None:
            node.graph.remove(node, safe=True)
