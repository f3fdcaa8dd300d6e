"""Which files a serialized model keeps weights in, without an ONNX library."""

from collections.abc import Iterator

from ortune.graph.io.protobuf import LENGTH_DELIMITED, Bytes, Malformed, walk_fields

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
