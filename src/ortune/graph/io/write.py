"""Write a model without a second copy of its weights: they are streamed."""

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

import onnx
import onnx_ir as ir

from ortune.core.atomic_write import open_draft, report_write_errors
from ortune.core.errors import OrtuneError
from ortune.core.facts import NEWEST_IR
from ortune.core.hardware import memory
from ortune.graph.io import external
from ortune.graph.io.protobuf import (
    HELD,
    SMALL,
    encode_delimited,
    encode_tag,
    encode_varint,
    read_location,
)

SOURCES = "ortune.sources"
"""Key in the main graph's `meta` of the files the model was loaded from."""

_PAGE = 4096


def write_model(model: ir.Model, path: Path, external_above: int, *, durable: bool = True) -> Path:
    """See `ortune.graph.io.file.save`."""
    data = path.with_name(f"{path.name}.data")
    outside = count_tensor_bytes(model) > external_above
    sources = {Path(source).resolve() for source in model.graph.meta.get(SOURCES, ())}
    for target in (path, data) if outside else (path,):
        if target.resolve() in sources:
            raise OrtuneError(
                f"{target} is the model that was read", fix="give another output path"
            )
    # The data file takes its place first: a model in its place is whole.
    with (
        open_draft(path, durable=durable) as part,
        open_draft(data, durable=durable) if outside else contextlib.nullcontext() as beside,
        report_write_errors(path),
    ):
        with detach_weights(model, everywhere=outside) as tensors:
            places = None if beside is None else stream_tensors(tensors, beside)
            proto = ir.serde.serialize_model(model)
        proto.ir_version = max(4, min(proto.ir_version, NEWEST_IR))
        with part.open("wb") as out:
            if places is None:
                _write_inside(proto, tensors, out)
            else:
                resolve_placeholders(proto, {i: (data.name, at) for i, at in enumerate(places)})
                out.write(proto.SerializeToString())
    memory.release_maps()
    return path


