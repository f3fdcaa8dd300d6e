"""The command line without what it starts: a request is made, what it spells is read, no more."""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import click

from ortune.backends.cpu import Cpu
from ortune.cli.main import list_verb_modules
from ortune.cli.terminal.command import Verb, read_request
from ortune.core import reading
from ortune.core.backend import Backend
from ortune.core.budget import Budget
from ortune.core.event import ignore_event
from ortune.core.fields import Libraries
from ortune.core.observer import Observer
from ortune.core.plugins.spelling import parse_list, parse_plugin
from ortune.core.request import Request, RequestField, list_request_fields
from ortune.core.step import Quantizer
from ortune.data import augment
from tests.fuzz.answers import answer
from tests.fuzz.target import Broken

BUDGETS = (
    "top1>=base-0.01",
    "cosine>=0.999",
    "cosine(share=0.9)>=0.999",
    "snr>=30",
    "max-error<=0.1",
    "agreement>=base",
    "os:getcwd>=0.9",
    "top1>=base - 0.5",
)
BACKENDS = (
    "cpu",
    "cpu(threads=1)",
    "cpu(threads=1,graph=basic),openvino",
    "auto",
    "reference",
    'cpu(config=[["session.intra_op.allow_spinning", "0"]])',
    "torch(source=os:getcwd)",
    "bucketed(inner=cpu(threads=1), axes=[x])",
    "simulated(isa=avx2)",
    "openvino(threads=1)",
)
STEPS = (
    "simplify",
    "fp16",
    "int8-static(observer=percentile(p=99.9))",
    "fuse-silu",
    "int4-weights",
    "fold-preprocess",
    "x.py:Rule",
    'int8-dynamic(exclude=["conv_*"])',
    "lower-opset(version=21)",
)
WORKLOADS = (
    "latency",
    "throughput",
    "arrivals(rate=50)",
    "throughput(batch=8)",
    "loadgen",
    "shapes",
    "first-shapes",
)
_SPELLED: Mapping[str, Sequence[str]] = {
    "budget": BUDGETS,
    "on": BACKENDS,
    "baseline": BACKENDS,
    "workload": WORKLOADS,
    "steps": STEPS,
    "rules": STEPS,
    "augment": ("noise(db=30),flip,scale", "flip"),
    "observer": ("percentile(p=99.9)", "min-max", "entropy"),
    "quantizer": ("int8-static", "fp16"),
    "policy": ("adaptive",),
    "shapes": ("x:1x4", "x:", "ids:1x16"),
    "ranges": ("ids:0..30521", "x:-1..1", "rate:16000"),
    "data": ("d.npz", "nowhere", "os:getcwd"),
    "evaluate": ("os:getcwd", "nope:f"),
    "time": ("60s", "3m", "1h30m"),
    "memory_limit": ("4G", "500M"),
    "max_size": ("100MB",),
    "max_memory": ("500MB",),
    "max_latency": ("20ms", "0.5s"),
    "batches": ("1,4,16",),
    "threads": ("1,2",),
    "counts": ("1,2,3",),
    "custom_ops": ("nope.so", "nope_module"),
    "picture_size": ("480x640",),
    "fold_postprocess": ("uint8", "top-k(k=5, output=logits)"),
}

PLUGINS = frozenset(
    ("on", "baseline", "workload", "steps", "rules", "augment", "observer", "quantizer")
)
"""Fields that spell plugins."""


@cache
def names() -> tuple[str, ...]:
    """Return the verbs."""
    return tuple(list_verb_modules())


def kind(verb: str) -> type[Request]:
    """Return the request class of a verb."""
    command: Any = importlib.import_module(list_verb_modules()[verb]).command
    found: type[Request] = inspect.getclosurevars(command.callback).nonlocals["kind"]
    return found


@cache
def fields(verb: str) -> tuple[RequestField, ...]:
    """Return what a verb may be given."""
    return tuple(one for one in list_request_fields(kind(verb)) if not one.option.python)


