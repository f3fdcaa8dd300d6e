"""Model files that differ in their outputs alone, over one set of weights."""

import contextlib
import mmap
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from ortune.core.errors import OrtuneError, with_article
from ortune.core.facts import NEWEST_IR
from ortune.graph.io import external, write

ODD = frozenset(range(onnx.TensorProto.BFLOAT16, max(onnx.TensorProto.DataType.values()) + 1))
"""Element types that NumPy lacks: bfloat16 and all that came after it."""


@dataclass(frozen=True)
class Step:
    """A body on the way to a value."""

    parent: onnx.GraphProto
    node: onnx.NodeProto
    attribute: str
    body: onnx.GraphProto


@dataclass(frozen=True)
class Place:
    """Where a value is made: through which bodies from the outermost in, and by which operator."""

    path: tuple[Step, ...]
    made_by: str


def walk_places(
    graph: onnx.GraphProto, path: tuple[Step, ...] = ()
) -> Iterator[tuple[str, Place]]:
    """Yield every input and node output of a graph and its bodies, by name."""
    for value in graph.input:
        yield value.name, Place(path, "")
    for node in graph.node:
        for name in node.output:
            if name:
                yield name, Place(path, node.op_type)
        for attribute, body in _list_bodies(node):
            yield from walk_places(body, (*path, Step(graph, node, attribute, body)))


