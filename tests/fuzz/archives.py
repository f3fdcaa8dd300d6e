"""Zips as hostile writers make them: bombs, doubles, lies about sizes, names that lead away."""

from __future__ import annotations

import hashlib
import io
import struct
import warnings
import zipfile
import zlib
from collections.abc import Sequence
from functools import cache
from random import Random

from tests.fuzz import mutate

Members = Sequence[tuple[str, bytes]]
_ODD = (
    "../out",
    "/abs",
    "C:\\x",
    "a\\b",
    "",
    ".",
    "a//b",
    "\x1b[31m",
    "a\0b",
    "é",
    "x" * 5000,
    "a/",
)
_CENTRAL, _LOCAL = b"PK\x01\x02", b"PK\x03\x04"
_FIELDS = {_CENTRAL: (8, 10, 16, 20, 24, 28, 30, 32, 38, 42), _LOCAL: (6, 8, 14, 18, 22, 26, 28)}
"""Offsets of flags, method, checksum, sizes, lengths and places in the two kinds of headers."""


def members(data: bytes) -> list[tuple[str, bytes]]:
    """Return the members of a zip that is whole."""
    with zipfile.ZipFile(io.BytesIO(data)) as held:
        return [(name, held.read(name)) for name in held.namelist()]


def zipped(held: Members, method: int = zipfile.ZIP_STORED) -> bytes:
    """Write a zip; a name may be there twice."""
    out = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(out, "w", method) as made:
        warnings.simplefilter("ignore")
        for name, content in held:
            made.writestr(zipfile.ZipInfo(name), content, method)
    return out.getvalue()


def renamed(rng: Random, held: Members) -> bytes:
    """Write a zip with members left out, twice, under other names or packed in other ways."""
    made = list(held)
    for _ in range(rng.choice((1, 1, 2))):
        at = rng.randrange(len(made))
        name, content = made[at]
        kind = rng.randrange(5)
        if kind == 0 and len(made) > 1:
            del made[at]
        elif kind == 1:
            made.append((name, rng.choice((content, b"", mutate.raw(rng, content)))))
        elif kind == 2:
            made[at] = rng.choice(_ODD), content
        elif kind == 3:
            made.append((rng.choice((*_ODD, "more.txt", name.upper())), content))
        else:
            other = rng.choice(made)[1]
            made[at] = name, other
    method = rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2))
    return zipped(made, method)


def headers(rng: Random, data: bytes) -> bytes:
    """Change numbers in the headers of a zip."""
    out = bytearray(data)
    places = [(at, sign) for sign in _FIELDS for at in range(len(out)) if out[at : at + 4] == sign]
    for _ in range(rng.choice((1, 1, 2, 4))):
        at, sign = rng.choice(places)
        field = at + rng.choice(_FIELDS[sign])
        size = rng.choice((2, 4))
        value = rng.choice(
            (0, 1, 8, 12, 14, 99, 0xFFFF, 2**31 - 1, 2**32 - 1, rng.getrandbits(32))
        )
        out[field : field + size] = struct.pack("<I", value)[:size]
    end = out.rfind(b"PK\x05\x06")
    if end >= 0 and rng.random() < 0.2:
        field = end + rng.choice((8, 10, 12, 16, 20))
        out[field : field + 2] = struct.pack("<H", rng.choice((0, 1, 0xFFFF, rng.getrandbits(16))))
    return bytes(out)


@cache
def zeros(size: int) -> bytes:
    """Return a deflated stream of zeros."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    chunk = packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)
    return chunk * (size >> 20) + packer.flush()


@cache
def digest_of_zeros(size: int) -> str:
    """Return the SHA-256 of zeros, a whole number of MiB."""
    found, chunk = hashlib.sha256(), bytes(1 << 20)
    for _ in range(size >> 20):
        found.update(chunk)
    return found.hexdigest()


def bomb(held: Members, name: str, size: int, told: int | None = None) -> bytes:
    """Return a zip in which one member unpacks to `size` zeros, and says so or says `told`."""
    out = io.BytesIO()
    kept = [pair for pair in held if pair[0] != name]
    with zipfile.ZipFile(out, "w") as made:
        for pair in kept:
            made.writestr(*pair)
        info = zipfile.ZipInfo(name)
        info.compress_type = zipfile.ZIP_DEFLATED
        info.header_offset = out.tell()
        packed = zeros(size)
        info.file_size = size if told is None else told
        info.compress_size, info.CRC = len(packed), 0
        out.write(info.FileHeader(zip64=False) + packed)
        made.filelist.append(info)
        made.NameToInfo[name] = info
        made.start_dir = out.tell()
        made._didModify = True  # type: ignore[attr-defined]
    return out.getvalue()
