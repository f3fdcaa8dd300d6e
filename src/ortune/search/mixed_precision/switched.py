"""Each region of a model quantized alone, in one model behind a switch each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import onnx_ir as ir

from ortune.core.errors import BadData, OrtuneError, Refused
from ortune.core.event import Progress, Sink, silent
from ortune.core.observer import Ranges
from ortune.core.step import Quantizer
from ortune.graph.analysis.facts import weight_bytes
from ortune.graph.io import file, names
from ortune.graph.ir import edit
from ortune.quantizers.calibration.calibrate import calibrate
from ortune.search.mixed_precision.choice import alone, leaving
from ortune.search.mixed_precision.grouping import By, Region, neighbours, regions
from ortune.search.recipe.material import Material
from ortune.transforms.raise_opset import RaiseOpset

_NOT_COMPARED = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS, ir.AttributeType.TENSOR)
SWITCHES = "ortune.switches"
"""Input of the switched model: bool [regions], true where a region is quantized."""


@dataclass(frozen=True)
class Form:
    """A region and how it is run quantized alone.

    Attributes:
        switch: Its place among the switches of the joint model; None where it has no place there.
        path: The model with this region alone quantized, where it is not in the joint one.
    """

    region: Region
    switch: int | None = None
    path: Path | None = None
    changes: bool = True
    saved: int = 0
    error: str = ""


@dataclass(frozen=True)
class Forms:
    """The forms of all regions.

    Attributes:
        joint: The switched model, in float while no switch is on.
        all: In the graph's order.
        pairs: Neighbours among them, by name.
    """

    joint: Path
    switches: int
    all: tuple[Form, ...]
    pairs: tuple[tuple[str, str], ...] = ()

    def named(self, name: str) -> Form:
        """Return a region's form."""
        return next(form for form in self.all if form.region.name == name)


def as_given(path: Path, step: Quantizer) -> ir.Model:
    """Return the model as a step gets it in a build: names unique, raised to its opset."""
    model = file.load(path)
    names.unique(model)
    if model.opset_imports.get("", 0) < step.needs_opset:
        RaiseOpset(to=step.needs_opset).apply(model)
    return model


def prepare(
    path: Path,
    step: Quantizer,
    material: Material,
    folder: Path,
    *,
    ranges: Path,
    by: By = "region",
    joint: bool = True,
    rounded: Path | None = None,
    sink: Sink = silent,
) -> Forms:
    """Quantize each region of a model alone.

    Args:
        path: The model as the step gets it, or as it was before its weights were rounded.
        ranges: Folder of answers that are known, as builds keep them.
        rounded: The model as the step gets it, where that is another: each region gets its
            constants, so that a region costs what rounding them loses too.
        joint: Put them into one switched model where that can be; else each has its own.

    Raises:
        Refused: The step leaves no node out by name, or rounding changed more than constants.
        OrtuneError: It has no samples to calibrate on, or the model cannot be used.
    """
    plain = as_given(path, step)
    found = regions(plain, by)
    layers = [name for region in found for name in region.layers]
    steps = [alone(step, plain, region.layers, layers) for region in found]
    _rewrite(plain, step, layers)
    source, constants = plain, None
    if rounded is not None:
        source = as_given(rounded, step)
        _rewrite(source, step, layers)
        constants = changed_constants(plain, source)
    pairs = neighbours(plain, found)
    answers = _ranges(source, steps, material, ranges, sink)
    board = Switched(plain, len(found)) if joint else None
    forms: list[Form] = []
    size = weight_bytes(plain)
    for at, (region, single) in enumerate(zip(found, steps, strict=True)):
        sink(Progress("quantizing regions alone", at, len(found)))
        draft = plain.clone()
        if constants is not None:
            give_constants(draft, region.nodes, constants)
        try:
            single.apply(draft, answers)
        except Refused:
            forms.append(Form(region, changes=False))
        except OrtuneError as error:
            forms.append(Form(region, error=error.what))
        else:
            form = Form(region, saved=size - weight_bytes(draft))
            with suppress(Refused):
                if board is not None:
                    board.add(at, draft, region.nodes)
                    form = replace(form, switch=at)
            if form.switch is None:  # it has no place in the joint model
                path = file.save(draft, folder / f"alone-{at}.onnx", durable=False)
                form = replace(form, path=path)
            forms.append(form)
    model, count = (plain, 0) if board is None else (board.model, len(found))
    saved = file.save(model, folder / "switched.onnx", durable=False)
    return Forms(saved, count, tuple(forms), pairs)


def _rewrite(model: ir.Model, step: Quantizer, layers: Iterable[str]) -> None:
    """Do the exact rewrites that a step begins with, in place."""
    edit.inline(model)
    leaving(step, model, layers).probes(model)
    edit.take_notes(model)