def walk_graph_protos(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield a graph and all its bodies."""
    yield graph
    for node in graph.node:
        for _, body in _list_bodies(node):
            yield from walk_graph_protos(body)


def list_element_types(graph: onnx.GraphProto) -> Iterator[int]:
    """Yield element types that a graph's weights have and its nodes make by their attributes."""
    yield from (tensor.data_type for tensor in graph.initializer)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.name in ("to", "dtype", "output_dtype"):
                yield attribute.i


def is_odd_type(kind: onnx.TypeProto) -> bool:
    """Say whether a type is a tensor that NumPy lacks."""
    return kind.HasField("tensor_type") and kind.tensor_type.elem_type in ODD


def _list_bodies(node: onnx.NodeProto) -> Iterator[tuple[str, onnx.GraphProto]]:
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield attribute.name, attribute.g


UNITED, SEQUENCES, PASSED_ON = 11, 13, 14
"""Opsets from which the branches of an If may differ in rank, from which Loop and If take
sequences, and from which Identity does."""


@dataclass(frozen=True)
class Watch:
    """How a tensor is read off a run."""

    tensor: str
    output: str  # output, or input, that holds it: an array, or a list of arrays
    stacked: int = 0  # leading axes of each array that count turns of a Scan


class Hidden(Exception):
    """A tensor that cannot be made an output; the text says why."""


@dataclass
class _OutboundValue:
    """A value on its way out; `seeds` begin its sequence, none while it is a tensor."""

    name: str
    seeds: tuple[onnx.NodeProto, ...] = ()
    stacked: int = 0


class _Exposer:
    def __init__(self, proto: onnx.ModelProto, shapes: bool) -> None:
        self._graph, self._shapes = proto.graph, shapes
        opset = {entry.domain: entry.version for entry in proto.opset_import}
        self._opset = opset.get("", opset.get("ai.onnx", 0))
        self._places = dict(walk_places(proto.graph))
        graph = proto.graph
        typed = [*graph.value_info, *graph.input, *graph.output]
        self._typed_names = {value.name for value in typed if value.HasField("type")}
        self._odd = {value.name for value in typed if is_odd_type(value.type)}
        self._mixed = bool(self._odd) or any(kind in ODD for kind in list_element_types(graph))
        self._inputs = {value.name for value in proto.graph.input}
        self._shown = {value.name for value in proto.graph.output}
        self._constants = {t.name for g in walk_graph_protos(proto.graph) for t in g.initializer}
        self._names = {*self._places, *self._constants}

    def expose_tensor(self, name: str) -> Watch:
        place = self._places.get(name)
        if name in self._constants or (place and place.made_by == "Constant"):
            raise Hidden("is a constant")
        if place is None:
            raise Hidden("is not in the model")
        if place.path:
            return self._expose_inner(name, place.path)
        if self._shapes:
            return Watch(name, self._add_output(self._add_shape(self._graph, name)))
        if name in self._inputs or name in self._shown:
            return Watch(name, name)
        if name in self._odd or (self._mixed and name not in self._typed_names):
            return Watch(name, self._add_output(self._add_cast(self._graph, name)))
        self._graph.output.add().name = name
        self._shown.add(name)
        return Watch(name, name)

    def _expose_inner(self, name: str, path: tuple[Step, ...]) -> Watch:
        body = path[-1].body
        ways = [self._choose_way(step) for step in reversed(path)]
        # Refuse ways, from the inside out, that cannot be joined.
        for inner, outer in ((a, b) for i, a in enumerate(ways) for b in ways[i + 1 :]):
            if outer == "stack" and inner in ("if", "list"):
                construct = "an If" if inner == "if" else "a Loop"
                raise Hidden(f"is in {construct} inside a Scan, whose turns must be alike")
            if outer == inner == "list" and self._opset < PASSED_ON:
                raise Hidden(f"is in a Loop inside another, at an opset below {PASSED_ON}")
        outbound = self._add_shape(body, name) if self._shapes else self._add_cast(body, name)
        carried = _OutboundValue(outbound)
        for step, way in zip(reversed(path), ways, strict=True):
            if way == "if":
                carried = self._through_if(step, carried)
            elif way == "list":
                carried = self._through_loop(step, carried)
            else:
                carried = self._through_scan(step, carried)
        return Watch(
            name, self._add_output(carried.name, listed=bool(carried.seeds)), carried.stacked
        )

    def _choose_way(self, step: Step) -> str:
        op = step.node.op_type if not step.node.domain else ""
        if op == "Loop":
            return "list" if self._opset >= SEQUENCES else "stack"
        if op in ("If", "Scan"):
            return "if" if op == "If" else "stack"
        raise Hidden(
            f"is in the body of {with_article(step.node.op_type)}, which does not return it"
        )

    def _through_if(self, step: Step, carried: _OutboundValue) -> _OutboundValue:
        seeds = list(carried.seeds)
        for attribute in step.node.attribute:
            if attribute.name not in ("then_branch", "else_branch"):
                continue
            branch_output = carried.name
            if attribute.name != step.attribute:
                branch_output = self._make_name()
                if carried.seeds:
                    seeds.append(
                        _add_node(attribute.g, "SequenceEmpty", [], branch_output, dtype=1)
                    )
                else:
                    self._add_empty(attribute.g, step.node.input[0], branch_output)
            attribute.g.output.append(_make_value_info(branch_output, listed=bool(carried.seeds)))
        out = self._make_name()
        step.node.output.append(out)
        return _OutboundValue(out, tuple(seeds), carried.stacked)

    def _add_empty(self, branch: onnx.GraphProto, condition: str, output: str) -> None:
        """Make a tensor without elements; of no known rank where both branches need the same."""
        empty = onnx.helper.make_tensor("", onnx.TensorProto.FLOAT, [0], [])
        if self._opset >= UNITED:
            _add_node(branch, "Constant", [], output, value=empty)
            return
        number, length, vector, factor, shape, start = (self._make_name() for _ in range(6))
        for name, value in ((factor, 0), (length, 1)):
            whole = onnx.helper.make_tensor("", onnx.TensorProto.INT64, [1], [value])
            _add_node(branch, "Constant", [], name, value=whole)
        _add_node(branch, "Constant", [], start, value=empty)
        _add_node(branch, "Cast", [condition], number, to=onnx.TensorProto.INT64)
        _add_node(branch, "Reshape", [number, length], vector)
        _add_node(branch, "Mul", [vector, factor], shape)  # nothing that folds knows it
        _add_node(branch, "Reshape", [start, shape], output)

    def _through_loop(self, step: Step, carried: _OutboundValue) -> _OutboundValue:
        node, body = step.node, step.body
        count = len(body.input) - 2
        sequence, begin, out = self._make_name(), self._make_name(), self._make_name()
        kept = carried.name
        if carried.seeds:
            for seed in carried.seeds:
                seed.op_type = "Identity"
                seed.input[:] = [sequence]
                del seed.attribute[:]
        else:
            kept = self._make_name()
            _add_node(body, "SequenceInsert", [sequence, carried.name], kept)
        body.input.append(_make_value_info(sequence, listed=True))
        body.output.insert(1 + count, _make_value_info(kept, listed=True))
        node.input.extend([""] * (2 - len(node.input)))
        node.input.append(begin)
        node.output.extend(self._make_name() for _ in range(count - len(node.output)))
        node.output.insert(count, out)
        seed = onnx.helper.make_node("SequenceEmpty", [], [begin], begin, dtype=1)
        step.parent.node.insert(0, seed)
        return _OutboundValue(out, (step.parent.node[0],), carried.stacked)

    def _through_scan(self, step: Step, carried: _OutboundValue) -> _OutboundValue:
        node, out = step.node, self._make_name()
        output_count = len(step.body.output) - (step.node.op_type == "Loop")
        node.output.extend(self._make_name() for _ in range(output_count - len(node.output)))
        node.output.append(out)
        step.body.output.append(_make_value_info(carried.name, listed=False))
        for attribute in node.attribute:
            if attribute.name in ("scan_output_axes", "scan_output_directions"):
                attribute.ints.append(0)
        return _OutboundValue(out, (), carried.stacked + 1)

    def _add_output(self, name: str, *, listed: bool = False) -> str:
        self._graph.output.append(_make_value_info(name, listed=listed))
        return name

    def _add_cast(self, graph: onnx.GraphProto, name: str) -> str:
        out = self._make_name()
        _add_node(graph, "Cast", [name], out, to=onnx.TensorProto.FLOAT)
        return out

    def _add_shape(self, graph: onnx.GraphProto, name: str) -> str:
        out = self._make_name()
        _add_node(graph, "Shape", [name], out)
        return self._add_cast(graph, out)

    def _make_name(self) -> str:
        number = len(self._names)
        while (name := f"watched_{number}") in self._names:
            number += 1
        self._names.add(name)
        return name


def _make_value_info(name: str, *, listed: bool) -> onnx.ValueInfoProto:
    """Return float32 of any shape, or a sequence of such tensors."""
    info = onnx.ValueInfoProto(name=name)
    kind = info.type.sequence_type.elem_type if listed else info.type
    kind.tensor_type.elem_type = onnx.TensorProto.FLOAT
    return info


def _add_node(
    graph: onnx.GraphProto, op: str, inputs: Sequence[str], output: str, **attributes: Any
) -> onnx.NodeProto:
    graph.node.append(onnx.helper.make_node(op, inputs, [output], output, **attributes))
    node: onnx.NodeProto = graph.node[-1]
    return node


MANY = 1_900_000_000
"""Bytes of weights from which those in bodies and attributes go beside the model too."""


@dataclass
class ModelProbe:
    """A model without its weights, in a folder that has them."""

    folder: Path  # of the files; it goes when the context ends
    proto: onnx.ModelProto  # the model; its weights refer to files of the folder
    # Bytes of weights that had to be copied; the others are the source's own files.
    written: int = 0
    _count: int = field(default=0, repr=False)

    def write_probe(
        self, tensors: Sequence[str], *, shapes: bool = False
    ) -> tuple[Path, dict[str, Watch], dict[str, str]]:
        """Write a model that gives out tensors too; functions are not looked into.

        Args:
            shapes: Give out each one's shape, as float32, in the tensor's place.

        Returns:
            The file, how each tensor is read, and for the others why not.
        """
        proto = onnx.ModelProto()
        proto.CopyFrom(self.proto)
        exposer = _Exposer(proto, shapes)
        watches: dict[str, Watch] = {}
        hidden: dict[str, str] = {}
        for name in dict.fromkeys(tensors):
            try:
                watches[name] = exposer.expose_tensor(name)
            except Hidden as reason:
                hidden[name] = str(reason)
        self._count += 1
        path = self.folder / f"watched-{self._count}.onnx"
        path.write_bytes(proto.SerializeToString())
        return path, watches, hidden


@contextlib.contextmanager
def open_probe(model: ir.Model, folder: Path) -> Iterator[ModelProbe]:
    """Prepare a model for watching; it is unchanged afterwards.

    Weights that still are what a file holds are read from that file, by a hard link to it. Where
    none can be made (another file system) and for weights that a step changed, one copy is
    written.

    Args:
        folder: A folder is made in it for as long as the context lasts.

    Raises:
        OrtuneError: The folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (
            tempfile.TemporaryDirectory(prefix="watched-", dir=folder) as name,
            write.detach_weights(
                model, everywhere=write.count_tensor_bytes(model) > MANY
            ) as tensors,
        ):
            proto = ir.serde.serialize_model(model)
            proto.ir_version = max(4, min(proto.ir_version, NEWEST_IR))
            probe = ModelProbe(Path(name), proto)
            places = _link_weights(tensors, model, probe.folder)
            unlinked = [i for i in range(len(tensors)) if i not in places]
            if unlinked:
                offsets = write.stream_tensors(
                    [tensors[i] for i in unlinked], probe.folder / "weights"
                )
                probe.written = sum(tensors[i].nbytes for i in unlinked)
                places |= {i: ("weights", at) for i, at in zip(unlinked, offsets, strict=True)}
            write.resolve_placeholders(proto, places)
            yield probe
    except OSError as error:
        raise OrtuneError(
            f"cannot write below {folder}: {error.strerror or error}",
            fix="free some space there, or choose another folder",
        ) from error


def _link_weights(
    tensors: Sequence[ir.TensorProtocol], model: ir.Model, folder: Path
) -> dict[int, tuple[str, int]]:
    """Return tensor -> file of `folder` and offset, for all that lie in the source's files."""
    maps: Sequence[tuple[Path, mmap.mmap]] = model.graph.meta.get(external.MAPS, ())
    spans = [(f, _find_address(np.frombuffer(data, np.uint8)), len(data)) for f, data in maps]
    links: dict[Path, str | None] = {}
    places = {}
    for index, tensor in enumerate(tensors):
        raw: Any = getattr(tensor, "raw", None)
        if not isinstance(raw, np.ndarray) or not raw.flags.c_contiguous:
            continue
        at = _find_address(raw)
        for file, start, length in spans:
            if start <= at and at + raw.nbytes <= start + length and raw.nbytes == tensor.nbytes:
                if file not in links:
                    links[file] = _link_file(file, folder / f"source-{len(links)}")
                if (name := links[file]) is not None:
                    places[index] = name, at - start
                break
    return places


def _link_file(file: Path, to: Path) -> str | None:
    try:
        os.link(file.resolve(), to)  # a link to a symbolic one would lead out of the folder
    except OSError:
        return None
    return to.name


def _find_address(array: NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])
