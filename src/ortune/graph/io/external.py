"""External data: which files a model refers to, and its weights as views of them."""

import mmap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from ortune.core.errors import BadModel
from ortune.core.hardware.memory import map_file
from ortune.graph.io.protobuf import HELD, read_location
from ortune.graph.ir.edit import walk_graphs

MAPS = "ortune.maps"
"""Key in the main graph's `meta` of (file, its mapping): where the weights were found."""

_AGAIN = "copy or download it again"


def list_files(path: Path, proto: onnx.ModelProto) -> dict[str, Path]:
    """Return location -> file of all a model consists of; the model's own file is first.

    Raises:
        BadModel: A file is missing, or outside the folder of the model.
    """
    locations = {read_location(tensor) for tensor in walk_tensors(proto)}
    places = sorted(place for place in locations if place is not None and place != HELD)
    return {HELD: path} | {place: _resolve_location(path, place) for place in places}


def walk_tensors(proto: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Yield every tensor of a model: initializers and attributes, in all graphs and functions."""
    yield from _walk_graph_tensors(proto.graph)
    for function in proto.functions:
        for node in function.node:
            yield from _walk_node_tensors(node)


def map_weights(model: ir.Model, files: Mapping[str, Path]) -> None:
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
        if place not in maps and tensor.nbytes and files[place].stat().st_size:
            maps[place] = map_file(files[place])
        return _view_tensor(tensor, maps.get(place), files[place])

    replace_tensors(model, view)
    model.graph.meta[MAPS] = tuple((files[place], data) for place, data in maps.items())


def replace_tensors(
    model: ir.Model, change: Callable[[ir.TensorProtocol], ir.TensorProtocol]
) -> None:
    """Put `change(tensor)` in the place of every initializer and attribute, in all graphs."""
    for graph in walk_graphs(model):
        if isinstance(graph, ir.Graph):
            for value in graph.initializers.values():
                if value.const_value is not None:
                    value.const_value = change(value.const_value)
        for node in graph:
            for name, attribute in list(node.attributes.items()):
                if attribute.is_ref() or attribute.type not in _TENSORS:
                    continue
                single = attribute.type == ir.AttributeType.TENSOR
                old = [attribute.value] if single else attribute.value
                new = [change(tensor) for tensor in old]
                if any(before is not after for before, after in zip(old, new, strict=True)):
                    tensors, doc = new[0] if single else new, attribute.doc_string
                    node.attributes[name] = ir.Attr(name, attribute.type, tensors, doc_string=doc)


_TENSORS = (ir.AttributeType.TENSOR, ir.AttributeType.TENSORS)


def _view_tensor(
    tensor: ir.ExternalTensor, data: mmap.mmap | None, file: Path
) -> ir.TensorProtocol:
    start, expected = tensor.offset or 0, tensor.nbytes
    stored = expected if tensor.length is None else tensor.length
    if stored != expected:
        raise BadModel(
            f"tensor '{tensor.name}' has {stored} bytes in {file} where its shape "
            f"{list(tensor.shape)} of {tensor.dtype.name} makes {expected}",
            fix="export the model again",
        )
    if start < 0 or start + expected > (len(data) if data is not None else 0):
        raise BadModel(
            f"{file} is cut off: tensor '{tensor.name}' ends at byte {start + expected}, "
            f"the file at {len(data) if data is not None else 0}",
            fix=_AGAIN,
        )
    kept: dict[str, Any] = {"name": tensor.name, "doc_string": tensor.doc_string}
    kept["metadata_props"] = dict(tensor.metadata_props) or None
    if tensor.dtype.bitwidth < 8:
        packed = np.frombuffer(data or b"", np.uint8, expected, start if data else 0)
        return ir.PackedTensor(packed, tensor.dtype, shape=tensor.shape, **kept)
    kind = np.dtype(tensor.dtype.numpy()).newbyteorder("<")
    flat = np.frombuffer(data or b"", kind, tensor.size, start if data else 0)
    return ir.Tensor(flat.reshape(tensor.shape.numpy()), tensor.dtype, **kept)


def _walk_graph_tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    for node in graph.node:
        yield from _walk_node_tensors(node)


def _walk_node_tensors(node: onnx.NodeProto) -> Iterator[onnx.TensorProto]:
    for attribute in node.attribute:
        if attribute.HasField("t"):
            yield attribute.t
        yield from attribute.tensors
        if attribute.HasField("g"):
            yield from _walk_graph_tensors(attribute.g)
        for graph in attribute.graphs:
            yield from _walk_graph_tensors(graph)


def _resolve_location(path: Path, place: str) -> Path:
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