def _ranges(
    model: ir.Model, steps: Iterable[Quantizer], material: Material, folder: Path, sink: Sink
) -> Ranges:
    """Observe what all forms ask for, in one pass."""
    probes = list(dict.fromkeys(p for step in steps for p in step.probes(model.clone())))
    if not probes:
        return {}
    if material.feeds is None or not material.calibration:
        raise BadData(
            "regions are quantized alone on samples, and there are none to calibrate on",
            fix="give samples with --data",
        )
    return calibrate(
        model,
        probes,
        material.feeds.stream,
        material.calibration,
        folder,
        custom_ops=material.custom_ops,
        sink=sink,
    )


# --- constants that preparing steps made --------------------------------------------------------


def changed_constants(
    plain: ir.Model, prepared: ir.Model
) -> dict[str, dict[int, ir.TensorProtocol]]:
    """Return node -> input -> the constant that preparing steps put there.

    Raises:
        Refused: They changed more than constants that nodes of the main graph read.
        OutOfTime: The time of what is being built is up.
    """
    others = {node.name: node for node in prepared.graph}
    if others.keys() != {node.name for node in plain.graph}:
        raise Refused("preparing steps change the graph", fix="compare with what they made")
    changed: dict[str, dict[int, ir.TensorProtocol]] = {}
    for node in plain.graph:
        other = others[node.name]
        if node.op_type != other.op_type or any(edit.bodies(node)):
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
            value = editor.constant(f"{node.name}/prepared", tensor.numpy())
            node.replace_input_with(place, value)


# --- the switched model -------------------------------------------------------------------------


class Switched:
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

    def add(self, at: int, form: ir.Model, inside: Collection[str]) -> None:
        """Put a region's quantized form behind the switch `at`.

        Args:
            form: The model with this region alone quantized; its nodes are taken out of it.

        Raises:
            Refused: The form changes bodies, or cannot be cut out.
        """
        changed = _Changed(self._plain, form, inside)
        parts = changed.parts()
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
            if behind & {str(node.name) for node in changed.read(part)}:
                raise Refused("a region reads what depends on it", fix="build it alone")
        for domain, version in form.opset_imports.items():
            if self.model.opset_imports.setdefault(domain, version) != version:
                raise Refused(f"domain '{domain}' has two versions", fix="build it alone")
        for number, part in enumerate(parts):
            self._put(at, f"switched/{at}.{number}/", form, part)
        self.model.graph.sort()

    def _put(self, at: int, mark: str, form: ir.Model, part: _Part) -> None:
        pairs: dict[tuple[ir.Value, ir.Value], list[_Edge]] = defaultdict(list)
        for edge in part.edges:  # what stands there now -> what stands there in the form
            value: ir.Value | None = None
            if edge.reader is None:
                value = self.model.graph.outputs[edge.place]
            else:
                value = self._nodes[edge.reader].inputs[edge.place]
            assert value is not None
            pairs[value, edge.source].append(edge)
        chosen = self._editor.node(
            "Gather", [self._switches, self._editor.constant(f"{mark}at", np.array(at, np.int64))]
        )
        then = self._body(mark, form, part, [source for _, source in pairs])
        plain = [ir.node("Identity", [value]) for value, _ in pairs]
        for place, node in enumerate(plain):
            node.name = node.outputs[0].name = f"{mark}plain/{place}"
        other = _graph(f"{mark}plain/else", plain, plain)
        bodies = {"then_branch": ir.AttrGraph("then_branch", then)}
        bodies["else_branch"] = ir.AttrGraph("else_branch", other)
        switch = self._editor.node(
            "If", [chosen.outputs[0]], bodies, name=f"{mark}If", outputs=len(pairs)
        )
        self.model.graph.extend([chosen, switch])
        sources: dict[ir.Value, set[ir.Value]] = defaultdict(set)
        for value, source in pairs:
            sources[value].add(source)
        for made, ((value, _), edges) in zip(switch.outputs, pairs.items(), strict=True):
            made.type, raw = value.type, self._raw.get(value, value)
            self._raw[made] = raw
            if len(sources[value]) == 1:
                self._now[raw] = made
            for edge in edges:
                self._attach(edge, made)

    def _body(
        self, mark: str, form: ir.Model, part: _Part, outputs: Iterable[ir.Value]
    ) -> ir.Graph:
        """Return the quantized nodes as a body, under names of their own."""
        made = [ir.node("Identity", [value]) for value in outputs]
        nodes = [node for node in form.graph if node in part.nodes]
        form.graph.remove(nodes)
        for node in (*nodes, *made):
            for place, value in enumerate(node.inputs):
                if value is not None and value.producer() not in part.nodes:
                    node.replace_input_with(place, self._outer(value))
        for place, node in enumerate((*nodes, *made)):
            node.name = f"{mark}{node.name or place}"
            for index, value in enumerate(node.outputs):
                value.name = f"{mark}{value.name or f'{place}.{index}'}"
        return _graph(f"{mark}then", (*nodes, *made), made)

    def _outer(self, value: ir.Value) -> ir.Value:
        """Return the value of the switched model that a value of a form stands for."""
        node = value.producer()
        if node is not None:
            raw = self._nodes[str(node.name)].outputs[value.index() or 0]
            return self._now.get(raw, raw)
        for held in self.model.graph.inputs:
            if held.name == value.name:
                return held
        tensor, known = value.const_value, self.model.graph.initializers.get(str(value.name))
        if known is not None and known.const_value is tensor:
            return known
        name = self._editor.fresh(f"switched/{value.name}")
        made = ir.val(name, value.dtype, value.shape, const_value=tensor)
        self.model.graph.register_initializer(made)
        return made

    def _attach(self, edge: _Edge, made: ir.Value) -> None:
        if edge.reader is not None:
            self._nodes[edge.reader].replace_input_with(edge.place, made)
            return
        old = self.model.graph.outputs[edge.place]
        name, old.name = old.name, self._editor.fresh(f"{old.name}/plain")
        made.name, made.type, made.shape = name, old.type, old.shape
        self.model.graph.outputs[edge.place] = made


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


