"""What the 16-bit formats share: fields, what must stay in float32, and the conversion."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal, Self

import numpy as np
import onnx_ir as ir

from ortune.core.backend import Backend
from ortune.core.capabilities import Capabilities
from ortune.core.errors import BadData, Refused
from ortune.core.facts import Facts
from ortune.core.observer import Probe, Ranges
from ortune.core.plugins.bounds import Bounds
from ortune.core.step import Noise, Quantizer, Step
from ortune.core.wording import count
from ortune.model.graph import edit
from ortune.quantization.float16 import overflow
from ortune.quantization.float16.convert import CONTROL, FIXED, PAIRS, Halver
from ortune.quantization.float16.format import MASK, Format
from ortune.quantization.float16.islands import (
    HEAVY,
    NAMED,
    islands,
    layers,
    narrowed,
    told,
)
from ortune.quantization.float16.overflow import MOVERS, Pin, Rules
from ortune.quantization.node_filter import literally, wanted
from ortune.quantization.types import ValueKind, kinds

CARRIERS = ("Add", "Concat", "Max", "Min", "Pad", "Sub", "Where")
"""Operators that forward a large constant as it is."""

CAST_OPSET = 13
"""Opset of the Casts in a model that has no standard operators yet."""

PAIR_OPSET = 19
"""Opset from which a scale of QuantizeLinear and DequantizeLinear may be 16-bit."""


@dataclass(frozen=True)
class Sixteen(Quantizer):
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
        _prepare(model)
        found = kinds(model)
        return overflow.probes(list(self._open(model, found)), found)

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
        _prepare(model)
        trial, nodes = model.clone(), list(model.graph)
        converted = list(trial.graph)
        plain.apply(trial, ranges)
        parts = layers(nodes, narrowed(converted, self.format.dtype))
        most = None if self.islands == "auto" else self.islands
        found = islands(model, parts, self.format, noise, most)
        edit.note(model, told(found, nodes))
        names = [str(nodes[k].name) for layer in found.layers for k in layer if nodes[k].name]
        return replace(plain, exclude=(*self.exclude, *map(literally, names)))

    def apply(self, model: ir.Model, ranges: Ranges) -> int:
        """Convert the model and return how many nodes became 16-bit; notes say what did not."""
        rules = Rules(self.format, self.margin, self.loss, wide_sums=self.sums == "float32")
        name = self.format.name
        _prepare(model)
        if self.pairs and model.opset_imports.get("", 0) < PAIR_OPSET:
            raise Refused(
                f"pairs have {name} scales from opset {PAIR_OPSET} on",
                fix=f"apply raise-opset(to={PAIR_OPSET}) first, or leave `pairs` out",
            )
        found = kinds(model)
        nodes = list(self._open(model, found))
        pins = overflow.pins(nodes, found, ranges, rules) if ranges else []
        stay = self._named(model) | {pin.node for pin in pins}
        stay |= frozenset() if ranges else carried(nodes, self.format)
        stay |= _between(model, found, stay, self._fixed, keep_io=self.keep_io)
        model.opset_imports.setdefault("", CAST_OPSET)
        halver = Halver(model, found, self.format, self.block, stay, pairs=self.pairs)
        halver.main(model.graph, keep_io=self.keep_io)
        if not halver.count:
            raise Refused(f"no float32 operator can be {name}", fix=f"leave {name} out")
        _clean_casts(model)
        for graph in edit.every_graph(model):
            if isinstance(graph, ir.Graph):
                for value in list(graph.initializers.values()):
                    edit.discard(value)
            for node in reversed(list(graph)):
                if node.op_type == "Constant" and not node.domain:
                    edit.discard(node.outputs[0])
        if halver.kept:
            edit.note(model, f"left in float32: {count(halver.kept, 'node')}")
        edit.note(model, _reasons(pins) if ranges else "ranges were not measured: no data")
        if model.functions:
            edit.note(model, f"left in float32: {count(len(model.functions), 'local function')}")
        return halver.count

    def _open(self, model: ir.Model, found: Mapping[ir.Value, ValueKind]) -> Iterator[ir.Node]:
        """Yield the nodes that are converted unless a measured value forbids it."""
        named = self._named(model)
        fixed = {*CONTROL, *self._fixed, "Constant"}
        for graph in (model.graph, *model.graph.subgraphs()):
            for node in graph:
                if node.domain or node.op_type in fixed or node in named:
                    continue
                if not any(True for _ in edit.bodies(node)) and any(overflow.floats(node, found)):
                    yield node

    @property
    def _fixed(self) -> frozenset[str]:
        """Operators that stay in float32, whatever was measured."""
        return (FIXED - {*PAIRS} if self.pairs else FIXED) | {*self.block}

    def _named(self, model: ir.Model) -> frozenset[ir.Node]:
        return frozenset(edit.every_node(model)) - wanted(model, self.include, self.exclude)


def carried(nodes: Sequence[ir.Node], format: Format) -> frozenset[ir.Node]:
    """Return the nodes that read what a constant beyond the format puts into a tensor.

    A fill of -1e9 in a Where makes a tensor that overflows, whoever reads it. This is what can be
    known without data.
    """
    found: set[ir.Node] = set()
    todo = [node for node in nodes if node.op_type in CARRIERS and _fills(node, format)]
    known = set(nodes)
    while todo:
        readers = {use.node for value in todo.pop().outputs for use in value.uses()} & known
        todo += [n for n in readers - found if n.op_type in (*CARRIERS, *MOVERS)]
        found |= readers
    return frozenset(found)


def _fills(node: ir.Node, format: Format) -> bool:
    arrays = [edit.const_array(value) for value in node.inputs]
    return any(
        array is not None
        and array.dtype.kind == "f"
        and array.size
        and format.largest < np.abs(array).max() < MASK
        for array in arrays
    )


def _prepare(model: ir.Model) -> None:
    edit.inline(model)
    for node in edit.every_node(model):
        if node.op_type.startswith("Optional"):
            raise Refused(
                f"{node.op_type} '{node.name}' holds a value of optional type",
                fix="leave the step out",
            )


def _reasons(pins: Sequence[Pin]) -> str:
    if not pins:
        return "no measured range forbids it"
    more = f" and {len(pins) - NAMED} more" if len(pins) > NAMED else ""
    return f"{len(pins)} of them by measured ranges: {', '.join(map(str, pins[:NAMED]))}{more}"


def _between(
    model: ir.Model,
    found: Mapping[ir.Value, ValueKind],
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
        for node in edit.every_node(model) if wide else ():
            if node in wide or node.domain or node.op_type in (*HEAVY, *CONTROL, "Constant"):
                continue
            read = [v for v in overflow.floats(node, found) if v not in node.outputs]
            made = [value for value in node.outputs if found.get(value) is ValueKind.FLOAT]
            if read and made and all(map(from_wide, read)) and all(map(to_wide, made)):
                wide.add(node)
                changed = True
    return frozenset(wide - set(stay))


def _clean_casts(model: ir.Model) -> None:
    """Remove Casts that change nothing.

    Those are Casts to the type that a value has, and a Cast back behind one that widened. A Cast
    back behind one that narrowed rounds, and stays.
    """
    for node in edit.every_node(model):
        if node.op_type != "Cast" or node.domain or node.outputs[0].is_graph_output():
            continue
        source = node.inputs[0]
        to = ir.DataType(edit.attribute(node, "to", 0))
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
    for node in reversed(list(edit.every_node(model))):
        dead = node.op_type == "Cast" and not node.domain and not node.outputs[0].uses()
        if dead and not node.outputs[0].is_graph_output() and node.graph is not None:
            node.graph.remove(node, safe=True)
