"""Each region of a model quantized alone, in one model behind a switch each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import onnx_ir as ir

from ortune.core.errors import OrtuneError, Refused
from ortune.core.event import Progress, Sink, ignore_event
from ortune.core.observer import Ranges
from ortune.core.step import Quantizer
from ortune.graph.analysis.facts import count_weight_bytes
from ortune.graph.io import file, names
from ortune.graph.ir import edit
from ortune.quantizers.calibration.calibrate import compute_ranges
from ortune.search.mixed_precision import grouping
from ortune.search.mixed_precision.choice import exclude_nodes, isolate_region
from ortune.search.recipe.built import Material
from ortune.transforms.raise_opset import RaiseOpset

_NOT_COMPARED = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS, ir.AttributeType.TENSOR)
SWITCHES = "ortune.switches"
"""Input of the switched model: bool [regions], true where a region is quantized."""


@dataclass(frozen=True)
class QuantizedRegion:
    """A region and how it is run quantized alone.

    Attributes:
        switch: Its place among the switches of the joint model; None where it has no place there.
        path: The model with this region alone quantized, where it is not in the joint one.
    """

    region: grouping.PrecisionRegion
    switch: int | None = None
    path: Path | None = None
    changes: bool = True
    saved: int = 0
    error: str = ""


@dataclass(frozen=True)
class QuantizedRegions:
    """The forms of all regions.

    Attributes:
        joint: The switched model, in float while no switch is on.
        all: In the graph's order.
        pairs: Neighbours among them, by name.
    """

    joint: Path
    switches: int
    all: tuple[QuantizedRegion, ...]
    pairs: tuple[tuple[str, str], ...] = ()

    def find_region(self, name: str) -> QuantizedRegion:
        """Return a region's form."""
        return next(form for form in self.all if form.region.name == name)


def load_for_step(path: Path, step: Quantizer) -> ir.Model:
    """Return the model as a step gets it in a build: names unique, raised to its opset."""
    model = file.load(path)
    names.make_names_unique(model)
    if model.opset_imports.get("", 0) < step.needs_opset:
        RaiseOpset(to=step.needs_opset).apply(model)
    return model


def quantize_regions(
    path: Path,
    step: Quantizer,
    material: Material,
    folder: Path,
    *,
    ranges: Path,
    by: grouping.By = "region",
    joint: bool = True,
    rounded: Path | None = None,
    sink: Sink = ignore_event,
) -> QuantizedRegions:
    """Quantize each region of a model alone.

    Args:
        path: The model as the step gets it, or as it was before its weights were rounded.
        ranges: Folder of answers that are known, as builds keep them.
        rounded: The model as the step gets it, where that is another: each region gets its
            constants, so that a region costs what rounding them loses too.
        joint: Put them into one switched model where that can be; else each has its own.

    Raises:
        Refused: The step leaves no node out by name, or rounding changed more than constants.
        OrtuneError: The model cannot be used.
    """
    plain = load_for_step(path, step)
    groups = grouping.find_regions(plain, by)
    layers = [name for region in groups for name in region.layers]
    steps = [isolate_region(step, plain, region.layers, layers) for region in groups]
    _apply_rewrites(plain, step, layers)
    source, constants = plain, None
    if rounded is not None:
        source = load_for_step(rounded, step)
        _apply_rewrites(source, step, layers)
        constants = find_changed_constants(plain, source)
    pairs = grouping.find_neighbours(plain, groups)
    answers = _observe_ranges(source, steps, material, ranges, sink)
    board = SwitchableModel(plain, len(groups)) if joint else None
    forms: list[QuantizedRegion] = []
    size = count_weight_bytes(plain)
    for at, (region, single) in enumerate(zip(groups, steps, strict=True)):
        sink(Progress("quantizing regions alone", at, len(groups)))
        draft = plain.clone()
        if constants is not None:
            give_constants(draft, region.nodes, constants)
        try:
            single.apply(draft, answers)
        except Refused:
            forms.append(QuantizedRegion(region, changes=False))
        except OrtuneError as error:
            forms.append(QuantizedRegion(region, error=error.what))
        else:
            form = QuantizedRegion(region, saved=size - count_weight_bytes(draft))
            with suppress(Refused):
                if board is not None:
                    board.add_region(at, draft, region.nodes)
                    form = replace(form, switch=at)
            if form.switch is None:  # it has no place in the joint model
                path = file.save(draft, folder / f"alone-{at}.onnx", durable=False)
                form = replace(form, path=path)
            forms.append(form)
    model, count = (plain, 0) if board is None else (board.model, len(groups))
    saved = file.save(model, folder / "switched.onnx", durable=False)
    return QuantizedRegions(saved, count, tuple(forms), pairs)


