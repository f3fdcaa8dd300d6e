"""Targets `npz`, `labels`, `feeds`: samples, labels, ranges, saved runs to what reads them."""

from __future__ import annotations

import io
import json
import struct
import zlib
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from ortune.analysis.benchmark import compare as saved_runs
from ortune.core.facts import TensorSpec
from ortune.data import feeds
from ortune.data.stream import Stream
from ortune.quantizers.calibration import ranges_file
from tests.fuzz import archives, formats, mutate
from tests.fuzz.models import FIXTURES
from tests.fuzz.target import Broken, Case, Target

INPUTS = (
    TensorSpec("x", "float32", ("batch", 4)),
    TensorSpec("ids", "int64", ("batch", None), rows=100),
)
SOUNDS = (TensorSpec("x", "float32", ("batch", None)),)
PICTURES = (TensorSpec("x", "float32", ("batch", 3, 8, 8)),)
_TEXTS = (*INPUTS, TensorSpec("words", "str", ("batch",)), TensorSpec("half", "bfloat16", None))
_DESCRIPTIONS = (
    "<f4",
    ">f4",
    "<f2",
    "|O",
    "O",
    "<f999",
    "V1000000000",
    "U1000000000",
    "S0",
    "V0",
    "|b1",
    "M8[D]",
    "<c16",
    "<i8",
    ",".join(["f4"] * 3000),
    "",
    "x",
    "f4, f4",
    "T",
    "<m8[s]",
)
_SHAPES = (
    "(3, 4)",
    "()",
    "(3,)",
    "(-3, 4)",
    "(3, -4)",
    "(10**12, 4)",
    "(1000000000000, 4)",
    "(3, 0)",
    "(0, 4)",
    "(1152921504606846976, 16)",
    "(9999999999999999999999, 4)",
    "(True, 4)",
    "(3.0, 4)",
    "('3', 4)",
    "[3, 4]",
    "3",
    "None",
    "((3,), 4)",
    f"({'1, ' * 70})",
    "(65536, 65536)",
    "(4, 3)",
    "(1, 12)",
)


def npy(array: np.ndarray) -> bytes:
    """Write an array as numpy does."""
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def headed(
    header: str, data: bytes = bytes(48), version: int = 1, told: int | None = None
) -> bytes:
    """Write a .npy with any header, whose length may be told wrong."""
    text = header.encode("latin1", "replace") + b"\n"
    size = len(text) if told is None else told
    wide = "<H" if version == 1 else "<I"
    return (
        b"\x93NUMPY"
        + bytes([version, 0])
        + struct.pack(wide, size % 2 ** (8 * struct.calcsize(wide)))
        + text
        + data
    )


def described(descr: object = "<f4", shape: str = "(3, 4)", fortran: object = False) -> str:
    """Return the text of a header."""
    return f"{{'descr': {descr!r}, 'fortran_order': {fortran!r}, 'shape': {shape}, }}"


def arrays() -> dict[str, np.ndarray]:
    """Return samples that fit."""
    rng = np.random.default_rng(0)
    return {
        "x": rng.standard_normal((3, 4)).astype(np.float32),
        "ids": rng.integers(0, 99, (3, 5)),
        "label": np.arange(3),
    }


def draw(rng: Random) -> Case:
    """Change samples of one of the other kinds, or a file that is read beside them."""
    return rng.choice(
        (_lines, _ranges, _results, _picture, _stream, formats.sound, formats.table)
    )(rng)


def _arrays(rng: Random) -> Case:
    """Change an archive of arrays, or a folder of them."""
    if rng.random() < 0.4:
        files = {f"d/{name}.npy": npy(one) for name, one in arrays().items()}
        name = rng.choice(list(files))
        files[name] = changed(rng, files[name])
        return Case("a folder of .npy", files)
    held = [(f"{name}.npy", npy(one)) for name, one in arrays().items()]
    at = rng.randrange(len(held))
    held[at] = held[at][0], changed(rng, held[at][1])
    if rng.random() < 0.3:
        return Case("members", {"d.npz": archives.renamed(rng, held)})
    data = archives.zipped(held, rng.choice((0, 8)))
    if rng.random() < 0.3:
        data = rng.choice((archives.headers, mutate.raw))(rng, data)
    return Case("a .npz", {"d.npz": data})


