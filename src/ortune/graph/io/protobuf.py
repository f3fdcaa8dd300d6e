"""Take the weights out of an ONNX file by walking its protobuf tags, without reading them.

The format is protobuf's wire encoding: a message is a run of fields, each a tag varint (field
number << 3 | wire type) and a payload. Field numbers are those of onnx.proto.
"""

from __future__ import annotations

import hashlib
import mmap
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from ortune.core.errors import BadModel

if TYPE_CHECKING:
    import onnx


HELD = "<in the model file>"
"""`location` of a tensor whose bytes lie in the model file itself."""

SMALL = 1024
"""Bytes up to which a tensor stays where it is: moving it would cost more than it saves."""


Bytes: TypeAlias = bytes | mmap.mmap


class Malformed(Exception):
    """The bytes are no protobuf message of the kind expected; the text says where."""


class Truncated(Malformed):
    """A field goes on beyond the end of the file."""


class TooMany(Malformed):
    """The file has more parts than a model has; the text says which."""


MOST = 250_000
"""Nodes, weights or declared values that are read of a file. The largest models that people run
have a tenth of it; each costs kilobytes once read, where twenty bytes of a file can say one."""

_MOST_FIELDS = 8 * MOST
_UNCOUNTED = 1 << 23
"""Bytes of small messages before these are walked too: two bytes make a field."""

_DEEPEST = 100
"""Messages within messages; protobuf itself reads no more."""

_VARINT, _I64, LENGTH_DELIMITED, _I32 = 0, 1, 2, 5

