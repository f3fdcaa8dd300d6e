"""Target `toml`: settings files to the verbs that take them, up to what they would start."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from random import Random

from tests.fuzz import mutate, verbs
from tests.fuzz.target import Case, Target

_VALUES = (
    "nan",
    "inf",
    "-inf",
    "1e999",
    "-1",
    "0",
    "5000",
    "9" * 30,
    "9" * 5000,
    "true",
    "false",
    "0.5",
    "1979-05-27T07:32:00Z",
    "07:32:00",
    "[]",
    "{}",
    "[1, [2, ['a']]]",
    "{a = {b = 1}}",
    '""',
    "''",
    '"nan"',
    '"-1s"',
    '"\\u001b[31m"',
    '"\\u0000"',
    '"a\\nb"',
    '"os:system"',
    '"cpu(threads=5000)"',
    '["cpu"]',
    "[true]",
    "[nan]",
    "[[]]",
    "0x7fffffffffffffff",
    "0o7",
    "1_000",
    "'''\n\n'''",
    "[{}]",
    '"' + "a" * 100_000 + '"',
    mutate.nested(40),
    '"../../etc/passwd"',
    '"/dev/null"',
    "-0.0",
    "1e-320",
)


def draw(rng: Random) -> Case:
    """Return a file of options of one verb, some of other types, sometimes broken as TOML."""
    verb = rng.choice(verbs.names())
    fields = verbs.valid(verb)
    keys = rng.sample(list(fields), k=min(len(fields), rng.choice((1, 2, 4, 8))))
    pairs = {
        key: fields[key] for key in ("model", "models", "path", "run", "out") if key in fields
    }
    pairs |= {key: json.dumps(fields[key]) for key in keys}
    pairs = {
        key: value if isinstance(value, str) else json.dumps(value) for key, value in pairs.items()
    }
    for key in rng.sample(list(pairs), k=min(len(pairs), rng.choice((0, 1, 1, 2)))):
        pairs[key] = rng.choice(_VALUES)
    if rng.random() < 0.1:
        key = rng.choice(("more", "json", "verbose", "sink", "command", "", "a.b", "help", "\x1b"))
        pairs[json.dumps(key)] = rng.choice(_VALUES)
    text = "".join(f"{key} = {value}\n" for key, value in pairs.items())
    if rng.random() < 0.25:
        text = mutate.text(rng, text, ("[[a]]", "[a]", "=", "'''", '"""', "\ufeff"))
    data = text.encode("utf-8", "replace")
    if rng.random() < 0.1:
        data = mutate.raw(rng, data)
    return _case(verb, data)


def _case(verb: str, data: bytes) -> Case:
    return Case(f"settings of {verb}", {"s.toml": data}, (verb, "s.toml"))


def read(case: Case, folder: Path) -> None:
    """Parse the file as the verb does, and all that is spelled in it."""
    verbs.parsed(case.words)


def corpus() -> Sequence[Callable[[], Case]]:
    """Return what was seen, and its kin: every value for every field of every verb is too many."""
    found = [
        b"",
        b"\xff",
        b"\xef\xbb\xbfmodel = 'm.onnx'",
        b"\0",
        b"model",
        b"model = " + b"[" * 100_000,
        b"model = " + b"{a=" * 50_000,
        b"[" * 50_000,
        b"a." * 50_000 + b"b = 1",
        b"model = " + b"9" * 5000,
        b"model = 'm.onnx'\nmodel = 'n.onnx'",
        b"'\x1b[31m' = 1",
        b'"\\u001b[31m" = 1',
        b"model = 'm.onnx'\nbudget = 5",
        b"x = 1\n" * 2,
        b"\n".join(b"k%d = 1" % at for at in range(20_000)),
        b"model = '" + b"m" * 1_000_000 + b"'",
    ]
    made = [_case(verb, data) for data in found for verb in ("optimize", "inspect")]
    for verb in verbs.names():
        for key, value in verbs.valid(verb).items():
            others = {k: v for k, v in verbs.required(verb).items() if k != key}
            head = "".join(f"{k} = {json.dumps(v)}\n" for k, v in others.items())
            wrong = (
                "nan",
                "-1",
                "[[]]",
                "{}",
                "true",
                "9" * 30,
                '"\\u001b[31m"',
                json.dumps(value),
            )
            made += [_case(verb, f"{head}{key} = {text}\n".encode()) for text in wrong]
    return [lambda one=one: one for one in made]  # type: ignore[misc]


TARGET = Target("toml", cache(corpus), draw, read)
