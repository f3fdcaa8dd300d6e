"""Sound, tables and COCO files for the target `feeds`: broken in their headers and bytes."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable, Sequence
from functools import cache, partial
from random import Random
from typing import Any

import numpy as np

from tests.fuzz import mutate
from tests.fuzz.target import Case

_NUMBERS = (0, 1, 2, 3, 7, 8, 24, 32, 64, 85, 255, 0xFFFE, 0xFFFF)
_LENGTHS = (None, None, None, 0, 1, 15, 2**31 - 1, 2**31, 2**32 - 2, 2**32 - 1)
_SOUND = 'input = "x"\nrate = 16000\nlength = 4\nstep = 2\nchannels = "mean"\n'
_TOML = ("resample = true", "tail", "drop", "-1", "0", "99999999999", "rate_input", "ids", "[]")


def wav(
    form: Sequence[int] = (1, 1, 16_000, 32_000, 2, 16),
    data: bytes = bytes(32),
    told: int | None = None,
    asked: int | None = None,
) -> bytes:
    """Return a file of sound whose format and lengths may lie."""
    limits = (2**16, 2**16, 2**32, 2**32, 2**16, 2**16)
    held = struct.pack("<HHIIHH", *(one % most for one, most in zip(form, limits, strict=True)))
    body = b"WAVEfmt " + struct.pack("<I", len(held) if asked is None else asked) + held
    body += b"data" + struct.pack("<I", len(data) if told is None else told) + data
    return b"RIFF" + struct.pack("<I", len(body)) + body


def sound(rng: Random) -> Case:
    """Change a file of sound, or the settings beside it."""
    form = [1, 1, 16_000, 32_000, 2, 16]
    if rng.random() < 0.7:
        form[rng.randrange(6)] = rng.choice(_NUMBERS)
    data = wav(form, bytes(rng.randrange(64)), rng.choice(_LENGTHS), rng.choice(_LENGTHS))
    if rng.random() < 0.3:
        data = mutate.raw(rng, data)
    toml = mutate.text(rng, _SOUND, _TOML) if rng.random() < 0.5 else ""
    files = {"d/a.wav": data, "d/b.wav": wav(), "d/sound.toml": toml.encode("utf-8", "replace")}
    return Case("sound", files)


@cache
def _table() -> bytes:
    import pyarrow as arrow
    from pyarrow import parquet

    out = io.BytesIO()
    held = {"x": [[0.5, 1, 2, 3]] * 3, "ids": [[1, 2, 3]] * 3, "label": [0, 1, 2]}
    parquet.write_table(arrow.table(held), out, compression="none")
    return out.getvalue()


def table(rng: Random) -> Case:
    """Change the bytes of a Parquet file."""
    return Case("a .parquet", {"d.parquet": mutate.raw(rng, _table())})


def _coco() -> dict[str, Any]:
    return {
        "images": [{"id": 1, "file_name": "a.png", "width": 8, "height": 8}],
        "categories": [{"id": 7, "name": "cat"}],
        "annotations": [{"image_id": 1, "category_id": 7, "bbox": [1, 2, 3, 4], "iscrowd": 0}],
    }


def boxes(rng: Random, picture: bytes) -> Case:
    """Change a COCO file by the leaves of its JSON or its bytes."""
    data = mutate.as_json(mutate.leaves(rng, _coco()), rng)
    if rng.random() < 0.2:
        data = mutate.raw(rng, data)
    return Case("a COCO file", {"d/a.png": picture, "l.json": data})


def corpus(picture: bytes) -> list[Callable[[], Case]]:
    """Return headers that lie, and their kin."""
    sounds = [
        wav(),
        b"",
        b"RIFF",
        wav()[:43],
        wav(told=2**32 - 1),
        wav(told=2**31),
        wav(asked=2**32 - 1),
        wav(asked=0),
        wav(data=b""),
        wav((3, 1, 16_000, 64_000, 4, 32), np.array([np.nan, np.inf], np.float32).tobytes()),
        wav((1, 65_535, 1, 1, 65_535, 8)),
        wav((1, 1, 2**32 - 1, 0, 2, 16)),
        b"RIFF\0\0\0\0WAVE" + b"junk\0\0\0\0" * 100_000,
    ]
    texts = (
        "length = 1\nstep = 1",
        "length = 2147483647",
        "rate = 1\nresample = true",
        "rate = 9999999\nresample = true",
        "rate = 99999999999999999999",
        "length = -4",
        'channels = "all"',
        'input = "\\u001b[31m"',
        'rate_input = "ids"',
        "x = " + "[" * 100_000,
    )
    files = (
        "null",
        "[]",
        "{}",
        '{"images": {}, "annotations": [], "categories": []}',
        json.dumps(_coco() | {"images": [{"id": 1e400, "file_name": "a.png"}]}),
        json.dumps(_coco() | {"categories": [{"id": "\x1b[31m"}]}),
        json.dumps(_coco()).replace("7", "9" * 5000),
        '{"images": ' + mutate.nested(5000) + "}",
    )
    held = _table()
    tables = [b"", b"PAR1", held[:-9], held[:-8] + b"\xff\xff\xff\x7fPAR1", held[:4] + held[-60:]]
    tables.append(held.replace(b"label", b"lab\xdcl"))
    return [
        *(partial(Case, f"sound {at}", {"d/a.wav": one}) for at, one in enumerate(sounds)),
        *(
            partial(Case, one[:30], {"d/a.wav": wav(), "d/sound.toml": one.encode()})
            for one in texts
        ),
        *(partial(Case, one[:30], {"d/a.png": picture, "l.json": one.encode()}) for one in files),
        *(partial(Case, f"table {at}", {"d.parquet": one}) for at, one in enumerate(tables)),
    ]