def changed(rng: Random, data: bytes) -> bytes:
    """Change a .npy by its header or its bytes."""
    if rng.random() < 0.3:
        return mutate.raw(rng, data)
    header = described(
        rng.choice((*_DESCRIPTIONS, "<f4", "<i8")),
        rng.choice(_SHAPES) if rng.random() < 0.8 else mutate.text(rng, "(3, 4)"),
        rng.choice((False, False, True, 5, "x", None)),
    )
    if rng.random() < 0.2:
        header = mutate.text(rng, header)
    told = rng.choice((None, None, None, 0, 5, 65535, 2**32 - 1))
    return headed(header, data[128:], rng.choice((1, 1, 2, 3, 9)), told)


def _lines(rng: Random) -> Case:
    samples = [{"x": [0.5, 1, 2, 3], "ids": [1, 2, 3], "label": 1} for _ in range(4)]
    lines = [json.dumps(one).encode() for one in samples]
    at = rng.randrange(len(lines))
    lines[at] = mutate.as_json(mutate.leaves(rng, samples[at]), rng)
    if rng.random() < 0.2:
        lines[at] = mutate.raw(rng, lines[at])
    return Case("a .jsonl", {"d.jsonl": b"\n".join(lines)})


def _labels(rng: Random) -> Case:
    if rng.random() < 0.3:
        return formats.boxes(rng, png(8, 8))
    good = archives.zipped([(f"{name}.npy", npy(one)) for name, one in arrays().items()])
    if rng.random() < 0.5:
        return Case("labels as .npy", {"d.npz": good, "l.npy": changed(rng, npy(np.arange(3)))})
    text = mutate.text(rng, "name,label,group\na,1,x\nb,2,x\nc,3,y\n", ('"', ",", "\n", "label"))
    return Case("labels as .csv", {"d.npz": good, "l.csv": text.encode("utf-8", "replace")})


def _ranges(rng: Random) -> Case:
    data = (FIXTURES / "ranges.json").read_bytes()
    if rng.random() < 0.2:
        text = mutate.text(rng, "TRT-8601-EntropyCalibration2\nx: 3c010a14\ny: 3d010a14\n")
        return Case("TensorRT's cache", {"ranges": text.encode("utf-8", "replace")})
    if rng.random() < 0.2:
        return Case("bytes of ranges", {"ranges": mutate.raw(rng, data)})
    return Case("ranges", {"ranges": mutate.as_json(mutate.leaves(rng, json.loads(data)), rng)})


@cache
def _bench() -> Any:
    found = json.loads((FIXTURES / "bench.json").read_bytes())
    found["rows"] = found["rows"][:1]
    return found


def _results(rng: Random) -> Case:
    return Case("a saved run", {"bench": mutate.as_json(mutate.leaves(rng, _bench()), rng)})


def _stream(rng: Random) -> Case:
    held = dict(_streams())
    return Case("a stream", {"s.stream": mutate.raw(rng, held[rng.choice(list(held))])})


@cache
def _streams() -> tuple[tuple[str, bytes], ...]:
    found = sorted((FIXTURES / "runs").glob("*/golden/*.stream"))
    return tuple((str(path), path.read_bytes()) for path in found)


_SETTINGS = 'input = "x"\nsize = [8, 8]\nscale = 0.5\nmean = [0.1, 0.2, 0.3]\nstd = [1, 1, 1]\n'


def _picture(rng: Random) -> Case:
    toml = mutate.text(
        rng, _SETTINGS, ("layout", "crop", "resize", "channels", "dtype", "0", "[]")
    )
    data = png(8, 8)
    if rng.random() < 0.5:
        data = mutate.raw(rng, data)
    files = {"d/a.png": data, "d/preprocess.toml": toml.encode("utf-8", "replace")}
    return Case("a picture", files)


