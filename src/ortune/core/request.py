"""What a verb is asked: one frozen dataclass, of which signature, options and help are made."""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import KW_ONLY, dataclass, field
from functools import cache, reduce
from math import inf
from operator import or_
from pathlib import Path
from typing import Annotated, Any, ParamSpec, TypeVar, dataclass_transform

from ortune.core.atomic_write import left_clean
from ortune.core.capabilities import tell_mixed
from ortune.core.errors import BadSettings, foreseen
from ortune.core.event import Sink, silent
from ortune.core.fields import ByteSize, Field, InputRanges, InputShapes, Option, Source
from ortune.core.hardware import memory

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
Q = TypeVar("Q", bound="Request")
C = TypeVar("C", bound=type)

_SECTION = re.compile(r"^(Attributes|Example|Returns|Raises):\n", re.MULTILINE)
_ENTRY = re.compile(r"^ {4}(\w+): ", re.MULTILINE)
_UNSET: Any = inspect.Parameter.empty


@dataclass_transform(field_specifiers=(field,))
def request(cls: C) -> C:
    """Make a request class: `dataclass(frozen=True)`.

    To type checkers it is not frozen: mypy takes inherited descriptors for what sets them.
    """
    return typing.cast(C, dataclass(frozen=True)(cls))


@request
class Request:
    """The base of all requests.

    The fields before ``KW_ONLY`` are positional in Python and arguments on the command line. The
    docstring is the help: text, ``Example:``, one line a field below ``Attributes:``, and
    ``Returns:`` and ``Raises:`` for Python. A subclass without an example only adds options: it
    has the help of its base.

    Attributes:
        sink: Receives notes and events.
    """

    sink: Sink = field(default=silent, kw_only=True, repr=False, compare=False)

    @property
    def makes(self) -> tuple[Path, ...]:
        """Files and folders that it makes: `out`, where a subclass has one, and its weights."""
        out = getattr(self, "out", None)
        return () if out is None else (Path(out), Path(f"{out}.data"))

    def keeps(self, made: Path) -> bool:
        """Whether one of these holds a result that stays when the work fails after it."""
        return False

    def __post_init__(self) -> None:
        """Check numbers and choices.

        Raises:
            BadSettings: One is out of bounds, or no choice.
        """
        for one in parameters(type(self)):
            value = getattr(self, one.name)
            one.option.check(one.name, value)
            if one.choices and value is not None and value not in one.choices:
                raise BadSettings(
                    f"{one.name}: {value!r} is not allowed",
                    fix=f"use one of {', '.join(one.choices)}",
                )


@request
class DataRequest(Request):
    """Samples, or how to make them up.

    Attributes:
        data: Samples: a folder of .npz, .npy per input, images or .wav, a .jsonl or .parquet
            file, hf:FOLDER[:split] of a saved dataset, or module:function.
        shapes: Shape of a made-up input, such as x:1x3x320x320.
        ranges: Values of a made-up input, such as ids:0..30521.
    """

    _: KW_ONLY
    data: Source = None
    shapes: InputShapes = InputShapes(None, Option("INPUT:DIMS", "--shape"))
    ranges: InputRanges = InputRanges(None, Option("INPUT:LO..HI", "--range", low=-inf))


@request
class WorkerRequest(Request):
    """Work that processes of its own do.

    Attributes:
        memory_limit: Bound on what all of ortune's processes take together, such as 4G; most of
            what is free if not given.
    """

    _: KW_ONLY
    memory_limit: ByteSize = ByteSize(None)


@dataclass(frozen=True)
class RequestField:
    """A field of a request, as signatures, options and files need it.

    Attributes:
        annotation: What it may be given as.
        default: `inspect.Parameter.empty` when it must be given.
        choices: The values allowed, if few.
        reader: What converts it, if anything does.
        help: From the docstring.
    """

    name: str
    annotation: Any
    default: Any
    positional: bool
    option: Option
    choices: tuple[Any, ...]
    reader: Field[Any, Any] | None
    help: str

    @property
    def kinds(self) -> frozenset[Any]:
        """The types of `annotation`, without their parameters."""
        every = typing.get_args(self.annotation) if _is_union(self.annotation) else ()
        return frozenset(typing.get_origin(one) or one for one in every or (self.annotation,))

    @property
    def required(self) -> bool:
        """Whether it must be given."""
        return self.default is _UNSET


def parameters(kind: type[Request]) -> tuple[RequestField, ...]:
    """Return the fields of a request class but its sink, positional ones first."""
    return _parameters(typing.cast(Any, kind))


@cache
def _parameters(kind: Any) -> tuple[RequestField, ...]:
    hints = typing.get_type_hints(kind, None, {"Sink": Any}, include_extras=True)
    texts: dict[str, str] = {}
    for cls in reversed(kind.__mro__):
        parts = _ENTRY.split(_sections(cls).get("Attributes", ""))
        texts |= zip(parts[1::2], (" ".join(part.split()) for part in parts[2::2]), strict=True)
    found = [
        _parameter(
            one,
            hints[one.name],
            inspect.getattr_static(kind, one.name, None),
            texts.get(one.name, ""),
        )
        for one in dataclasses.fields(kind)
        if one.name != "sink"
    ]
    return tuple(sorted(found, key=lambda one: not one.positional))