class _Changed:
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
            or (own := plain.get(str(node.name))) is None
            or not _same(own, node)
        }
        own_graphs = {form.graph, *(node.graph for node in plain.values())}
        for node in self._nodes:
            readers = [reader for value in node.outputs for reader, _ in value.uses()]
            if any(reader.graph not in own_graphs for reader in readers) or any(edit.bodies(node)):
                raise Refused("a region lies in a body, or a body reads it", fix="build it alone")
        self._edges = list(self._read_otherwise(plain))

    def parts(self) -> list[_Part]:
        """Return the changed nodes that matter, in connected parts."""
        found: list[_Part] = []
        for edge in self._edges:
            nodes = set(self._upstream(edge.source))
            joined = [part for part in found if part.nodes & nodes]
            found = [part for part in found if part not in joined]
            made = _Part(nodes, [])
            for part in joined:
                made.nodes |= part.nodes
                made.edges += part.edges
            made.edges.append(edge)
            found.append(made)
        return found

    def read(self, part: _Part) -> Iterator[ir.Node]:
        """Yield the unchanged nodes that a part reads."""
        values = [edge.source for edge in part.edges]
        values += [value for node in part.nodes for value in node.inputs if value is not None]
        for value in values:
            node = value.producer()
            if node is not None and node not in part.nodes:
                yield node

    def _upstream(self, value: ir.Value) -> Iterator[ir.Node]:
        node = value.producer()
        ahead = [node] if node is not None and node in self._nodes else []
        seen = set(ahead)
        while ahead:
            node = ahead.pop()
            yield node
            for one in node.inputs:
                maker = None if one is None else one.producer()
                if maker is not None and maker in self._nodes and maker not in seen:
                    seen.add(maker)
                    ahead.append(maker)

    def _read_otherwise(self, plain: Mapping[str, ir.Node]) -> Iterator[_Edge]:
        graph = self._form.graph
        for node in graph:
            if node not in self._nodes:
                own = plain[str(node.name)]
                for place, (one, two) in enumerate(zip(own.inputs, node.inputs, strict=True)):
                    if one is not None and two is not None and self._otherwise(one, two):
                        yield _Edge(str(node.name), place, two)
        origin = next(iter(plain.values())).graph
        assert isinstance(origin, ir.Graph)
        for place, (one, two) in enumerate(zip(origin.outputs, graph.outputs, strict=True)):
            if self._otherwise(one, two):
                yield _Edge(None, place, two)

    def _otherwise(self, one: ir.Value, two: ir.Value) -> bool:
        return two.producer() in self._nodes or _place(one) != _place(two)


def _place(value: ir.Value) -> tuple[str, int]:
    node = value.producer()
    return (str(value.name), -1) if node is None else (str(node.name), value.index() or 0)


def _same(one: ir.Node, two: ir.Node) -> bool:
    """Whether two nodes compute the same of what they read, constants included."""
    if (one.op_type, one.domain) != (two.op_type, two.domain):
        return False
    if len(one.inputs) != len(two.inputs) or len(one.outputs) != len(two.outputs):
        return False
    for a, b in zip(one.inputs, two.inputs, strict=True):
        if (a is None) != (b is None):
            return False
        if a is not None and b is not None and a.const_value is not b.const_value:
            return False
    return {*one.attributes} == {*two.attributes} and all(
        attr.type in _NOT_COMPARED or bool(attr.value == two.attributes[name].value)
        for name, attr in one.attributes.items()
    )


def _graph(name: str, nodes: Iterable[ir.Node], last: Iterable[ir.Node]) -> ir.Graph:
    return ir.Graph([], [node.outputs[0] for node in last], nodes=nodes, name=name)
