"""Which layers go back to float32: those that take most off the error of the outputs.

A copy of the model rounds what a 16-bit node reads, holds and makes where the switch of its layer
is on: one further input, a truth a layer. Products are added up in float32, as GPUs do. So one
file answers for every choice of layers, in forward runs, on any runtime that knows the format's
Cast. Layers are given back greedily, the worst first, and measured again after every few, as the
error that one makes depends on its neighbours: a layer's input was rounded by the one before.

What makes a wide value stays wide: positions, times and indices that a kept node reads.

Integers above 2,048 are no float16, nor those above 256 bfloat16. A node that stays in float32
because of what it reads (a sine of positions) gains nothing where the Cast that makes the number,
or what moves it, adds to it or scales it on the way, rounds to 16 bits before. So the slice behind
such a node stays in float32 as far as it comes from integers, or from an input that is float32.

Whatever was measured, such nodes are those too whose answer a rounded integer makes another one:
sines, rounding, comparisons and Casts back to integers of what was computed from integers. Samples
may hold short sequences only.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortune.core import wording
from ortune.core.step import Noise
from ortune.graph.ir import edit
from ortune.quantizers.common.float16.overflow import MOVERS, Format, ValueKind
from ortune.quantizers.common.nodes import replace_output

HEAVY = ("Attention", "Conv", "ConvTranspose", "Einsum", "GRU", "Gemm", "LSTM", "MatMul", "RNN")
"""Operators worth two Casts even between nodes that stay in float32; each begins a layer."""

ENOUGH_DB = 50.0
"""Outputs this near to float32's are near enough, where no number of layers is given."""

MOST = 128
"""Layers that are measured one by one; of a deeper network neighbours are taken together."""

_LONG = 12
"""Nodes of a layer, at most."""

_KEPT = 32
"""Choices that are measured again once the worst layers are back."""

MAX_NAMES = 30
"""Nodes that a note lists by name; it counts them all."""

_SHARE = 4
"""One in so many layers, at most, goes back where no number is given, but two in any case."""


@dataclass(frozen=True)
class NarrowNode:
    """A node that becomes 16-bit: its place in the graph, and which of its values do."""

    place: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True)
class Islands:
    """The answer of `select_islands`."""

    # Places of the nodes of each layer that stays in float32, the worst first.
    layers: tuple[tuple[int, ...], ...]
    before: float  # decibels of the outputs with every layer in 16 bits
    after: float  # with those layers in float32


def list_narrow_nodes(nodes: Sequence[ir.Node], dtype: ir.DataType) -> list[NarrowNode]:
    """Return which of a graph's nodes, listed before it was converted, read or make the type."""
    narrow_nodes = []
    for place, node in enumerate(nodes):
        read = [k for k, v in enumerate(node.inputs) if v is not None and v.dtype == dtype]
        written = [k for k, v in enumerate(node.outputs) if v.dtype == dtype]
        if node.graph is not None and written:
            narrow_nodes.append(NarrowNode(place, tuple(read), tuple(written)))
    return narrow_nodes


def group_into_layers(
    nodes: Sequence[ir.Node], narrow: Sequence[NarrowNode]
) -> list[list[NarrowNode]]:
    """Return the layers: a heavy operator and some of the light ones behind it, in order."""
    groups: list[list[NarrowNode]] = []
    for entry in narrow:
        if not groups or nodes[entry.place].op_type in HEAVY or len(groups[-1]) >= _LONG:
            groups.append([])
        groups[-1].append(entry)
    size = math.ceil(len(groups) / MOST)
    together = (groups[k : k + size] for k in range(0, len(groups), size))
    return [list(chain.from_iterable(neighbours)) for neighbours in together]