def _parameter(made: dataclasses.Field[Any], hint: Any, held: object, text: str) -> RequestField:
    reader = held if isinstance(held, Field) else None
    default = _UNSET if made.default is dataclasses.MISSING else made.default
    positional = not made.kw_only
    if reader is not None:
        held_as, given_as = reader.forms()
        return RequestField(
            made.name, held_as | given_as, default, positional, reader.option, (), reader, text
        )
    option = next((one for one in _extras(hint) if isinstance(one, Option)), Option())
    plain = _plain(hint)
    choices = tuple(_choices(plain))
    return RequestField(made.name, plain, default, positional, option, choices, None, text)


def _extras(hint: Any) -> Iterator[object]:
    if typing.get_origin(hint) is Annotated:
        yield from reversed(hint.__metadata__)
    for one in typing.get_args(hint):
        yield from _extras(one)


def _plain(hint: Any) -> Any:
    if typing.get_origin(hint) is Annotated:
        return _plain(hint.__origin__)
    return reduce(or_, map(_plain, typing.get_args(hint))) if _is_union(hint) else hint


def _choices(hint: Any) -> Iterator[object]:
    if typing.get_origin(hint) is typing.Literal:
        yield from typing.get_args(hint)
    elif _is_union(hint):
        for one in typing.get_args(hint):
            yield from _choices(one)


def _is_union(hint: Any) -> bool:
    return typing.get_origin(hint) in (typing.Union, types.UnionType)


def text(kind: type[Request]) -> tuple[str, str]:
    """Return the help of a request class and its examples: of the first class that has some."""
    every = [_sections(cls) for cls in kind.__mro__]
    found = next((one for one in every if "Example" in one), every[0])
    return found[""], inspect.cleandoc(found.get("Example", ""))


def _sections(cls: type) -> Mapping[str, str]:
    """Split a docstring at its headings; what stands before them is under ""."""
    parts = _SECTION.split(inspect.cleandoc(cls.__dict__.get("__doc__") or "") + "\n")
    return {"": parts[0].strip()} | dict(zip(parts[1::2], parts[2::2], strict=True))


def verb(kind: Callable[P, R], run: Callable[[R], T], name: str = "") -> Callable[P, T]:
    """Return the public function that makes a request and runs it.

    Its name, signature and docstring are those of the request class, without "Request" at the
    end. In a notebook it shows its progress, unless it is given a sink. See `errors.foreseen`.
    """

    def function(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{function.__name__}(): {error}") from None
        with ExitStack() as stack:
            if "sink" not in kwargs and "IPython" in sys.modules:
                from ortune.core.progress import notebook

                if notebook.runs_here():
                    kwargs["sink"] = stack.enter_context(notebook.display())
            asked = cls(*args, **kwargs)
            names = [one.name for one in parameters(cls) if one.positional]
            stack.enter_context(foreseen([getattr(asked, name) for name in names]))
            return carried_out(asked, run)

    cls = typing.cast(type[Any], kind)
    signature = _signature(cls, run)
    function.__module__ = run.__module__
    spelled = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__.removesuffix("Request")).lower()
    function.__name__ = function.__qualname__ = name or spelled
    function.__doc__ = _docstring(cls)
    function.__signature__ = signature  # type: ignore[attr-defined]
    return function


def carried_out(asked: Q, run: Callable[[Q], T]) -> T:
    """Run a request within its memory limit; when it fails, nothing that it made stays behind."""
    tell_mixed(asked.sink)
    limit = asked.memory_limit if isinstance(asked, WorkerRequest) else None
    with memory.limited(limit), left_clean(asked.makes, asked.keeps):
        return run(asked)


def _signature(kind: type[Request], run: Callable[..., object]) -> inspect.Signature:
    of = inspect.Parameter
    found = [
        of(
            one.name,
            of.POSITIONAL_OR_KEYWORD if one.positional else of.KEYWORD_ONLY,
            default=one.default,
            annotation=one.annotation,
        )
        for one in parameters(kind)
    ]
    sink = of("sink", of.KEYWORD_ONLY, default=silent, annotation="Sink")
    returns = run.__annotations__.get("return", _UNSET)
    return inspect.Signature([*found, sink], return_annotation=returns)


def _docstring(kind: type[Request]) -> str:
    every = [_sections(cls) for cls in kind.__mro__]
    found = next((one for one in every if "Raises" in one), every[0])
    args = [f"    {one.name}: {one.help}" for one in parameters(kind)]
    args.append("    sink: Receives notes and events.")
    parts = [found[""], "\n".join(["Args:", *args])]
    parts += [
        f"{name}:\n{found[name].rstrip()}" for name in ("Returns", "Raises") if name in found
    ]
    return "\n\n".join(parts)
