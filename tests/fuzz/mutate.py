"""Small changes to bytes, to texts of tokens and to JSON."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, TypeVar

T = TypeVar("T")

NUMBERS = (
    "nan",
    "-nan",
    "inf",
    "-inf",
    "Infinity",
    "1e999",
    "-1e999",
    "-1",
    "0",
    "-0",
    "1e-320",
    "0x10",
    "1_000",
    "9" * 20,
    "9" * 400,
    "9" * 5000,
    "1e400",
    "0.1.2",
    "--1",
    "+1",
    "²",
    "٣",
    "1,2",
    "",
    "2147483648",
    "-9223372036854775809",
    "1e5",
    "100000",
    "5000",
    ".5",
    "1.",
    "NaN",
)
"""What may stand where a number belongs."""

WORDS = (
    "\x1b[31mred",
    "\x1b]0;title\x07",
    "\x00",
    "a\nb",
    "a\rb",
    "\x7f",
    "\x9b31m",
    "\u202eright",
    "\udcff",
    "é" * 40,
    "😀",
    "a" * 100_000,
    " ",
    "",
    "-",
    "--",
    "../../etc/passwd",
    "/",
    "/dev/null",
    "/proc/self/mem",
    "~",
    "$HOME",
    "%s%n",
    "{}",
    "os:system",
    "os:getcwd",
    "json:loads",
    "os:nope",
    "nope:nope",
    "builtins:print",
    ":",
    "::",
    "a:b:c",
    "x.py",
    "x.py:Rule",
    ".py:Rule",
    "con",
    "`id`",
    "'; drop",
    '"',
    "\\",
    "\\\\",
    "x=1",
    "x:y",
    "#",
    "\t",
    "\u2028",
    "ﬁ",
    "a/b",
    "a\\b",
)
"""What may stand where a text belongs."""

JSON_LEAVES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1,
    5000,
    2**31,
    2**63,
    -(2**63) - 1,
    10**30,
    10**400,
    0.5,
    -0.0,
    1e308,
    float("nan"),
    float("inf"),
    float("-inf"),
    "",
    "nan",
    [],
    {},
    [[]],
    [None],
    {"": None},
    {"is": 5},
    {"is": "metrics/top1"},
    {"is": "backends/cpu"},
    {"is": "backends/nope"},
    {"is": "nope/cpu"},
    {"is": "backends/../../x"},
    {"is": "transforms/x.py:Rule"},
    {"is": None},
    {"is": ["a"]},
    {"is": "backends/cpu", "threads": 5000},
    {"is": "backends/cpu", "threads": -1},
    {"is": "backends/cpu", "environment": "/bin/sh"},
    {"is": "quantizers/gone", "a b": 1},
    {"is": "backends/torch", "source": "os:getcwd"},
    {"is": "sections/verdict"},
    {"is": "transforms/gone", "class": 1, "apply": 2, "__init__": 3},
    "2" * 5000,
    [0] * 10_000,
)

CONFIG = (
    ("session.collect_node_memory_stats_to_file", "stolen.json"),
    ("session.debug_layout_transformation", "1"),
    ("session.optimized_model_external_initializers_file_name", "stolen.bin"),
    ("session.profiling_output_file", "stolen"),
    ("session.load_model_format", "ORT"),
    ("session.intra_op_thread_affinities", "1;" * 5000),
    ("ep.context_enable", "1"),
    ("ep.context_file_path", "stolen.onnx"),
    ("optimization.minimal_build_optimizations", "save"),
    ("nope", "x" * 5000),
)
"""Session keys that write files, or that no plan needs."""


def raw(rng: Random, data: bytes) -> bytes:
    """Change bytes without knowing what they are."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4, 16))):
        at, size = rng.randrange(len(out) + 1), rng.choice((1, 1, 2, 4, 8, 64))
        kind = rng.randrange(6)
        if kind == 0 and at < len(out):
            out[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            out[at : at + size] = bytes(rng.randrange(256) for _ in range(size))
        elif kind == 2:
            out[at:at] = rng.choice((b"\xff", b"\0", b"\x80", b"PK\x03\x04")) * size
        elif kind == 3:
            del out[at : at + size]
        elif kind == 4:
            start = rng.randrange(len(out) + 1)
            out[at:at] = out[start : start + size * 8]
        else:
            del out[at:]
    return bytes(out)


def text(rng: Random, given: str, words: Sequence[str] = ()) -> str:
    """Change a text by characters and by words."""
    pool = (*words, *NUMBERS, *WORDS)
    for _ in range(rng.choice((1, 1, 2, 4))):
        at, end = sorted(rng.randrange(len(given) + 1) for _ in range(2))
        kind = rng.randrange(5)
        if kind == 0:
            given = given[:at] + rng.choice(pool) + given[end:]
        elif kind == 1:
            given = given[:at] + rng.choice(pool) + given[at:]
        elif kind == 2:
            given = given[:at] + given[end:]
        elif kind == 3:
            given = given[:at] + rng.choice("()[]{}=,:\"'\\-.\n\t\0#") + given[at:]
        else:
            given = given[:end] + given[at:end] * rng.choice((1, 3)) + given[end:]
    return given


def leaves(rng: Random, document: Any) -> Any:
    """Return a copy of JSON data with a few values, keys or lists changed."""
    document = copy.deepcopy(document)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        places = list(_places(document))
        if not places:
            return rng.choice(JSON_LEAVES)
        holder, key = rng.choice(places)
        _change(rng, holder, key)
    return document


def _places(data: Any) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    waiting = [data]
    while waiting:
        one = waiting.pop()
        pairs = one.items() if isinstance(one, dict) else enumerate(one)
        for key, value in list(pairs):
            found.append((one, key))
            if isinstance(value, (dict, list)):
                waiting.append(value)
    return found


def _change(rng: Random, holder: Any, key: Any) -> None:
    kind, old = rng.randrange(8), holder[key]
    if kind == 0:
        del holder[key]
    elif kind == 1 and isinstance(holder, dict):
        holder[rng.choice(("x", "", "is", "format", "config", *WORDS[:6]))] = old
    elif kind == 1:
        holder.append(old)
    elif kind == 2 and isinstance(old, str):
        holder[key] = text(rng, old)
    elif kind == 3 and isinstance(old, (int, float)):
        half = old % 2**53 + 0.5  # an integer may be too large for a float
        holder[key] = rng.choice((-old, old * 1000, half, str(old), [old], 10**18, 2**31))
    elif kind == 4 and isinstance(old, (list, dict)):
        holder[key] = rng.choice(({"config": dict([rng.choice(CONFIG)])}, [old] * 50, {"a": old}))
    elif kind == 5:
        holder[key] = rng.choice(WORDS)
    else:
        holder[key] = copy.deepcopy(rng.choice(JSON_LEAVES))


def nested(depth: int, opening: str = "[", closing: str = "]") -> str:
    """Return brackets in brackets."""
    return opening * depth + closing * depth


def as_json(document: Any, rng: Random | None = None) -> bytes:
    """Write JSON as hostile writers do: NaN spelled out, sometimes a key twice or very deep."""
    made = json.dumps(document, ensure_ascii=rng is None or rng.random() < 0.5)
    if rng is not None and rng.random() < 0.03:
        made = rng.choice((made + "x", nested(100_000), made[:-1], made.replace("}", ",}", 1)))
    if rng is not None and rng.random() < 0.03 and made.startswith("{"):
        made = '{"format": 1, "is": "x", ' + made[1:]
    return made.encode("utf-8", "surrogatepass")


def either(rng: Random, *ways: Callable[[], T]) -> T:
    """Call one of some functions."""
    return rng.choice(ways)()
