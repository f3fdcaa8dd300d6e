"""Model files that differ in their outputs alone, over one set of weights."""

from __future__ import annotations

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
from ortune.graph.io import external
from ortune.graph.io.write import NEWEST_IR, held, point, stream, weight_bytes

ODD = frozenset(range(onnx.TensorProto.BFLOAT16, max(onnx.TensorProto.DataType.values()) + 1))
"""Element types that NumPy lacks: bfloat16 and all that came after it."""


@dataclass(frozen=True)
class Step:
    """A body on the way to a value.

    Attributes:
        parent: The graph that holds the node.
        node: The node that holds the body.
    """

    parent: onnx.GraphProto
    node: onnx.NodeProto
    attribute: str
    body: onnx.GraphProto


@dataclass(frozen=True)
class Place:
    """Where a value is made.

    Attributes:
        path: Bodies from the outermost in; none for the main graph.
        made_by: Operator; empty for inputs.
    """

    path: tuple[Step, ...]
    made_by: str


def places(graph: onnx.GraphProto, path: tuple[Step, ...] = ()) -> Iterator[tuple[str, Place]]:
    """Yield every input and node output of a graph and its bodies, by name."""
    for value in graph.input:
        yield value.name, Place(path, "")
    for node in graph.node:
        for name in node.output:
            if name:
                yield name, Place(path, node.op_type)
        for attribute, body in _bodies(node):
            yield from places(body, (*path, Step(graph, node, attribute, body)))


def graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield a graph and all its bodies."""
    yield graph
    for node in graph.node:
        for _, body in _bodies(node):
            yield from graphs(body)


def kinds(graph: onnx.GraphProto) -> Iterator[int]:
    """Yield element types that a graph's weights have and its nodes make by their attributes."""
    yield from (tensor.data_type for tensor in graph.initializer)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.name in ("to", "dtype", "output_dtype"):
                yield attribute.i


def odd(kind: onnx.TypeProto) -> bool:
    """Say whether a type is a tensor that NumPy lacks."""
    return kind.HasField("tensor_type") and kind.tensor_type.elem_type in ODD


def _bodies(node: onnx.NodeProto) -> Iterator[tuple[str, onnx.GraphProto]]:
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield attribute.name, attribute.g


SEQUENCES, PASSED_ON = 13, 14
"""Opsets from which Loop and If take sequences, and Identity does."""


@dataclass(frozen=True)
class Watch:
    """How a tensor is read off a run.

    Attributes:
        output: Output, or input, that holds it: an array, or a list of arrays.
        stacked: Leading axes of each array that count turns of a Scan.
    """

    tensor: str
    output: str
    stacked: int = 0


class Hidden(Exception):
    """A tensor that cannot be made an output; the text says why."""


def expose(
    proto: onnx.ModelProto, tensors: Sequence[str], *, shapes: bool = False
) -> tuple[dict[str, Watch], dict[str, str]]:
    """Make tensors outputs of the model, in place.

    Args:
        proto: Its functions are not looked into.
        shapes: Give out each one's shape, as float32, in the tensor's place.

    Returns:
        How each is read; and for the others why not.
    """
    exposer = _Exposer(proto, shapes)
    found: dict[str, Watch] = {}
    hidden: dict[str, str] = {}
    for name in dict.fromkeys(tensors):
        try:
            found[name] = exposer.expose(name)
        except Hidden as reason:
            hidden[name] = str(reason)
    return found, hidden


@dataclass
class _Carried:
    """A value on its way out.

    Attributes:
        seeds: The nodes that begin its sequence; empty while it is a tensor.
    """

    name: str
    seeds: tuple[onnx.NodeProto, ...] = ()
    stacked: int = 0


