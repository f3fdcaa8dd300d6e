"""Target `words`: command lines, up to what they would start."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from random import Random

from ortune.core.request import RequestField
from tests.fuzz import mutate, verbs
from tests.fuzz.target import Case, Target

_SPELLINGS = (
    "cpu(",
    "cpu)",
    "cpu((",
    "cpu(threads",
    "cpu(threads=",
    "cpu(threads=1",
    "cpu(threads=1,",
    "cpu(,)",
    "cpu(threads=[1)",
    "cpu(threads=1))",
    "cpu(threads=nan)",
    "cpu(threads=inf)",
    "cpu(threads=-1)",
    "cpu(threads=1e999)",
    "cpu(threads=1.5)",
    "cpu(threads=true)",
    "cpu(threads=null)",
    'cpu(threads="1")',
    "cpu(threads=100000)",
    "cpu(threads=5000)",
    "cpu(threads=1, threads=2)",
    "cpu()()",
    "cpu cpu",
    ",",
    "cpu,,cpu",
    "cpu(nope=1)",
    "cpu(threads=cpu)",
    "cpu(threads=cpu(threads=1))",
    "CPU",
    "cpu\n",
    "cpu\x1b",
    "cpu(affinity=0-99999999999)",
    "cpu(graph=\x1b[31m)",
    "cpu(config=[[a]])",
    "cpu(config={})",
    'cpu(config=[["session.collect_node_memory_stats_to_file", "x"]])',
    "cpu(environment=/bin/sh)",
    "cpu(threads=" + "9" * 5000 + ")",
    "cpu(config=" + mutate.nested(5000) + ")",
    "a(" * 5000,
    "cpu(" + "a=1," * 20_000 + ")",
    "cpu(config=" + "[" * 100_000,
    '"' * 1000,
    'cpu(x="\\ud800")',
    'cpu(x="\\',
    "os:system",
    "os:system()",
    "x.py",
    "x.py:",
    "../../x.py:Rule",
    "/dev/null.py:x",
    "cpu(__class__=1)",
    "cpu(self=1)",
    "cpu(__init__=1)",
    "--",
    "cpu(threads=0x10)",
    "cpu(threads=1_0)",
    "bucketed(inner=bucketed(inner=bucketed(inner=cpu)))",
    "torch(source=os:getcwd)",
    "transforms/simplify",
    "simulated(isa=" + "a" * 100_000 + ")",
    "openvino(config=[])",
    "percentile(p=1e999)",
    "percentile(p=-1)",
)
_BUDGETS = (
    "top1>=nan",
    "top1>=inf",
    "top1>=1e999",
    "top1>=-1e999",
    "top1>=base-1e999",
    "top1<=0.5",
    "top1>",
    ">=",
    ">=0.5",
    "top1>=",
    "top1>=base-",
    "top1>=base--1",
    "top1>=0.5>=0.5",
    "top1(>=0.5",
    "nope>=0.5",
    "os:system>=0.5",
    "os:nope>=0.5",
    "nope:nope>=0.5",
    "\x1b[31m>=0.5",
    "a" * 100_000 + ">=0.5",
    "(>=" * 5000,
    "function(path=os:system)>=0.5",
    'function(path="os:system", higher_is_better=5)>=0.5',
    "top1 >= base",
    "cosine(share=nan)>=0.9",
    "cosine(share=-1)>=0.9",
    "cosine(share=1e999)>=0.9",
    "top1>=0x1",
    "top1>=١",
    " " * 50_000 + "top1" + " " * 50_000,
    "top1" + " " * 50_000 + "x",
    ">=" * 50_000,
)
_DURATIONS = (
    "0",
    "-1s",
    "nan",
    "inf",
    "1e9s",
    "9" * 400 + "h",
    "1h1h",
    "s",
    "1 s",
    "²s",
    ".",
    "1" * 100_000,
)
_SIZES = ("-1", "nan", "inf", "9" * 400 + "G", "1e9", "0", "0.5", "G", "4X", "9" * 5000, "٤G")
_SHAPES = (
    "x",
    "x:-1",
    "x:1x",
    ":1",
    "x:" + "1x" * 50_000 + "1",
    "x:" + "9" * 5000,
    "x:0",
    "\x1b:1",
    "x:" + "9" * 30,
    "x:1x1000000x1000000",
    "x:²",
)
_RANGES = (
    "x:nan..1",
    "x:1..0",
    "x:1e999",
    "x:..",
    ":1..2",
    "x:-1e999..1e999",
    "x:" + "9" * 5000,
    "x:0..inf",
)
_COUNTS = ("0", "-1", "1,,2", "a", "9" * 5000, "²", "1," * 50_000, "nan", "1.5", "٣")
_NASTY = {
    "budget": _BUDGETS,
    "time": _DURATIONS,
    "shapes": _SHAPES,
    "ranges": _RANGES,
    "batches": _COUNTS,
    "memory_limit": _SIZES,
    "max_size": _SIZES,
    "max_memory": _SIZES,
    "threads": _COUNTS,
    "max_latency": _DURATIONS,
}


def draw(rng: Random) -> Case:
    """Return a command line of a verb, with some words replaced, changed, doubled or left out."""
    verb = rng.choice(verbs.names())
    known = verbs.fields(verb)
    words = [verb]
    for one in known:
        if one.positional or one.is_required or rng.random() < 0.2:
            words += _given(rng, one)
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3))):
        at = rng.randrange(len(words))
        kind = rng.randrange(6)
        if kind == 0:
            words[at] = rng.choice((*mutate.WORDS, *mutate.NUMBERS, *_SPELLINGS))
        elif kind < 3:
            words[at] = mutate.text(rng, words[at], _SPELLINGS)
        elif kind == 3:
            words.insert(at, rng.choice((*words, "--json", "-v", "--help", "--", "-o", "--nope")))
        elif kind == 4 and len(words) > 1:
            del words[at]
        else:
            rng.shuffle(words)
    return _case(words)


def _given(rng: Random, one: RequestField) -> list[str]:
    pool: Sequence[str] = verbs.spellings(one)
    if rng.random() < 0.3:
        pool = _nasty(one)
    word = _word(one)
    if bool in one.kinds:
        return [rng.choice((word, word.replace("--", "--no-")))]
    value = rng.choice(pool)
    return [value] if one.positional and not one.option.word else [word, value]


def _nasty(one: RequestField) -> Sequence[str]:
    if one.name in _NASTY:
        return _NASTY[one.name]
    if {int, float} & one.kinds:
        return mutate.NUMBERS
    return _SPELLINGS if one.name in verbs.PLUGINS else mutate.WORDS


def _case(words: Sequence[str]) -> Case:
    """A command line has no NUL, and bytes that are no UTF-8 come as surrogates."""
    kept = tuple(word.replace("\0", "") for word in words)
    return Case(f"a command line of {kept[0][:20]!a}", words=kept)


def read(case: Case, folder: Path) -> None:
    """Parse the words as the verb does, and all that is spelled in them."""
    verbs.parsed(case.words)


def corpus() -> Sequence[Callable[[], Case]]:
    """Return every option of every verb with what does not belong there."""
    made: list[list[str]] = [
        [],
        [""],
        ["--"],
        ["-"],
        ["nope"],
        ["\x1b[31m"],
        ["\udcff"],
        ["a" * 100_000],
        ["--nope"],
        ["optimize"],
        ["optimize", "--\x1b[31m"],
        ["--version", "x"],
        ["optimize", "x.toml"],
        ["optimize", "/dev/null"],
        ["optimize", "a" * 5000],
        ["optimize", "a" * 5000 + ".toml"],
        ["optimize", "\udcff.toml"],
        ["inspect", "m.onnx", "--json", "/nowhere/x.json"],
        ["inspect", "m.onnx", "--json", "\x1b.json"],
    ]
    for verb in verbs.names():
        known = verbs.fields(verb)
        base = [word for one in known if one.is_required for word in _plain(one)]
        for one in known:
            if bool in one.kinds or (one.positional and not one.option.word):
                continue
            made += [[verb, *base, _word(one), text] for text in _nasty(one)]
    return [lambda words=words: _case(words or [""]) for words in made]  # type: ignore[misc]


def _word(one: RequestField) -> str:
    word = f"--{one.name.replace('_', '-')}"
    return next((text for text in one.option.word.split() if text.startswith("--")), word)


def _plain(one: RequestField) -> list[str]:
    text = verbs.spellings(one)[0]
    return [text] if one.positional and not one.option.word else [_word(one), text]


TARGET = Target("words", cache(corpus), draw, read)