def spellings(one: RequestField) -> Sequence[str]:
    """Return texts that a field takes."""
    if one.name in _SPELLED:
        return _SPELLED[one.name]
    if one.choices:
        return [str(choice) for choice in one.choices]
    if bool in one.kinds:
        return ["true"]
    if int in one.kinds:
        return ["1", "8"]
    if float in one.kinds:
        return ["0.5", "2"]
    return ["m.onnx"] if Path in one.kinds else ["x"]


def valid(verb: str) -> dict[str, Any]:
    """Return key -> a value that is allowed, as a settings file has them."""
    return {one.name: _value(one) for one in fields(verb)}


def required(verb: str) -> dict[str, Any]:
    """Return those without which a verb does nothing."""
    return {one.name: _value(one) for one in fields(verb) if one.is_required}


def _value(one: RequestField) -> Any:
    text = spellings(one)[0]
    if bool in one.kinds:
        return True
    if one.reader is None and int in one.kinds:
        return int(float(text))
    if one.reader is None and float in one.kinds:
        return float(text)
    several = one.reader.several if one.reader else not one.kinds.isdisjoint((Sequence, tuple))
    return [text] if several else text


def parsed(words: Sequence[str]) -> None:
    """Run a command line up to where its verb would begin.

    Raises:
        Broken: The answer is none that a command line may give, or a number got through that
            none may be.
    """
    with _stopped():
        answer(words)


@contextmanager
def _stopped() -> Iterator[None]:
    """Put `begun` in the place of what verbs do, and load no libraries."""
    before, missing = Verb.invoke, Cpu.missing

    def invoke(command: Verb, ctx: click.Context) -> int:
        values = {k: v for k, v in ctx.params.items() if k not in ("more", "json_to")}
        begun(read_request(command.request, command.forms, values, ignore_event))
        return 0

    Verb.invoke = invoke  # type: ignore[assignment,method-assign]
    Cpu.missing = lambda backend: None  # type: ignore[method-assign]
    try:
        yield
    finally:
        Cpu.missing = missing  # type: ignore[method-assign]
        Verb.invoke = before  # type: ignore[method-assign]


def begun(asked: Request) -> None:
    """Read all that a request spells.

    Raises:
        Broken: A number that is no number got through.
    """
    for one in fields_of(asked):
        value = getattr(asked, one.name)
        _number(one, value)
        for texts, reader in ((value, _READERS.get(one.name)),):
            if reader is not None and texts:
                for text in (texts,) if isinstance(texts, str) else texts:
                    reader(text)
    if isinstance(on := getattr(asked, "on", None), str) and on not in ("", "auto"):
        parse_list(Backend, getattr(asked, "backends", on))
    if isinstance(spelled := getattr(asked, "workload", None), str):
        batch = getattr(asked, "batch", 0)
        for size in batch if isinstance(batch, tuple) else (batch,):
            reading.read_workload(spelled, size)


def fields_of(asked: Request) -> Iterator[RequestField]:
    """Yield the fields of a request, but libraries: loading them is for whoever names them."""
    for one in list_request_fields(type(asked)):
        if not (one.option.python or isinstance(one.reader, Libraries)):
            yield one


def _budget(text: str) -> None:
    if not math.isfinite(Budget.parse(text).limit):
        raise Broken(f"an infinite budget is taken: {text[:60]!a}")


_READERS: Mapping[str, Callable[[str], object]] = {
    "budget": _budget,
    "steps": reading.read_step,
    "rules": reading.read_step,
    "augment": augment.parse_augmentations,
    "baseline": lambda text: parse_plugin(Backend, text),
    "quantizer": lambda text: parse_plugin(Quantizer, text),
    "observer": lambda text: parse_plugin(Observer, text),
}


def _number(one: RequestField, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return
    if math.isnan(value):
        raise Broken(f"nan is taken by {one.name}: {value}")
    if getattr(one.option, "finite", True) and math.isinf(value):
        raise Broken(f"infinity is taken by {one.name}: {value}")
    if value < 0 and (one.option.low is None or one.option.low >= 0):
        raise Broken(f"a negative number is taken by {one.name}: {value}")