def png(width: int, height: int, rows: int | None = None) -> bytes:
    """Return a PNG that says it is of this size, and holds as many rows as that or `rows`."""
    held = zlib.compress(
        (b"\0" + bytes(3 * min(width, 4096))) * (height if rows is None else rows)
    )
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)),
        (b"IDAT", held),
        (b"IEND", b""),
    )
    written = (
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(written)


def read(case: Case, folder: Path) -> None:
    """Give the file to the reader of its kind."""
    if (folder / "ranges").exists():
        ranges_file.read_ranges(folder / "ranges")
    elif (folder / "bench").exists():
        found = saved_runs.read_run(folder / "bench")
        saved_runs.match_rows(found, found, ())
    elif (folder / "s.stream").exists():
        for sample in Stream(folder / "s.stream"):
            sum(array.nbytes for array in sample.values())
    else:
        _samples(folder)


def _samples(folder: Path) -> None:
    source = next(path for path in sorted(folder.iterdir()) if path.stem == "d")
    labels = next((path for path in folder.iterdir() if path.stem == "l"), None)
    inputs = PICTURES if (source / "a.png").exists() else INPUTS
    if (source / "a.wav").exists():
        inputs = SOUNDS
    if source.suffix == ".jsonl" and b"words" in source.read_bytes():
        inputs = _TEXTS
    out = folder / "out"
    try:
        feeds.load_feeds(source, inputs, out, labels=labels)
    except Exception:
        if out.exists() and any(out.iterdir()):
            raise Broken("something is left behind by a failed load") from None
        raise


def _one(name: str, **given: Any) -> Callable[[], Case]:
    return lambda: Case(
        name, {f"d/{key}.npy": _made(one) for key, one in {**_whole(), **given}.items()}
    )


def _made(one: Any) -> bytes:
    return one if isinstance(one, bytes) else npy(one)


def _whole() -> dict[str, Any]:
    found = arrays()
    del found["label"]
    return found


def _zip(name: str, **given: Any) -> Callable[[], Case]:
    def made() -> Case:
        held = [(f"{key}.npy", _made(one)) for key, one in {**_whole(), **given}.items()]
        return Case(name, {"d.npz": archives.zipped(held, 8)})

    return made


def _bomb() -> Case:
    """A .npz of 400 MB of zeros with an honest header would do; the header lies in zeros here."""
    held = [(f"{key}.npy", npy(one)) for key, one in _whole().items()]
    return Case("a bomb", {"d.npz": archives.bomb(held, "x.npy", 400 << 20)})


def _jsonl(text: str) -> Callable[[], Case]:
    return lambda: Case(text[:30], {"d.jsonl": text.encode("utf-8", "surrogatepass")})


def _csv(text: str) -> Callable[[], Case]:
    def made() -> Case:
        held = [(f"{key}.npy", npy(one)) for key, one in _whole().items()]
        return Case(text[:20], {"d.npz": archives.zipped(held), "l.csv": text.encode()})

    return made


def _pictured(toml: str, width: int = 8, height: int = 8, rows: int | None = None) -> Case:
    files = {"d/a.png": png(width, height, rows), "d/preprocess.toml": toml.encode()}
    return Case(f"{toml[:30]} {width} {height}", files)


def corpus() -> Sequence[Callable[[], Case]]:
    """Return what was seen of all three, and its kin."""
    headers = [headed(described(one)) for one in _DESCRIPTIONS]
    headers += [headed(described(shape=one)) for one in _SHAPES]
    headers += [headed(described(shape=one), version=2) for one in _SHAPES[:6]]
    headers += [
        headed(described(), told=65535),
        headed(described(), version=2, told=2**32 - 1),
        headed(described(), version=3),
        headed(described(), version=255),
        headed("(" * 9000),
        headed("{" * 200 + "}" * 200),
        headed("-" * 9000 + "1"),
        headed("{'descr': 1j, 'shape': (), 'fortran_order': 0}"),
        headed(described([("a", "<f4"), ("b", "<f4")])),
        headed(described(fortran=True)),
        headed(described(shape="(0, 4)"), b""),
        b"",
        b"\x93NUMPY",
        b"\x93NUMPY\x01\x00\xff\xff",
    ]
    ids = '"ids": [1]'
    lines = (
        "[" * 100_000,
        '{"x": ' + mutate.nested(60) + "}",
        '{"x": ' + mutate.nested(5000) + "}",
        '{"x": ' + "9" * 5000 + "}",
        '{"x": [1, 2, 3, NaN], "ids": [1]}',
        '{"x": [1, 2, 3, Infinity], "ids": [1]}',
        '{"x": [1, 2, 3, 1e400], "ids": [1]}',
        f'{{"x": [1, 2, 3, 4], "ids": [{10**30}]}}',
        f'{{"x": [1, 2, 3, {10**30}], {ids}}}',
        f'{{"x": [1, 2, 3, {10**400}], {ids}}}',
        f'{{"x": [1, "2", 3, null], {ids}}}',
        f'{{"x": {{"a": 1}}, {ids}}}',
        f'{{"x": true, {ids}}}',
        f'{{"x": null, {ids}}}',
        f'{{"x": [], {ids}}}',
        f'{{"x": [[1], [1, 2]], {ids}}}',
        f'{{"x": [1, 2, 3, 4], {ids}, "label": {mutate.nested(100)}}}',
        f'{{"x": [1, 2, 3, 4], {ids}, "label": {{"a": 1}}}}',
        f'{{"x": [1, 2, 3, 4], {ids}, "group": [1, 2]}}',
        '{"x": [1, 2, 3, 4], "ids": [1], "\x1b[31m": 1}',
        '{"x": [1, 2, 3, 4], "ids": [1], "words": ["\\ud800"], "half": 1}',
        "null",
        "5",
        '"x"',
        "[]",
        "{}",
        "\ufeff{}",
        "",
        "\n" * 100_000,
    )
    return [
        *(made for one in headers for made in (_one("a .npy", x=one), _zip("a .npz", x=one))),
        *(_zip("labels", label=one) for one in headers[:40]),
        _one("objects", x=np.array([{}, 1], object).astype("S")),
        _one("text", x=np.array([["a"] * 4] * 3)),
        _one("text to 1000", ids=np.array([["a" * 1000] * 5] * 3)),
        _one("no rows", x=np.zeros((0, 4), np.float32), ids=np.zeros((0, 5), np.int64)),
        _one("a number", x=np.float32(1), ids=np.int64(1)),
        _one("complex", x=np.zeros((3, 4), np.complex64)),
        _one("times", ids=np.zeros((3, 5), "M8[s]")),
        _zip("labels of no shape", label=np.float32(1)),
        _zip("bytes as labels", label=np.array([b"\xff", b"\xfe", b"a"])),
        _zip("labels of two", label=np.zeros((2, 3))),
        _zip("groups", group=np.zeros((3, 3))),
        _bomb,
        *map(_jsonl, lines),
        *map(
            _csv,
            (
                "",
                ",",
                "label",
                "label\n1\n2\n3\n4\n",
                "a,b\n1,2\n",
                'label\n"a\n',
                "label\n\0\n",
                "label\n" + "9" * 5000 + "\n1\n2\n",
                "label\nnan\ninf\n1e999\n",
                "label\n٣\n1\n2\n",
                "label,group\n1\n",
                "x" * 200_000,
                "label\n" + "a" * 200_000 + "\nb\nc\n",
            ),
        ),
        lambda: Case("an empty .npz", {"d.npz": archives.zipped([])}),
        lambda: Case("no zip", {"d.npz": b"hello"}),
        lambda: Case("an empty folder", {"d/.hidden": b""}),
        lambda: Case("a .npy of its own", {"d.npy": headed(described())}),
        *formats.corpus(png(8, 8)),
        *(partial(_pictured, text) for text in _PREPROCESS),
        partial(_pictured, "", 60_000, 60_000, 1),
        partial(_pictured, "", 2**31 - 1, 2**31 - 1, 1),
        partial(_pictured, "", 10_000, 10_000, 1),
        partial(_pictured, "", 0, 0, 0),
    ]


_PREPROCESS = (
    "size = [-1, -1]",
    "size = [0, 0]",
    "size = 100000",
    "size = [1000000, 1000000]",
    "size = [99999999999999999999, 8]",
    "crop = 100000",
    "crop = [-8, -8]",
    "resize = 1000000",
    "scale = nan",
    "scale = inf",
    "std = 0",
    "std = [0, 0, 0]",
    "mean = [1]",
    "mean = 'x'",
    "input = 5",
    "input = ['x']",
    "input = '\\u001b[31m'",
    "dtype = 'object'",
    "dtype = 'V5'",
    "dtype = 'float8_e4m3fn'",
    "dtype = 5",
    "nope = 1",
    "[table]\nx = 1",
    "x = " + "[" * 100_000,
    "x = " + "9" * 5000,
    "\xff",
    "size = 1979-05-27",
)

TARGETS = (
    Target("npz", cache(corpus), _arrays, read),
    Target("labels", tuple, _labels, read),
    Target("feeds", tuple, draw, read),
)
