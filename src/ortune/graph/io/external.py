"""External data: which files a model refers to, and its weights as views of them."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath

import numpy as np
import onnx
import onnx_ir as ir

from ortune.core.errors import BadModel
from ortune.graph.io.protobuf import HELD
from ortune.graph.ir.edit import every_graph

MAPS = "ortune.maps"
"""Key in the main graph's `meta` of (file, its mapping): where the weights were found."""

_AGAIN = "copy or download it again"


def files(path: Path, proto: onnx.ModelProto) -> dict[str, Path]:
    """Return location -> file of all a model consists of; the model's own file is first.

    Raises:
        BadModel: A file is missing, or outside the folder of the model.
    """
    found = {location(tensor) for tensor in tensors(proto)}
    places = sorted(place for place in found if place is not None and place != HELD)
    return {HELD: path} | {place: _inside(path, place) for place in places}


def tensors(proto: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Yield every tensor of a model: initializers and attributes, in all graphs and functions."""
    yield from _protos(proto.graph)
    for function in proto.functions:
        for node in function.node:
            yield from _in_node(node)


def location(tensor: onnx.TensorProto) -> str | None:
    """Return where the tensor's external data lies, or None when it has none."""
    if tensor.data_location != onnx.TensorProto.EXTERNAL:
        return None
    return next((e.value for e in tensor.external_data if e.key == "location"), "")


def attach(model: ir.Model, found: Mapping[str, Path]) -> None:
    """Replace every tensor that lies in a file by a view of the mapped file.

    One mapping serves all tensors of a file; nothing is read. What is smaller than a byte an
    element is viewed packed.

    Raises:
        BadModel: A file is shorter than its tensors say, or a tensor's length is not what its
            shape and type make.
    """
    maps: dict[str, mmap.mmap] = {}

    def view(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
        if not isinstance(tensor, ir.ExternalTensor):
            return tensor
        place = str(tensor.location)
        if place not in maps and tensor.nbytes:
            with found[place].open("rb") as stream:
                if found[place].stat().st_size:
                    maps[place] = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        return _view(tensor, maps.get(place), found[place])

    replace_tensors(model, view)
    model.graph.meta[MAPS] = tuple((found[place], data) for place, data in maps.items())


def replace_tensors(
    model: ir.Model, change: Callable[[ir.TensorProtocol], ir.TensorProtocol]
) -> None:
    """Put `change(tensor)` in the place of every initializer and attribute, in all graphs."""
    for graph in every_graph(model):
        if isinstance(graph, ir.Graph):
            for value in graph.initializers.values():
                if value.const_value is not None:
                    value.const_value = change(value.const_value)
        for node in graph:
            for name, attribute in list(node.attributes.items()):
                new = _changed(attribute, change)
                if new is not attribute:
                    node.attributes[name] = new


def _changed(
    attribute: ir.Attr, change: Callable[[ir.TensorProtocol], ir.TensorProtocol]
) -> ir.Attr:
    if attribute.is_ref() or attribute.type not in _TENSORS:
        return attribute
    old = [attribute.value] if attribute.type == ir.AttributeType.TENSOR else attribute.value
    new = [change(tensor) for tensor in old]
    if all(one is two for one, two in zip(old, new, strict=True)):
        return attribute
    value = new[0] if attribute.type == ir.AttributeType.TENSOR else new
    return ir.Attr(attribute.name, attribute.type, value, doc_string=attribute.doc_string)


_TENSORS = (ir.AttributeType.TENSOR, ir.AttributeType.TENSORS)


def _view(tensor: ir.ExternalTensor, data: mmap.mmap | None, file: Path) -> ir.TensorProtocol:
    start, wanted = tensor.offset or 0, tensor.nbytes
    held = wanted if tensor.length is None else tensor.length
    if held != wanted:
        raise BadModel(
            f"tensor '{tensor.name}' has {held} bytes in {file} where its shape "
            f"{list(tensor.shape)} of {tensor.dtype.name} makes {wanted}",
            fix="export the model again",
        )
    if start < 0 or start + wanted > (len(data) if data is not None else 0):
        raise BadModel(
            f"{file} is cut off: tensor '{tensor.name}' ends at byte {start + wanted}, "
            f"the file at {len(data) if data is not None else 0}",
            fix=_AGAIN,
        )
    props = dict(tensor.metadata_props) or None
    if tensor.dtype.bitwidth < 8:
        packed = np.frombuffer(data or b"", np.uint8, wanted, start if data else 0)
        return ir.PackedTensor(
            packed,
            tensor.dtype,
            shape=tensor.shape,
            name=tensor.name,
            doc_string=tensor.doc_string,
            metadata_props=props,
        )
    kind = np.dtype(tensor.dtype.numpy()).newbyteorder("<")
    flat = np.frombuffer(data or b"", kind, tensor.size, start if data else 0)
    return ir.Tensor(
        flat.reshape(tensor.shape.numpy()),
        tensor.dtype,
        name=tensor.name,
        doc_string=tensor.doc_string,
        metadata_props=props,
    )


def _protos(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    for node in graph.node:
        yield from _in_node(node)


def _in_node(node: onnx.NodeProto) -> Iterator[onnx.TensorProto]:
    for attribute in node.attribute:
        if attribute.HasField("t"):
            yield attribute.t
        yield from attribute.tensors
        if attribute.HasField("g"):
            yield from _protos(attribute.g)
        for graph in attribute.graphs:
            yield from _protos(graph)


def _inside(path: Path, place: str) -> Path:
    """Containment is judged after links are followed; caches that link whole models still work."""
    fix = "put the data beside the model and name it so in the model"
    names = (PurePosixPath(place), PureWindowsPath(place))
    climbs = any(name.is_absolute() or name.drive or ".." in name.parts for name in names)
    file = path.parent / place
    homes = (path.parent.resolve(), path.resolve().parent)
    if not place or climbs or not any(file.resolve().is_relative_to(home) for home in homes):
        raise BadModel(f"{path} refers to data outside its folder: '{place}'", fix=fix)
    if not file.is_file():
        raise BadModel(
            f"the external data of {path} is missing: '{place}'", fix="copy it beside the model"
        )
    return file