def _apply_rewrites(model: ir.Model, step: Quantizer, layers: Iterable[str]) -> None:
    """Do the exact rewrites that a step begins with, in place."""
    edit.inline_functions(model)
    exclude_nodes(step, model, layers).probes(model)
    edit.take_notes(model)


def _observe_ranges(
    model: ir.Model, steps: Iterable[Quantizer], material: Material, folder: Path, sink: Sink
) -> Ranges:
    """Observe what all forms ask for, in one pass."""
    probes = list(dict.fromkeys(p for step in steps for p in step.probes(model.clone())))
    if not probes:
        return {}
    assert material.feeds is not None, "without samples no region is quantized alone"
    return compute_ranges(
        model,
        probes,
        material.feeds.stream,
        material.calibration,
        folder,
        custom_ops=material.custom_ops,
        sink=sink,
    )


# --- constants that preparing steps made --------------------------------------------------------


def find_changed_constants(
    plain: ir.Model, prepared: ir.Model
) -> dict[str, dict[int, ir.TensorProtocol]]:
    """Return node -> input -> the constant that preparing steps put there.

    Raises:
        Refused: They changed more than constants that nodes of the main graph read.
        OutOfTime: The time of what is being built is up.
    """
    prepared_nodes = {node.name: node for node in prepared.graph}
    if prepared_nodes.keys() != {node.name for node in plain.graph}:
        raise Refused("preparing steps change the graph", fix="compare with what they made")
    changed: dict[str, dict[int, ir.TensorProtocol]] = {}
    for node in plain.graph:
        other = prepared_nodes[node.name]
        if node.op_type != other.op_type or any(edit.list_bodies(node)):
            why = f"{node.name} has a body, or is another"
            raise Refused(why, fix="compare with what they made")
        for place, value in enumerate(other.inputs):
            old = node.inputs[place] if place < len(node.inputs) else None
            tensor, before = edit.const_tensor(value), edit.const_tensor(old)
            if tensor is None:
                continue
            same = (
                before is not None
                and (before.dtype, tuple(before.shape)) == (tensor.dtype, tuple(tensor.shape))
                and (
                    tensor.dtype == ir.DataType.STRING
                    or np.array_equal(before.numpy(), tensor.numpy())
                )
            )
            if not same:
                changed.setdefault(str(node.name), {})[place] = tensor
    return changed


def give_constants(
    model: ir.Model,
    nodes: Collection[str],
    constants: Mapping[str, Mapping[int, ir.TensorProtocol]],
) -> None:
    """Put the constants of some nodes into a model like the one before, in place."""
    editor = edit.Editor(model.graph)
    for node in model.graph:
        tensors = constants.get(str(node.name), {}) if node.name in nodes else {}
        if tensors:
            node.resize_inputs(max(len(node.inputs), 1 + max(tensors)))
        for place, tensor in tensors.items():
            value = editor.add_constant(f"{node.name}/prepared", tensor.numpy())
            node.replace_input_with(place, value)


# --- the switched model -------------------------------------------------------------------------