class _Exposer:
    def __init__(self, proto: onnx.ModelProto, shapes: bool) -> None:
        self._graph, self._shapes = proto.graph, shapes
        opset = {entry.domain: entry.version for entry in proto.opset_import}
        self._opset = opset.get("", opset.get("ai.onnx", 0))
        self._places = dict(places(proto.graph))
        graph = proto.graph
        typed = [*graph.value_info, *graph.input, *graph.output]
        self._known = {value.name for value in typed if value.HasField("type")}
        self._odd = {value.name for value in typed if odd(value.type)}
        self._mixed = bool(self._odd) or any(kind in ODD for kind in kinds(graph))
        self._inputs = {value.name for value in proto.graph.input}
        self._shown = {value.name for value in proto.graph.output}
        self._constants = {
            tensor.name for graph in graphs(proto.graph) for tensor in graph.initializer
        }
        self._taken = {*self._places, *self._constants}

    def expose(self, name: str) -> Watch:
        place = self._places.get(name)
        if name in self._constants or (place and place.made_by == "Constant"):
            raise Hidden("is a constant")
        if place is None:
            raise Hidden("is not in the model")
        if place.path:
            return self._inner(name, place.path)
        if self._shapes:
            return Watch(name, self._show(self._shape(self._graph, name)))
        if name in self._inputs or name in self._shown:
            return Watch(name, name)
        if name in self._odd or (self._mixed and name not in self._known):
            return Watch(name, self._show(self._float(self._graph, name)))
        self._graph.output.add().name = name
        self._shown.add(name)
        return Watch(name, name)

    def _inner(self, name: str, path: tuple[Step, ...]) -> Watch:
        body = path[-1].body
        ways = [self._ways(step) for step in reversed(path)]
        # Refuse ways, from the inside out, that cannot be joined.
        for inner, outer in ((a, b) for i, a in enumerate(ways) for b in ways[i + 1 :]):
            if outer == "stack" and inner in ("if", "list"):
                what = "an If" if inner == "if" else "a Loop"
                raise Hidden(f"is in {what} inside a Scan, whose turns must be alike")
            if outer == inner == "list" and self._opset < PASSED_ON:
                raise Hidden(f"is in a Loop inside another, at an opset below {PASSED_ON}")
        carried = _Carried(self._shape(body, name) if self._shapes else self._float(body, name))
        for step, way in zip(reversed(path), ways, strict=True):
            if way == "if":
                carried = self._through_if(step, carried)
            elif way == "list":
                carried = self._through_loop(step, carried)
            else:
                carried = self._stacking(step, carried)
        return Watch(name, self._show(carried.name, listed=bool(carried.seeds)), carried.stacked)

    def _ways(self, step: Step) -> str:
        op = step.node.op_type if not step.node.domain else ""
        if op == "Loop":
            return "list" if self._opset >= SEQUENCES else "stack"
        if op in ("If", "Scan"):
            return "if" if op == "If" else "stack"
        raise Hidden(
            f"is in the body of {with_article(step.node.op_type)}, which does not return it"
        )

    def _through_if(self, step: Step, carried: _Carried) -> _Carried:
        seeds = list(carried.seeds)
        for attribute in step.node.attribute:
            if attribute.name not in ("then_branch", "else_branch"):
                continue
            given = carried.name
            if attribute.name != step.attribute:
                given = self._fresh()
                if carried.seeds:
                    seeds.append(_add(attribute.g, "SequenceEmpty", [], given, dtype=1))
                else:
                    empty = onnx.helper.make_tensor("", onnx.TensorProto.FLOAT, [0], [])
                    _add(attribute.g, "Constant", [], given, value=empty)
            attribute.g.output.append(_info(given, listed=bool(carried.seeds)))
        out = self._fresh()
        step.node.output.append(out)
        return _Carried(out, tuple(seeds), carried.stacked)

    def _through_loop(self, step: Step, carried: _Carried) -> _Carried:
        node, body = step.node, step.body
        count = len(body.input) - 2
        held, begin, out = self._fresh(), self._fresh(), self._fresh()
        kept = carried.name
        if carried.seeds:
            for seed in carried.seeds:
                seed.op_type = "Identity"
                seed.input[:] = [held]
                del seed.attribute[:]
        else:
            kept = self._fresh()
            _add(body, "SequenceInsert", [held, carried.name], kept)
        body.input.append(_info(held, listed=True))
        body.output.insert(1 + count, _info(kept, listed=True))
        node.input.extend([""] * (2 - len(node.input)))
        node.input.append(begin)
        node.output.extend(self._fresh() for _ in range(count - len(node.output)))
        node.output.insert(count, out)
        seed = onnx.helper.make_node("SequenceEmpty", [], [begin], begin, dtype=1)
        step.parent.node.insert(0, seed)
        return _Carried(out, (step.parent.node[0],), carried.stacked)

    def _stacking(self, step: Step, carried: _Carried) -> _Carried:
        node, out = step.node, self._fresh()
        given = len(step.body.output) - (step.node.op_type == "Loop")
        node.output.extend(self._fresh() for _ in range(given - len(node.output)))
        node.output.append(out)
        step.body.output.append(_info(carried.name, listed=False))
        for attribute in node.attribute:
            if attribute.name in ("scan_output_axes", "scan_output_directions"):
                attribute.ints.append(0)
        return _Carried(out, (), carried.stacked + 1)

    def _show(self, name: str, *, listed: bool = False) -> str:
        self._graph.output.append(_info(name, listed=listed))
        return name

    def _float(self, graph: onnx.GraphProto, name: str) -> str:
        out = self._fresh()
        _add(graph, "Cast", [name], out, to=onnx.TensorProto.FLOAT)
        return out

    def _shape(self, graph: onnx.GraphProto, name: str) -> str:
        out = self._fresh()
        _add(graph, "Shape", [name], out)
        return self._float(graph, out)

    def _fresh(self) -> str:
        number = len(self._taken)
        while (name := f"watched_{number}") in self._taken:
            number += 1
        self._taken.add(name)
        return name


