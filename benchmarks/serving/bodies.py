"""Broken requests by the thousand: JSON, binary tensors and protobuf, made from valid ones."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping

from benchmarks.serving.load import Request
from benchmarks.serving.models import SMALL, binary, message, plain

_NUMBERS = (
    b"-1",
    b"0",
    b"1e999",
    b"NaN",
    b"9223372036854775808",
    b"1.5",
    b"null",
    b"true",
    b'"x"',
)
_PIECES = (
    b"{",
    b"}",
    b"[",
    b"]",
    b'"',
    b",",
    b":",
    b"\\u0000",
    b"\xff\xfe",
    b"[" * 2000,
    b'{"a":' * 500,
)
_LENGTHS = ("0", "-1", "1", "99999999999999999999", "ten", "", "1.5")
_ENCODINGS = ("gzip", "deflate", "br", "identity")


def fuzzed(count: int, seed: int) -> Iterator[Request]:
    """Yield broken requests of all kinds in turns; one seed, one sequence."""
    rng = random.Random(seed)
    feeds = {"x": SMALL.array()}
    valid = [make(SMALL.name, feeds) for make in (plain, binary, message)]
    for number in range(count):
        one = valid[number % len(valid)]
        body = one.body
        for _ in range(rng.choice((1, 1, 2, 4))):
            body = _changed(body, rng, text=number % len(valid) == 0)
        yield Request(one.protocol, body, one.path, _headers(one, rng))


def _changed(body: bytes, rng: random.Random, *, text: bool) -> bytes:
    """Return a body with one thing wrong."""
    place = rng.randrange(len(body) + 1) if len(body) < 400 or rng.random() < 0.3 else _early(rng)
    kind = rng.randrange(6)
    if kind == 0:
        return body[:place]
    if kind == 1:
        return body[:place] + rng.randbytes(rng.choice((1, 4, 16))) + body[place:]
    if kind == 2:
        return body[:place] + body[place + rng.choice((1, 4, 64)) :]
    if kind == 3:
        return body[:place] + rng.choice(_PIECES if text else _NUMBERS) + body[place:]
    if kind == 4:
        return _other_number(body, rng)
    changed = bytearray(body or b"\0")
    for _ in range(rng.choice((1, 2, 8))):
        at = min(_early(rng), len(changed) - 1)
        changed[at] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _early(rng: random.Random) -> int:
    """Return a place among the first bytes, where names, shapes and lengths are."""
    return rng.randrange(200)


def _other_number(body: bytes, rng: random.Random) -> bytes:
    """Replace one of the first digits by a number that does not fit."""
    digits = [at for at, value in enumerate(body[:400]) if 48 <= value < 58]
    if not digits:
        return body + b"0"
    at = rng.choice(digits)
    return body[:at] + rng.choice(_NUMBERS) + body[at + 1 :]


def _headers(one: Request, rng: random.Random) -> Mapping[str, str]:
    """Return the headers, sometimes with lengths and encodings that are lies."""
    if one.protocol == "grpc" or rng.random() < 0.7:
        return one.headers
    if rng.random() < 0.5:
        return {**one.headers, "Inference-Header-Content-Length": rng.choice(_LENGTHS)}
    return {**one.headers, "Content-Encoding": rng.choice(_ENCODINGS)}