def select_islands(
    model: ir.Model,
    parts: Sequence[Sequence[NarrowNode]],
    format: Format,
    noise: Noise,
    most: int | None,
) -> Islands:
    """Give layers back to float32 until so many are, or the outputs are near enough.

    Args:
        noise: Runs the model; see `ortune.core.step.Noise`.
        most: Layers to give back; None for as few as bring the outputs near enough.
    """
    copy, name = add_switches(model, parts, format)
    count = len(parts)
    limit = max(2, count // _SHARE) if most is None else min(most, count)

    def measure(off: Sequence[Sequence[int]]) -> Sequence[float]:
        """Return the noise with each of these choices of layers in float32."""
        rows = np.ones((1 + len(off), count), bool)
        rows[0] = False  # the answers that the others are compared with
        for row, layers in zip(rows[1:], off, strict=True):
            row[list(layers)] = False
        return noise(copy, [{name: row} for row in rows])[1:]

    groups, back = _list_groups(model, parts), list[int]()
    now = before = measure([back])[0]
    while len(back) < limit and not (most is None and _to_decibels(now) >= ENOUGH_DB):
        open_groups = dict.fromkeys(group - {*back} for group in groups)
        choices = [group for group in open_groups if 0 < len(group) <= limit - len(back)]
        noises = measure([[*back, *group] for group in choices]) if choices else []
        gains = {
            g: _compute_gain(now, then) / len(g) for g, then in zip(choices, noises, strict=True)
        }
        groups = sorted((g for g in gains if gains[g] > 0), key=lambda g: -gains[g])[:_KEPT]
        if not groups:
            break
        back += _pick_layers(groups, max(1, limit // _SHARE), limit - len(back))
        now = measure([back])[0]
    layers = tuple(tuple(entry.place for entry in parts[k]) for k in back)
    return Islands(layers, _to_decibels(before), _to_decibels(now))


def _list_groups(model: ir.Model, parts: Sequence[Sequence[NarrowNode]]) -> list[frozenset[int]]:
    """Return what may go back at once: a layer, and a layer with those that read it.

    A tensor is rounded by who makes it and by who reads it: one of them alone may gain nothing.
    """
    nodes = list(model.graph)
    layer = {nodes[entry.place]: k for k, part in enumerate(parts) for entry in part}
    groups = [frozenset({k}) for k in range(len(parts))]
    for k, part in enumerate(parts):
        values = [value for entry in part for value in nodes[entry.place].outputs]
        readers = {layer[use.node] for v in values for use in v.uses() if use.node in layer}
        groups += [frozenset({k, reader}) for reader in sorted(readers - {k})]
        groups.append(frozenset({k, *readers}))
    return list(dict.fromkeys(groups))


def _pick_layers(groups: Sequence[frozenset[int]], goal: int, room: int) -> list[int]:
    """Return the layers of the first groups: about as many as wanted, none beyond the room."""
    picks: dict[int, None] = {}
    for group in groups:
        more = [k for k in sorted(group) if k not in picks]
        if len(picks) >= goal:
            break
        if len(picks) + len(more) <= room:
            picks |= dict.fromkeys(more)
    return list(picks)


def _compute_gain(now: float, then: float) -> float:
    """Return by how much the noise falls; from no number to a number more than anything."""
    if math.isinf(now):
        return 0.0 if math.isinf(then) else math.inf
    return max(0.0, now - then)


def add_switches(
    model: ir.Model, parts: Sequence[Sequence[NarrowNode]], format: Format
) -> tuple[ir.Model, str]:
    """Return a copy that rounds where a layer's switch is on, and the name of its switches.

    The switches are one input of truths, shape [layers].
    """
    copy = model.clone()
    rewriter = _Switches(copy, len(parts), format)
    order = {entry.place: k for k, part in enumerate(parts) for entry in part}
    entries = {entry.place: entry for part in parts for entry in part}
    for place, node in enumerate(list(copy.graph)):
        if place in order:
            rewriter.switch_node(node, entries[place], order[place])
    return copy, str(rewriter.switches.name)


class _Switches:
    def __init__(self, model: ir.Model, count: int, format: Format) -> None:
        self._graph, self._format = model.graph, format
        self._editor = edit.Editor(model.graph)
        name = self._editor.reserve_name("switches")
        self.switches = ir.val(name, dtype=ir.DataType.BOOL, shape=[count])
        model.graph.inputs.append(self.switches)
        self._flags: dict[int, ir.Value] = {}
        self._rounded: dict[ir.Value, ir.Value] = {}
        self._layer: dict[ir.Value, int] = {}

    def switch_node(self, node: ir.Node, narrow: NarrowNode, layer: int) -> None:
        """Round what a node reads and makes in 16 bits, where its layer's switch is on."""
        for index in narrow.inputs:
            value = node.inputs[index]
            if value is not None and self._layer.get(value) != layer:
                node.replace_input_with(index, self._select_value(value, layer, node))
        for index in narrow.outputs:
            value = node.outputs[index]
            uses = list(value.uses())
            instead = self._select_value(value, layer, None)
            for use in uses:
                use.node.replace_input_with(use.idx, instead)
            self._layer[instead] = layer
            if value.is_graph_output():
                replace_output(self._editor, self._graph, value, instead)

    def _select_value(self, value: ir.Value, layer: int, before: ir.Node | None) -> ir.Value:
        """Return the value, rounded where the switch is on: in front of a node, or behind it."""
        if value not in self._rounded:
            array = edit.const_array(value)
            if array is not None:
                narrow: NDArray[np.float32] = self._format.round_values(array).astype(np.float32)
                self._rounded[value] = self._editor.add_constant(f"{value.name}_rounded", narrow)
            else:
                down = self._editor.make_node("Cast", [value], {"to": int(self._format.dtype)})
                to = {"to": int(ir.DataType.FLOAT)}
                up = self._editor.make_node("Cast", [down.outputs[0]], to)
                up.outputs[0].shape, up.outputs[0].dtype = value.shape, ir.DataType.FLOAT
                maker = value.producer()
                if maker is None:
                    edit.insert_first(self._graph, down, up)
                else:
                    edit.insert_after(maker, down, up)
                self._rounded[value] = up.outputs[0]
        if layer not in self._flags:
            place = self._editor.add_constant("layer", np.asarray(layer, np.int64))
            node = self._editor.make_node("Gather", [self.switches, place], name=f"switch_{layer}")
            edit.insert_first(self._graph, node)
            self._flags[layer] = node.outputs[0]
        rounded, flag = self._rounded[value], self._flags[layer]
        node = self._editor.make_node("Where", [flag, rounded, value], name=f"{value.name}_chosen")
        node.outputs[0].shape, node.outputs[0].dtype = value.shape, ir.DataType.FLOAT
        if before is not None:
            edit.insert_before(before, node)
        else:
            last = rounded.producer()
            assert last is not None
            edit.insert_after(last, node)
        return node.outputs[0]


def describe_islands(selection: Islands, nodes: Sequence[ir.Node]) -> str:
    """Say which layers went back, each by its first node's name."""
    if not selection.layers:
        return f"no layer kept in float32: the output SNR is {selection.before:.1f} dB"
    first = [str(nodes[layer[0]].name) for layer in selection.layers]
    return (
        f"{wording.format_count(len(first), 'layer')} kept in float32 to raise the output SNR: "
        f"{selection.before:.1f} dB before and {selection.after:.1f} dB behind: "
        f"{wording.join_names(first, MAX_NAMES)}"
    )


def _to_decibels(noise: float) -> float:
    return math.inf if noise == 0 else -10 * math.log10(noise)


_CARRIERS_TEXT = (
    "Abs Add Ceil Clip Concat CumSum Div Floor Max Min Mod Mul Neg Pad Pow Range ReduceMax "
    "ReduceMin ReduceSum Round Split Sub Sum Tile Trilu Where"
)
CARRIERS = frozenset((*MOVERS, *_CARRIERS_TEXT.split()))
"""Operators whose results are as exact as what they read, and that cost little in float32."""

PRODUCTS = frozenset({"Einsum", "Gemm", "MatMul"})
"""Operators that carry where both sides do: an outer product of positions and frequencies."""

_CHOICES_TEXT = (
    "ArgMax ArgMin Ceil Cos Equal Floor Greater GreaterOrEqual Less LessOrEqual Mod Round Sin Tan"
)
CHOICES = frozenset(_CHOICES_TEXT.split())
"""Operators of which a rounded integer makes another answer, not one that is a little off."""

ANGLES = ("Cos", "Sin", "Tan")
"""Those of them that any large input makes wrong, such as the time of a diffusion step."""

_FEW = 4096
"""Elements of a constant that is no weight."""

_SMALL = 16
"""Bits of the integers that lose nothing in any format: of truth values and of bytes."""


@dataclass(frozen=True)
class ValueOrigin:
    """Where a value comes from."""

    integers: bool  # integers have a part in it, and nothing on the way is a layer
    wide: bool  # they have, or all of it comes from inputs that stay float32


class WideSlices:
    """The slices of a model that come from integers, or from inputs that stay float32."""

    def __init__(
        self, model: ir.Model, kinds: Mapping[ir.Value, ValueKind], *, keep_io: bool
    ) -> None:
        self._kinds = kinds
        self._inputs = {*model.graph.inputs} if keep_io else set()
        self._origins: dict[ir.Value, ValueOrigin] = {}

    def find_choices(self, nodes: Iterable[ir.Node]) -> frozenset[ir.Node]:
        """Return the nodes that choose by integers, and sines of what is wide alone."""
        choices = set()
        for node in nodes:
            origins = [self._trace(value) for value in self._list_read(node)]
            if node.op_type in ANGLES and any(origin.wide for origin in origins):
                choices.add(node)
            chooses = node.op_type in CHOICES
            if node.op_type == "Cast":
                chooses = ir.DataType(edit.read_attribute(node, "to", 1)).is_integer()
            if chooses and any(origin.integers for origin in origins):
                choices.add(node)
        return frozenset(choices)

    def find_makers(self, kept: Collection[ir.Node]) -> frozenset[ir.Node]:
        """Return what makes the values that the kept nodes read, as far as it is not 16-bit."""
        makers: set[ir.Node] = set()
        todo = [value for node in kept for value in self._list_read(node)]
        while todo:
            value = todo.pop()
            node = value.producer()
            if node is None or node in makers or not self._trace(value).wide:
                continue
            makers.add(node)
            todo += self._list_read(node)
        return frozenset(makers - set(kept))

    def _trace(self, value: ir.Value) -> ValueOrigin:
        """Return where a value comes from; the way there may be as long as the graph is deep."""
        todo = [value]
        while todo:
            current = todo[-1]
            node = current.producer()
            sources = self._list_read(node) if node is not None and _carries(node) else []
            waiting = [source for source in sources if source not in self._origins]
            if waiting:
                todo += waiting
                continue
            todo.pop()
            if node is None or not _carries(node):
                self._origins[current] = ValueOrigin(integers=False, wide=current in self._inputs)
            else:
                origins = [self._origins[source] for source in sources]
                self._origins[current] = self._join_origins(node, origins)
        return self._origins[value]

    def _join_origins(self, node: ir.Node, sources: Sequence[ValueOrigin]) -> ValueOrigin:
        wide = bool(sources) and all(origin.wide for origin in sources)
        integers = any(origin.integers for origin in sources)
        if node.op_type == "Range" or (node.op_type == "Cast" and self._widens_integers(node)):
            return ValueOrigin(integers=True, wide=True)
        if node.op_type in PRODUCTS:
            return ValueOrigin(integers=wide and integers, wide=wide and integers)
        return ValueOrigin(integers, wide=wide or integers)

    def _widens_integers(self, node: ir.Node) -> bool:
        source = node.inputs[0]
        if source is None or self._kinds.get(source) in (ValueKind.FLOAT, ValueKind.FLOATS):
            return False
        dtype = source.dtype
        if dtype is None:
            return True
        return dtype == ir.DataType.DOUBLE or (dtype.is_integer() and dtype.bitwidth >= _SMALL)

    def _list_read(self, node: ir.Node) -> list[ir.Value]:
        """Return the float32 values that a node reads, small constants aside."""
        return [
            value
            for value in node.inputs
            if value is not None
            and self._kinds.get(value) is ValueKind.FLOAT
            and ((tensor := edit.const_tensor(value)) is None or tensor.size > _FEW)
        ]


def _carries(node: ir.Node) -> bool:
    return not node.domain and (node.op_type == "Cast" or node.op_type in CARRIERS | PRODUCTS)