def _info(name: str, *, listed: bool) -> onnx.ValueInfoProto:
    """Return float32 of any shape, or a sequence of such tensors."""
    made = onnx.ValueInfoProto(name=name)
    kind = made.type.sequence_type.elem_type if listed else made.type
    kind.tensor_type.elem_type = onnx.TensorProto.FLOAT
    return made


def _add(
    graph: onnx.GraphProto, op: str, inputs: Sequence[str], output: str, **attributes: Any
) -> onnx.NodeProto:
    graph.node.append(onnx.helper.make_node(op, inputs, [output], output, **attributes))
    made: onnx.NodeProto = graph.node[-1]
    return made


MANY = 1_900_000_000
"""Bytes of weights from which those in bodies and attributes go beside the model too."""


@dataclass
class Watched:
    """A model without its weights, in a folder that has them.

    Attributes:
        folder: Of the files; it goes when the context ends.
        proto: The model; its weights refer to files of the folder.
        written: Bytes of weights that had to be copied; the others are the source's own files.
    """

    folder: Path
    proto: onnx.ModelProto
    written: int = 0
    _count: int = field(default=0, repr=False)

    def showing(
        self, tensors: Sequence[str], *, shapes: bool = False
    ) -> tuple[Path, dict[str, Watch], dict[str, str]]:
        """Write a model that gives out the tensors too; see `expose`."""
        proto = onnx.ModelProto()
        proto.CopyFrom(self.proto)
        found, hidden = expose(proto, tensors, shapes=shapes)
        self._count += 1
        path = self.folder / f"watched-{self._count}.onnx"
        path.write_bytes(proto.SerializeToString())
        return path, found, hidden


@contextlib.contextmanager
def watched(model: ir.Model, folder: Path) -> Iterator[Watched]:
    """Prepare a model for watching; it is unchanged afterwards.

    Weights that still are what a file holds are read from that file, by a hard link to it. Where
    none can be made (another file system) and for weights that a step changed, one copy is
    written.

    Args:
        model: Loaded by `ortune.graph.io.file.load`, or made otherwise.
        folder: A folder is made in it for as long as the context lasts.

    Raises:
        OrtuneError: The folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (
            tempfile.TemporaryDirectory(prefix="watched-", dir=folder) as name,
            held(model, everywhere=weight_bytes(model) > MANY) as tensors,
        ):
            proto = ir.serde.serialize_model(model)
            proto.ir_version = max(4, min(proto.ir_version, NEWEST_IR))
            made = Watched(Path(name), proto)
            places = _linked(tensors, model, made.folder)
            left = [i for i in range(len(tensors)) if i not in places]
            if left:
                offsets = stream([tensors[i] for i in left], made.folder / "weights")
                made.written = sum(tensors[i].nbytes for i in left)
                places |= {i: ("weights", at) for i, at in zip(left, offsets, strict=True)}
            point(proto, places)
            yield made
    except OSError as error:
        raise OrtuneError(
            f"cannot write below {folder}: {error.strerror or error}",
            fix="free some space there, or choose another folder",
        ) from error


def _linked(
    tensors: Sequence[ir.TensorProtocol], model: ir.Model, folder: Path
) -> dict[int, tuple[str, int]]:
    """Return tensor -> file of `folder` and offset, for all that lie in the source's files."""
    maps: Sequence[tuple[Path, mmap.mmap]] = model.graph.meta.get(external.MAPS, ())
    spans = [(file, _address(np.frombuffer(data, np.uint8)), len(data)) for file, data in maps]
    links: dict[Path, str | None] = {}
    found = {}
    for index, tensor in enumerate(tensors):
        raw: Any = getattr(tensor, "raw", None)
        if not isinstance(raw, np.ndarray) or not raw.flags.c_contiguous:
            continue
        at = _address(raw)
        for file, start, length in spans:
            if start <= at and at + raw.nbytes <= start + length and raw.nbytes == tensor.nbytes:
                if file not in links:
                    links[file] = _link(file, folder / f"source-{len(links)}")
                if (name := links[file]) is not None:
                    found[index] = name, at - start
                break
    return found


def _link(file: Path, to: Path) -> str | None:
    try:
        os.link(file.resolve(), to)  # a link to a symbolic one would lead out of the folder
    except OSError:
        return None
    return to.name


def _address(array: NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])