class SwitchableModel:
    """A float model to which quantized forms of its regions are added.

    What a form computes otherwise goes into an ``If``: its nodes are run where the region's switch
    is on. The float nodes always are. Switches may be on together.

    Attributes:
        model: With the further input `SWITCHES`.
    """

    def __init__(self, plain: ir.Model, count: int) -> None:
        """Take a copy of the model.

        Args:
            plain: Without functions; its names are unique.
        """
        self.model = plain.clone()
        self._plain = {str(node.name): node for node in plain.graph}
        self._nodes = {str(node.name): node for node in self.model.graph}
        self._editor = edit.Editor(self.model.graph)
        self._switches = ir.val(SWITCHES, ir.DataType.BOOL, [count])
        self.model.graph.inputs.append(self._switches)
        self._now: dict[ir.Value, ir.Value] = {}
        self._raw: dict[ir.Value, ir.Value] = {}

    def add_region(self, at: int, form: ir.Model, inside: Collection[str]) -> None:
        """Put a region's quantized form behind the switch `at`.

        Args:
            form: The model with this region alone quantized; its nodes are taken out of it.

        Raises:
            Refused: The form changes bodies, or cannot be cut out.
        """
        changed = _ChangedNodes(self._plain, form, inside)
        parts = changed.list_parts()
        for part in parts:
            behind = {edge.reader for edge in part.edges if edge.reader is not None}
            ahead = list(behind)
            while ahead:
                node = self._plain[ahead.pop()]
                for value in node.outputs:
                    for reader, _ in value.uses():
                        if reader.name not in behind:
                            behind.add(str(reader.name))
                            ahead.append(str(reader.name))
            if behind & {str(node.name) for node in changed.list_inputs(part)}:
                raise Refused("a region reads what depends on it", fix="build it alone")
        for domain, version in form.opset_imports.items():
            if self.model.opset_imports.setdefault(domain, version) != version:
                raise Refused(f"domain '{domain}' has two versions", fix="build it alone")
        for number, part in enumerate(parts):
            self._insert_switch(at, f"switched/{at}.{number}/", form, part)
        self.model.graph.sort()

    def _insert_switch(self, at: int, mark: str, form: ir.Model, part: _Part) -> None:
        pairs: dict[tuple[ir.Value, ir.Value], list[_Edge]] = defaultdict(list)
        for edge in part.edges:  # what stands there now -> what stands there in the form
            value: ir.Value | None = None
            if edge.reader is None:
                value = self.model.graph.outputs[edge.place]
            else:
                value = self._nodes[edge.reader].inputs[edge.place]
            assert value is not None
            pairs[value, edge.source].append(edge)
        chosen = self._editor.make_node(
            "Gather",
            [self._switches, self._editor.add_constant(f"{mark}at", np.array(at, np.int64))],
        )
        then = self._make_body(mark, form, part, [source for _, source in pairs])
        plain = [ir.node("Identity", [value]) for value, _ in pairs]
        for place, node in enumerate(plain):
            node.name = node.outputs[0].name = f"{mark}plain/{place}"
        other = _make_graph(f"{mark}plain/else", plain, plain)
        bodies = {"then_branch": ir.AttrGraph("then_branch", then)}
        bodies["else_branch"] = ir.AttrGraph("else_branch", other)
        switch = self._editor.make_node(
            "If", [chosen.outputs[0]], bodies, name=f"{mark}If", outputs=len(pairs)
        )
        self.model.graph.extend([chosen, switch])
        sources: dict[ir.Value, set[ir.Value]] = defaultdict(set)
        for value, source in pairs:
            sources[value].add(source)
        for output, ((value, _), edges) in zip(switch.outputs, pairs.items(), strict=True):
            output.type, raw = value.type, self._raw.get(value, value)
            self._raw[output] = raw
            if len(sources[value]) == 1:
                self._now[raw] = output
            for edge in edges:
                if edge.reader is not None:
                    self._nodes[edge.reader].replace_input_with(edge.place, output)
                else:
                    old = self.model.graph.outputs[edge.place]
                    name, old.name = old.name, self._editor.reserve_name(f"{old.name}/plain")
                    output.name, output.type, output.shape = name, old.type, old.shape
                    self.model.graph.outputs[edge.place] = output

    def _make_body(
        self, mark: str, form: ir.Model, part: _Part, outputs: Iterable[ir.Value]
    ) -> ir.Graph:
        """Return the quantized nodes as a body, under names of their own."""
        identities = [ir.node("Identity", [value]) for value in outputs]
        nodes = [node for node in form.graph if node in part.nodes]
        form.graph.remove(nodes)
        for node in (*nodes, *identities):
            for place, value in enumerate(node.inputs):
                if value is not None and value.producer() not in part.nodes:
                    node.replace_input_with(place, self._outer_value(value))
        for place, node in enumerate((*nodes, *identities)):
            node.name = f"{mark}{node.name or place}"
            for index, value in enumerate(node.outputs):
                value.name = f"{mark}{value.name or f'{place}.{index}'}"
        return _make_graph(f"{mark}then", (*nodes, *identities), identities)

    def _outer_value(self, value: ir.Value) -> ir.Value:
        """Return the value of the switched model that a value of a form stands for."""
        node = value.producer()
        if node is not None:
            raw = self._nodes[str(node.name)].outputs[value.index() or 0]
            return self._now.get(raw, raw)
        for graph_input in self.model.graph.inputs:
            if graph_input.name == value.name:
                return graph_input
        tensor, existing = value.const_value, self.model.graph.initializers.get(str(value.name))
        if existing is not None and existing.const_value is tensor:
            return existing
        name = self._editor.reserve_name(f"switched/{value.name}")
        initializer = ir.val(name, value.dtype, value.shape, const_value=tensor)
        self.model.graph.register_initializer(initializer)
        return initializer


