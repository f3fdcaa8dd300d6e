"""Protobuf as fields: changed one by one, so that most of a file still parses."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any, TypeAlias

import onnx

from ortune.graph.io.protobuf import encode_varint, read_varint
from tests.fuzz import mutate

Message: TypeAlias = "list[Field]"

_NUMBERS = (0, 1, 2, 7, 16, 999, 2**31 - 1, 2**31, 2**32, 2**40, 2**62, 2**63, 2**64 - 1)
_NAMES = (
    "",
    "x",
    "y",
    "a" * 300,
    "\x1b[31m",
    "a\nb",
    "../x",
    "/etc/passwd",
    "é",
    "-1",
    "0",
    "If",
    "Loop",
    "Constant",
    "Reshape",
    "Cast",
    "Conv",
    "MatMul",
    "location",
    "offset",
    "length",
    "ai.onnx",
    "com.microsoft",
    "then_branch",
    "body",
    "value",
    "nope",
)


@dataclass
class Field:
    """One field of a message.

    Attributes:
        number: As in the schema.
        wire: The wire type: 0 a number, 1 and 5 fixed widths, 2 bytes.
        value: An int for wire type 0, a message where the schema has one, else bytes.
    """

    number: int
    wire: int
    value: Any


def parse(data: bytes, kind: Any = None) -> Message:
    """Take a message apart, at any depth.

    Args:
        data: A valid message.
        kind: Its descriptor; `onnx.ModelProto`'s without it.
    """
    kind = onnx.ModelProto.DESCRIPTOR if kind is None else kind
    found, at = [], 0
    while at < len(data):
        key, at = read_varint(data, at, len(data))
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, at = read_varint(data, at, len(data))
            found.append(Field(number, wire, value))
            continue
        size = {1: 8, 5: 4}.get(wire, 0)
        if wire == 2:
            size, at = read_varint(data, at, len(data))
        payload = data[at : at + size]
        at += size
        known = kind.fields_by_number.get(number)
        inner = known.message_type if known is not None and wire == 2 else None
        found.append(Field(number, wire, payload if inner is None else parse(payload, inner)))
    return found


def write(message: Message) -> bytes:
    """Put a message together."""
    out = bytearray()
    for one in message:
        out += encode_varint(one.number << 3 | one.wire)
        if one.wire == 0:
            out += encode_varint(one.value)
            continue
        payload = write(one.value) if isinstance(one.value, list) else one.value
        if one.wire == 2:
            out += encode_varint(len(payload))
        out += payload
    return bytes(out)


def change(rng: Random, data: bytes, kind: Any = None) -> bytes:
    """Return a message's bytes with a few fields changed, moved, left out or told twice.

    Args:
        kind: As for `parse`.
    """
    message = parse(data, kind)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        _one(rng, message)
    return write(message)


def _holders(message: Message) -> list[Message]:
    found, waiting = [], [message]
    while waiting:
        one = waiting.pop()
        if one:
            found.append(one)
        waiting += [field.value for field in one if isinstance(field.value, list)]
    return found


def _one(rng: Random, message: Message) -> None:
    holders = _holders(message)
    if not holders:
        return
    holder = rng.choice(holders)
    at = rng.randrange(len(holder))
    field = holder[at]
    kind = rng.randrange(12)
    if kind == 0:
        del holder[at]
    elif kind == 1:
        holder.insert(rng.randrange(len(holder) + 1), _copied(field))
    elif kind == 2:
        rng.choice(holders).append(_copied(field))  # grafted
    elif kind == 3:
        rng.shuffle(holder)
    elif kind == 4:
        field.number = rng.choice(
            (field.number + 1, max(1, field.number - 1), 1, 5, 13, 20, 536870911)
        )
    else:
        _value(rng, field, holders)


def _value(rng: Random, field: Field, holders: list[Message]) -> None:
    """Change what a field holds; texts often become another text of the model, as in a cycle."""
    if field.wire == 0:
        near = (field.value + 1, max(0, field.value - 1), field.value * 2, field.value << 20)
        field.value = rng.choice((*_NUMBERS, *near)) % 2**64
    elif isinstance(field.value, list):
        others = [one.value for holder in holders for one in holder if isinstance(one.value, list)]
        taken = _copied(Field(1, 2, rng.choice(others))).value
        field.value = rng.choice((taken, [], field.value + taken))
    elif field.wire == 2:
        texts = [
            one.value
            for holder in holders
            for one in holder
            if one.wire == 2 and isinstance(one.value, bytes) and len(one.value) < 40
        ] or [b""]
        field.value = rng.choice(
            (
                rng.choice(texts),
                rng.choice(texts),
                rng.choice(_NAMES).encode(),
                mutate.raw(rng, field.value),
                field.value[: len(field.value) // 2],
                field.value + bytes(8),
            )
        )
    else:
        field.value = bytes(rng.choice((0, 0xFF, 0x7F, 0x80)) for _ in field.value)


def _copied(field: Field) -> Field:
    inner = [_copied(one) for one in field.value] if isinstance(field.value, list) else field.value
    return Field(field.number, field.wire, inner)