def count_tensor_bytes(model: ir.Model) -> int:
    """Return the bytes of all initializers and of all tensors in attributes."""
    total = 0

    def count(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
        nonlocal total
        total += tensor.nbytes
        return tensor

    external.replace_tensors(model, count)
    return total


@contextlib.contextmanager
def detach_weights(model: ir.Model, *, everywhere: bool) -> Iterator[list[ir.TensorProtocol]]:
    """Put place-holders where large weights are, `everywhere` or in the main initializers."""
    tensors: list[ir.TensorProtocol] = []

    def hold(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
        if tensor.nbytes <= SMALL or tensor.dtype == ir.DataType.STRING:
            return tensor
        tensors.append(tensor)
        return ir.ExternalTensor(
            HELD,
            len(tensors) - 1,
            tensor.nbytes,
            tensor.dtype,
            shape=ir.Shape(tensor.shape.numpy()),
            name=tensor.name or "",
            doc_string=tensor.doc_string,
            metadata_props=dict(tensor.metadata_props),
        )

    def release(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
        if isinstance(tensor, ir.ExternalTensor) and tensor.location == HELD:
            return tensors[tensor.offset or 0]
        return tensor

    try:
        if everywhere:
            external.replace_tensors(model, hold)
        else:
            for value in model.graph.initializers.values():
                if value.const_value is not None:
                    value.const_value = hold(value.const_value)
        yield tensors
    finally:
        external.replace_tensors(model, release)


def stream_tensors(tensors: Sequence[ir.TensorProtocol], path: Path) -> list[int]:
    """Write the tensors one after the other, large ones on page borders; return the offsets."""
    offsets = []
    with path.open("wb") as out:
        for tensor in tensors:
            border = _PAGE if tensor.nbytes >= 16 * _PAGE else 64
            out.seek(-out.tell() % border, os.SEEK_CUR)
            offsets.append(out.tell())
            _copy_tensor(tensor, out)
    return offsets


def _copy_tensor(tensor: ir.TensorProtocol, out: IO[bytes]) -> None:
    start = out.tell()
    to_file = getattr(tensor, "tofile", None)  # not part of the protocol; saves a copy
    if to_file is not None:
        to_file(out)
    else:
        out.write(tensor.tobytes())
    if out.tell() - start != tensor.nbytes:
        raise OSError(f"tensor '{tensor.name}' took {out.tell() - start} bytes")


def resolve_placeholders(proto: onnx.ModelProto, places: Mapping[int, tuple[str, int]]) -> None:
    """Turn place-holders into references: number -> name of the data file, offset in it."""
    for tensor in external.walk_tensors(proto):
        if read_location(tensor) != HELD:
            continue
        entries = {entry.key: entry for entry in tensor.external_data}
        name, offset = places[int(entries["offset"].value)]
        entries["location"].value, entries["offset"].value = name, str(offset)


def _write_inside(
    proto: onnx.ModelProto, tensors: list[ir.TensorProtocol], out: IO[bytes]
) -> None:
    """Write one file, the held initializers directly from where they lie.

    protobuf allows fields in any order: the initializers go last in the graph. The model's own
    fields keep their order, as OpenVINO takes a file for another format if a field comes twice
    among the first three (the opsets of two domains).
    """
    heads: list[tuple[bytes, ir.TensorProtocol | None]] = []
    for tensor in proto.graph.initializer:
        if read_location(tensor) != HELD:
            heads.append((encode_delimited(_INITIALIZER, tensor.SerializeToString()), None))
            continue
        index = next(int(e.value) for e in tensor.external_data if e.key == "offset")
        tensor.ClearField("external_data")
        tensor.ClearField("data_location")
        length = tensors[index].nbytes
        head = tensor.SerializeToString() + encode_tag(_RAW_DATA) + encode_varint(length)
        head = encode_tag(_INITIALIZER) + encode_varint(len(head) + length) + head
        heads.append((head, tensors[index]))
    del proto.graph.initializer[:]
    graph = proto.graph.SerializeToString()
    proto.ClearField("graph")
    first = onnx.ModelProto()
    for name in _BEFORE_GRAPH:
        if proto.HasField(name):
            setattr(first, name, getattr(proto, name))
            proto.ClearField(name)
    total = len(graph) + sum(len(h) + (weight.nbytes if weight else 0) for h, weight in heads)
    out.write(first.SerializeToString() + encode_tag(_GRAPH) + encode_varint(total) + graph)
    for head, weight in heads:
        out.write(head)
        if weight is not None:
            _copy_tensor(weight, out)
    out.write(proto.SerializeToString())


# Field numbers of onnx.proto: ModelProto.graph, GraphProto.initializer, TensorProto.raw_data.
_GRAPH, _INITIALIZER, _RAW_DATA = 7, 5, 9
_BEFORE_GRAPH = (
    "ir_version",
    "producer_name",
    "producer_version",
    "domain",
    "model_version",
    "doc_string",
)


def serialize_without_weights(model: ir.Model) -> onnx.ModelProto:
    """Serialize a model with its large initializers turned into inputs of the same type.

    They come after the real inputs. What infers shapes or types from it sees the same graph; what
    computes with the values of large weights does not.
    """
    with detach_weights(model, everywhere=False):
        proto = ir.serde.serialize_model(model)
    proto.ir_version = max(4, proto.ir_version)
    graph = proto.graph
    input_names = {value.name for value in graph.input}
    moved = [t for t in graph.initializer if read_location(t) == HELD]
    names = {tensor.name for tensor in moved}
    graph.input.extend(
        onnx.helper.make_tensor_value_info(t.name, t.data_type, list(t.dims))
        for t in moved
        if t.name not in input_names
    )
    for field in (graph.initializer, graph.value_info):
        for index in reversed(range(len(field))):
            if field[index].name in names:
                del field[index]
    return proto