# Message kind -> field number -> kind of the message in it. `raw` is TensorProto.raw_data.
_NESTED: dict[str, dict[int, str]] = {
    "model": {7: "graph", 25: "function"},
    "graph": {1: "node", 5: "tensor"},
    "function": {7: "node"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph"},
    "tensor": {9: "raw"},
}
_PARTS = {
    ("graph", 1): "nodes",
    ("graph", 5): "weights",
    ("graph", 11): "inputs",
    ("graph", 12): "outputs",
    ("graph", 13): "declared values",
    ("function", 7): "nodes",
}
"""Fields that are counted each by itself."""

_LISTS = frozenset({7, 8, 9})
"""Fields of an attribute: floats, ints, strings."""

_IR_VERSION, _GRAPH, _METADATA, _INITIALIZER, _INPUT, _OUTPUT = 1, 7, 14, 5, 11, 12
_VALUE_NAME, _TENSOR_NAME = 1, 8
"""Numbers of three fields of the model, three of the graph, and the `name` of a ValueInfoProto and
of a TensorProto."""
_OVERRIDABLE_SINCE = 4
_MODEL_FIELDS = frozenset({1, 2, 3, 4, 5, 6, 7, 8, 14, 20, 25, 26})


def strip_weights(data: Bytes) -> bytes:
    """Return the serialized model with every large ``raw_data`` replaced by its place.

    Such a tensor comes out as external data in `HELD` with offset and length within the file.

    Raises:
        Truncated: The last field is longer than the file.
        TooMany: It holds more than a model does: told after a part of it, without the memory.
        Malformed: These are not the bytes of a ModelProto.
    """
    return _rebuild_message(data, (0, len(data)), "model", PartCounter())


def without_metadata(data: Bytes) -> Iterator[tuple[int, int]]:
    """Yield start and end of every field of a serialized model but its ``metadata_props``.

    Raises:
        Malformed: These are not the bytes of a ModelProto.
    """
    for number, _, start, _, end in walk_fields(data, 0, len(data)):
        if number != _METADATA:
            yield start, end


def read_interface(path: Path) -> tuple[list[str], list[str]]:
    """Return the names of a file's inputs that a caller must give, and of its outputs, in order.

    For workers, which import no ONNX library for it.

    Raises:
        Malformed: The file is no serialized ModelProto.
    """
    names: dict[int, list[str]] = {_INITIALIZER: [], _INPUT: [], _OUTPUT: []}
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        for start, stop in _list_payloads(data, 0, len(data), _GRAPH):
            for number, entries in names.items():
                parts = _list_payloads(data, start, stop, number)
                entries += [_read_name(data, at, end, number) for at, end in parts]
    initializers = set(names[_INITIALIZER])
    return [name for name in names[_INPUT] if name not in initializers], names[_OUTPUT]


def drop_initializer_inputs(path: Path) -> bytes | None:
    """Return a file's model with its initializers out of the inputs; None if it is so already.

    An initializer that is also an input is a default, which a caller may override. Before IR
    version 4 all of them are listed and none can be overridden: such files are left as they are.

    Raises:
        Malformed: The file is no serialized ModelProto.
    """
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        fields = list(walk_fields(data, 0, len(data)))
        versions = [read_varint(data, f[3], f[4])[0] for f in fields if f[0] == _IR_VERSION]
        graphs = _list_payloads(data, 0, len(data), _GRAPH)
        if len(graphs) != 1 or max(versions, default=0) < _OVERRIDABLE_SINCE:
            return None
        (start, stop), kept = graphs[0], []
        initializers = {
            _read_name(data, *at, _INITIALIZER)
            for at in _list_payloads(data, start, stop, _INITIALIZER)
        }
        for number, _, at, body, end in walk_fields(data, start, stop):
            if number != _INPUT or _read_name(data, body, end, _INPUT) not in initializers:
                kept.append(slice(at, end))
        if sum(part.stop - part.start for part in kept) == stop - start:
            return None
        graph = b"".join(data[part] for part in kept)
        other_fields = [data[at:end] for number, _, at, _, end in fields if number != _GRAPH]
        return b"".join((*other_fields, encode_delimited(_GRAPH, graph)))


def _read_name(data: Bytes, start: int, end: int, number: int) -> str:
    inner = _TENSOR_NAME if number == _INITIALIZER else _VALUE_NAME
    return next((data[a:b].decode() for a, b in _list_payloads(data, start, end, inner)), "")


def _list_payloads(data: Bytes, start: int, end: int, field_number: int) -> list[tuple[int, int]]:
    fields = walk_fields(data, start, end)
    return [(body, stop) for number, _, _, body, stop in fields if number == field_number]


def encode_varint(value: int) -> bytes:
    """Encode a non-negative integer."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode_tag(number: int) -> bytes:
    """Encode the tag of a length-delimited field."""
    return encode_varint(number << 3 | LENGTH_DELIMITED)


def encode_delimited(number: int, payload: bytes) -> bytes:
    """Encode a length-delimited field."""
    return encode_tag(number) + encode_varint(len(payload)) + payload


class PartCounter:
    """What was walked of a file so far."""

    def __init__(self) -> None:
        self._fields = self._small = 0
        self._parts: Counter[str] = Counter()

    def count_field(self, kind: str, number: int) -> None:
        """Count a field of a message of some kind.

        Raises:
            TooMany: There are more than a model has.
        """
        self._fields += 1
        if self._fields > _MOST_FIELDS:
            raise TooMany(f"more than {_MOST_FIELDS:,} fields")
        part = _PARTS.get((kind, number))
        if part is not None:
            self._parts[part] += 1
            if self._parts[part] > MOST:
                raise TooMany(f"more than {MOST:,} {part}")

    def is_worth_walking(self, size: int, kind: str) -> bool:
        """Whether a message of so many bytes is to be looked into."""
        if size > SMALL or kind == "raw":
            return size > SMALL
        self._small += size
        return self._small > _UNCOUNTED


def _rebuild_message(
    data: Bytes, span: tuple[int, int], kind: str, counter: PartCounter, depth: int = 0
) -> bytes:
    start, end = span
    if depth > _DEEPEST:
        raise Malformed(f"messages within messages, more than {_DEEPEST}, at byte {start}")
    nested = _NESTED[kind]
    out: list[bytes] = []
    kept = start  # everything before `kept` is in `out`
    place = b""  # goes last: a tensor once loaded from elsewhere says data_location = 0 at its end
    for number, wire, at, body, stop in walk_fields(data, start, end):
        if kind == "model" and number not in _MODEL_FIELDS:
            raise Malformed(f"unknown field {number} at byte {at}")
        if kind == "attribute" and number in _LISTS:
            break  # a forest of trees has millions of numbers: parsed, not walked
        counter.count_field(kind, number)
        inner = nested.get(number) if wire == LENGTH_DELIMITED else None
        if inner is None or not counter.is_worth_walking(stop - body, inner):
            continue
        out.append(data[kept:at])
        kept = stop
        if inner == "raw":
            entries = (("location", HELD), ("offset", str(body)), ("length", str(stop - body)))
            pairs = (
                encode_delimited(1, k.encode()) + encode_delimited(2, v.encode())
                for k, v in entries
            )
            # external_data = 13, data_location = 14 (EXTERNAL = 1)
            place = (
                b"".join(encode_delimited(13, pair) for pair in pairs)
                + encode_varint(14 << 3)
                + encode_varint(1)
            )
        else:
            message = _rebuild_message(data, (body, stop), inner, counter, depth + 1)
            out.append(encode_delimited(number, message))
    out += [data[kept:end], place]
    return b"".join(out)


def walk_fields(data: Bytes, start: int, end: int) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield (number, wire type, start of field, start of payload, end of field)."""
    at = start
    while at < end:
        key, body = read_varint(data, at, end)
        number, wire = key >> 3, key & 7
        if wire == LENGTH_DELIMITED:
            size, body = read_varint(data, body, end)
            stop = body + size
        elif wire == _VARINT:
            stop = read_varint(data, body, end)[1]
        elif wire in (_I64, _I32):
            stop = body + (8 if wire == _I64 else 4)
        else:
            raise Malformed(f"wire type {wire} at byte {at}")
        if number == 0:
            raise Malformed(f"field 0 at byte {at}")
        if stop > end:
            kind = Truncated if end == len(data) else Malformed
            raise kind(f"the field at byte {at} needs {stop - end} more bytes")
        yield number, wire, at, body, stop
        at = stop


def read_varint(data: Bytes, at: int, end: int) -> tuple[int, int]:
    """Return the number at a place, and the place behind it."""
    value = shift = 0
    while at < end:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise Malformed(f"a number of more than ten bytes at byte {at}")
    raise Truncated(f"the file ends within a number at byte {at}")


def read_identity(path: Path) -> tuple[str, int]:
    """Return what `file.compute_digest` does, and how many nodes all graphs and functions have.

    Raises:
        BadModel: The file is no model, or a file with weights is missing.
    """
    import onnx
    from google.protobuf.message import DecodeError

    total, nodes, places = hashlib.sha256(), 0, set[str]()
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            proto = onnx.ModelProto.FromString(strip_weights(data))
        for part in walk_messages(proto):
            nodes += isinstance(part, onnx.NodeProto)
            if isinstance(part, onnx.TensorProto):
                places.add(read_location(part) or "")
        places -= {"", HELD}
        files = {HELD: path} | {name: path.parent / name for name in sorted(places)}
        for location, member in files.items():
            total.update(f"{location}\0{member.stat().st_size}\0".encode())
            with member.open("rb") as stream:
                while chunk := stream.read(1 << 20):
                    total.update(chunk)
    except (OSError, ValueError, DecodeError, Malformed) as error:
        raise BadModel(
            f"{path} cannot be read: {error}", fix="run `ortune inspect` on it"
        ) from error
    return total.hexdigest()[:32], nodes


def walk_messages(message: Any) -> Iterator[Any]:
    """Yield a message and all messages within it, as they come."""
    waiting = [message]
    while waiting:
        current = waiting.pop()
        yield current
        within: list[Any] = []
        for field, value in current.ListFields():
            if field.message_type is not None:
                within += [value] if hasattr(value, "ListFields") else value
        waiting += reversed(within)


def read_location(tensor: onnx.TensorProto) -> str | None:
    """Return where the tensor's external data lies, or None when it has none."""
    if tensor.data_location != tensor.EXTERNAL:
        return None
    return next((e.value for e in tensor.external_data if e.key == "location"), "")


_INNER: dict[str, dict[int, str]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "function": {7: "node", 11: "attribute"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {13: "place"},
    "place": {},
}
"""Message of onnx.proto -> field number -> message in it, as far as it leads to external data."""
_KEY, _VALUE, _LOCATION = 1, 2, b"location"
_MOST = 3_000_000
"""Fields that are looked at, in about five seconds; a large model has a tenth of it."""


def list_locations(data: Bytes) -> Iterator[str]:
    """Yield the files that the tensors of a serialized model refer to.

    Raises:
        Malformed: These are not the bytes of a model, or of one in far too many pieces.
    """
    if data.find(_LOCATION) < 0:
        return
    pending, seen = [(0, len(data), "model")], 0
    while pending:
        start, end, kind = pending.pop()
        pair: dict[int, bytes] = {}
        for number, wire, _, body, stop in walk_fields(data, start, end):
            if wire != LENGTH_DELIMITED:
                continue
            seen += 1
            if kind == "place":
                pair[number] = data[body:stop]
            elif number in _INNER[kind]:
                pending.append((body, stop, _INNER[kind][number]))
        if seen > _MOST:
            raise Malformed(f"it has more than {_MOST} fields")
        if pair.get(_KEY) == _LOCATION:
            yield pair.get(_VALUE, b"").decode("utf-8", "backslashreplace")