@dataclass(frozen=True)
class _Edge:
    """Where an unchanged node, or the model's output where `reader` is None, reads otherwise."""

    reader: str | None
    place: int
    source: ir.Value


@dataclass
class _Part:
    """Connected nodes of a form, and where what they make is read."""

    nodes: set[ir.Node] = field(default_factory=set)
    edges: list[_Edge] = field(default_factory=list)


class _ChangedNodes:
    """What a form computes otherwise than the float model."""

    def __init__(
        self, plain: Mapping[str, ir.Node], form: ir.Model, inside: Collection[str]
    ) -> None:
        self._form = form
        if any(node.name in inside for body in form.graph.subgraphs() for node in body):
            raise Refused("a region lies in a body", fix="build it alone")
        self._nodes = {
            node
            for node in form.graph
            if node.name in inside
            or (original := plain.get(str(node.name))) is None
            or not _is_same_node(original, node)
        }
        own_graphs = {form.graph, *(node.graph for node in plain.values())}
        for node in self._nodes:
            readers = [reader for value in node.outputs for reader, _ in value.uses()]
            if any(reader.graph not in own_graphs for reader in readers) or any(
                edit.list_bodies(node)
            ):
                raise Refused("a region lies in a body, or a body reads it", fix="build it alone")
        self._edges = list(self._list_changed_edges(plain))

    def list_parts(self) -> list[_Part]:
        """Return the changed nodes that matter, in connected parts."""
        parts: list[_Part] = []
        for edge in self._edges:
            node = edge.source.producer()  # and what is upstream of it
            ahead = [node] if node is not None and node in self._nodes else []
            nodes = set(ahead)
            while ahead:
                for operand in ahead.pop().inputs:
                    maker = None if operand is None else operand.producer()
                    if maker is not None and maker in self._nodes and maker not in nodes:
                        nodes.add(maker)
                        ahead.append(maker)
            joined = [part for part in parts if part.nodes & nodes]
            parts = [part for part in parts if part not in joined]
            merged = _Part(nodes, [])
            for part in joined:
                merged.nodes |= part.nodes
                merged.edges += part.edges
            merged.edges.append(edge)
            parts.append(merged)
        return parts

    def list_inputs(self, part: _Part) -> Iterator[ir.Node]:
        """Yield the unchanged nodes that a part reads."""
        values = [edge.source for edge in part.edges]
        values += [value for node in part.nodes for value in node.inputs if value is not None]
        for value in values:
            node = value.producer()
            if node is not None and node not in part.nodes:
                yield node

    def _list_changed_edges(self, plain: Mapping[str, ir.Node]) -> Iterator[_Edge]:
        graph = self._form.graph
        for node in graph:
            if node not in self._nodes:
                original = plain[str(node.name)]
                for place, (before, after) in enumerate(
                    zip(original.inputs, node.inputs, strict=True)
                ):
                    if (
                        before is not None
                        and after is not None
                        and self._is_changed(before, after)
                    ):
                        yield _Edge(str(node.name), place, after)
        origin = next(iter(plain.values())).graph
        assert isinstance(origin, ir.Graph)
        for place, (before, after) in enumerate(zip(origin.outputs, graph.outputs, strict=True)):
            if self._is_changed(before, after):
                yield _Edge(None, place, after)

    def _is_changed(self, before: ir.Value, after: ir.Value) -> bool:
        return after.producer() in self._nodes or _value_key(before) != _value_key(after)


def _value_key(value: ir.Value) -> tuple[str, int]:
    node = value.producer()
    return (str(value.name), -1) if node is None else (str(node.name), value.index() or 0)


def _is_same_node(first: ir.Node, second: ir.Node) -> bool:
    """Whether two nodes compute the same of what they read, constants included."""
    if (first.op_type, first.domain) != (second.op_type, second.domain):
        return False
    if len(first.inputs) != len(second.inputs) or len(first.outputs) != len(second.outputs):
        return False
    for a, b in zip(first.inputs, second.inputs, strict=True):
        if (a is None) != (b is None):
            return False
        if a is not None and b is not None and a.const_value is not b.const_value:
            return False
    return {*first.attributes} == {*second.attributes} and all(
        attr.type in _NOT_COMPARED or bool(attr.value == second.attributes[name].value)
        for name, attr in first.attributes.items()
    )


def _make_graph(name: str, nodes: Iterable[ir.Node], last: Iterable[ir.Node]) -> ir.Graph:
    return ir.Graph([], [node.outputs[0] for node in last], nodes=nodes, name=name)
