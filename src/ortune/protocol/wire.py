"""The top level of a serialized request: large contents are taken out without a copy."""

from __future__ import annotations

from ortune.protocol.status import Refused
from ortune.protocol.tensors import MOST_TENSORS

_RAW_INPUT = 7 << 3 | 2
"""Key of ``ModelInferRequest.raw_input_contents``."""
_MOST_FIELDS = 4 * MOST_TENSORS
"""Of one request. An empty one of two bytes makes protobuf allocate a hundred."""
_FIXED = {1: 8, 5: 4}
"""Wire type -> bytes."""


def without_raw(body: bytes) -> tuple[bytes, list[memoryview]]:
    """Take the raw contents out of a ``ModelInferRequest``.

    Returns:
        The request without them, and views of them in order.

    Raises:
        Refused: It is no protobuf message, or has more fields than a request may.
    """
    view, at, end = memoryview(body), 0, len(body)
    rest: list[memoryview] = []
    raw: list[memoryview] = []
    while at < end:
        if len(rest) + len(raw) >= _MOST_FIELDS:
            raise Refused(f"the request has more than {_MOST_FIELDS} fields")
        key, start = _varint(body, at)
        match key & 7:
            case 0:
                _, stop = _varint(body, start)
            case 2:
                size, start = _varint(body, start)
                stop = start + size
            case wire if wire in _FIXED:
                stop = start + _FIXED[wire]
            case wire:
                raise Refused(f"failed to parse the request: wire type {wire} at byte {at}")
        if stop > end:
            raise Refused(f"failed to parse the request: it ends within the field at byte {at}")
        if key == _RAW_INPUT:
            raw.append(view[start:stop])
        else:
            rest.append(view[at:stop])
        at = stop
    return b"".join(rest), raw


def field(number: int, size: int) -> bytes:
    """Return what stands before the content of a field of bytes."""
    out = bytearray((number << 3 | 2,))
    while size > 0x7F:
        out.append(size & 0x7F | 0x80)
        size >>= 7
    out.append(size)
    return bytes(out)


def _varint(body: bytes, at: int) -> tuple[int, int]:
    """Return a number and the place behind it."""
    value = shift = 0
    for place in range(at, min(at + 10, len(body))):
        octet = body[place]
        value |= (octet & 0x7F) << shift
        if octet < 0x80:
            return value, place + 1
        shift += 7
    raise Refused(f"failed to parse the request: no number at byte {at}")
