"""What a verb is asked: one frozen dataclass, of which signature, options and help are made."""

import dataclasses
import inspect
import re
import sys
import types
import typing
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import KW_ONLY, dataclass, field
from functools import cache, reduce
from math import inf
from operator import or_
from pathlib import Path
from typing import Annotated, Any, ClassVar, ParamSpec, TypeVar, dataclass_transform

from ortune.core import hub, regular_file
from ortune.core.atomic_write import clean_up_on_failure
from ortune.core.errors import BadSettings, suggest_names, wrap_unexpected_errors
from ortune.core.event import Sink, ignore_event
from ortune.core.fields import ByteSize, Field, InputRanges, InputShapes, Option, Source
from ortune.core.hardware import memory
from ortune.core.runtime_conflict import warn_of_runtime_conflict

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
        formerly: What fields were called in an earlier release -> their names, or "" for those
            that are gone; the old name stays accepted for one release.
    """

    formerly: ClassVar[Mapping[str, str]] = {}

    sink: Sink = field(default=ignore_event, kw_only=True, repr=False, compare=False)

    @property
    def makes(self) -> tuple[Path, ...]:
        """Files and folders that it makes: `out`, where a subclass has one, and its weights."""
        out = getattr(self, "out", None)
        return () if out is None else (Path(out), Path(f"{out}.data"))

    def keeps(self, path: Path) -> bool:
        """Whether one of these holds a result that stays when the work fails after it."""
        return False

    def __post_init__(self) -> None:
        """Check numbers and choices.

        Raises:
            BadSettings: One is out of bounds, or no choice.
        """
        for spec in list_request_fields(type(self)):
            value = getattr(self, spec.name)
            spec.option.check(spec.name, value)
            if spec.choices and value is not None and value not in spec.choices:
                raise BadSettings(
                    f"{spec.name}: {value!r} is not allowed",
                    fix=suggest_names(str(value), map(str, spec.choices)),
                )


@request
class UnpackRequest(Request):
    """Work on samples that may be packed.

    Attributes:
        unpack_limit: Bound on what .npz and .parquet files are unpacked to, such as 8G; 1 GiB, or
            a hundred times the files, if not given.
    """

    _: KW_ONLY
    unpack_limit: ByteSize = ByteSize(None)


@request
class DataRequest(UnpackRequest):
    """Samples, or how to make them up.

    Attributes:
        data: Samples: a folder of .npz, .npy per input, images or .wav, a .jsonl or .parquet
            file, hf:FOLDER[:split] of a saved dataset, or FILE.py:NAME.
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
        default: `inspect.Parameter.empty` when it must be given.
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
        members = typing.get_args(self.annotation) if _is_union(self.annotation) else ()
        return frozenset(
            typing.get_origin(member) or member for member in members or (self.annotation,)
        )

    @property
    def is_required(self) -> bool:
        """Whether it must be given."""
        return self.default is _UNSET


def list_request_fields(kind: type[Request]) -> tuple[RequestField, ...]:
    """Return the fields of a request class but its sink, positional ones first."""
    return _list_request_fields(typing.cast(Any, kind))


@cache
def _list_request_fields(kind: Any) -> tuple[RequestField, ...]:
    hints = typing.get_type_hints(kind, None, {"Sink": Any}, include_extras=True)
    texts: dict[str, str] = {}
    for cls in reversed(kind.__mro__):
        parts = _ENTRY.split(_split_docstring(cls).get("Attributes", ""))
        texts |= zip(parts[1::2], (" ".join(part.split()) for part in parts[2::2]), strict=True)
    specs = []
    for spec in dataclasses.fields(kind):
        if spec.name != "sink":
            descriptor = inspect.getattr_static(kind, spec.name, None)
            text = texts.get(spec.name, "")
            specs.append(_make_request_field(spec, hints[spec.name], descriptor, text))
    return tuple(sorted(specs, key=lambda spec: not spec.positional))


def map_former_names(kind: type[Request]) -> dict[str, str]:
    """Return what fields were called in an earlier release -> their names; "" for those gone."""
    classes = reversed(kind.__mro__)
    return {k: v for cls in classes for k, v in cls.__dict__.get("formerly", {}).items()}


def _make_request_field(
    spec: dataclasses.Field[Any], hint: Any, descriptor: object, text: str
) -> RequestField:
    reader = descriptor if isinstance(descriptor, Field) else None
    default = _UNSET if spec.default is dataclasses.MISSING else spec.default
    positional = not spec.kw_only
    if reader is not None:
        value_type, input_type = reader.find_types()
        both = value_type | input_type
        return RequestField(spec.name, both, default, positional, reader.option, (), reader, text)
    option = next((extra for extra in _find_metadata(hint) if isinstance(extra, Option)), Option())
    plain = _strip_annotated(hint)
    choices = tuple(_list_choices(plain))
    return RequestField(spec.name, plain, default, positional, option, choices, None, text)


def _find_metadata(hint: Any) -> Iterator[object]:
    if typing.get_origin(hint) is Annotated:
        yield from reversed(hint.__metadata__)
    for arg in typing.get_args(hint):
        yield from _find_metadata(arg)


def _strip_annotated(hint: Any) -> Any:
    if typing.get_origin(hint) is Annotated:
        return _strip_annotated(hint.__origin__)
    return reduce(or_, map(_strip_annotated, typing.get_args(hint))) if _is_union(hint) else hint


def _list_choices(hint: Any) -> Iterator[object]:
    if typing.get_origin(hint) is typing.Literal:
        yield from typing.get_args(hint)
    elif _is_union(hint):
        for arg in typing.get_args(hint):
            yield from _list_choices(arg)


def _is_union(hint: Any) -> bool:
    return typing.get_origin(hint) in (typing.Union, types.UnionType)


def read_help(kind: type[Request]) -> tuple[str, str]:
    """Return the help of a request class and its examples: of the first class that has some."""
    sections = [_split_docstring(cls) for cls in kind.__mro__]
    section = next((candidate for candidate in sections if "Example" in candidate), sections[0])
    return section[""], inspect.cleandoc(section.get("Example", ""))


def _split_docstring(cls: type) -> Mapping[str, str]:
    """Split a docstring at its headings; what stands before them is under ""."""
    parts = _SECTION.split(inspect.cleandoc(cls.__dict__.get("__doc__") or "") + "\n")
    return {"": parts[0].strip()} | dict(zip(parts[1::2], parts[2::2], strict=True))


def make_verb(kind: Callable[P, R], run: Callable[[R], T], name: str = "") -> Callable[P, T]:
    """Return the public function that makes a request and runs it.

    Its name, signature and docstring are those of the request class, without "Request" at the
    end. In a notebook it shows its progress, unless it is given a sink. See `errors.foreseen`.
    """

    def function(*args: P.args, **kwargs: P.kwargs) -> T:
        for old in [name for name in kwargs if former.get(name)]:
            text = f"{function.__name__}(): {old}= is called {former[old]}= now"
            warnings.warn(text, DeprecationWarning, stacklevel=2)
            kwargs[former[old]] = kwargs.pop(old)
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{function.__name__}(): {error}") from None
        with ExitStack() as stack:
            if "sink" not in kwargs and "IPython" in sys.modules:
                from ortune.core.progress import notebook

                shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
                if hasattr(shell, "kernel"):
                    kwargs["sink"] = stack.enter_context(notebook.display_progress())
            instance = cls(*args, **kwargs)
            names = [spec.name for spec in list_request_fields(cls) if spec.positional]
            stack.enter_context(
                wrap_unexpected_errors([getattr(instance, name) for name in names])
            )
            return run_request(instance, run)

    cls = typing.cast(type[Any], kind)
    of = inspect.Parameter
    arguments = [
        of(spec.name, kind_of, default=spec.default, annotation=spec.annotation)
        for spec in list_request_fields(cls)
        for kind_of in [of.POSITIONAL_OR_KEYWORD if spec.positional else of.KEYWORD_ONLY]
    ]
    sink = of("sink", of.KEYWORD_ONLY, default=ignore_event, annotation="Sink")
    returns = run.__annotations__.get("return", _UNSET)
    signature = inspect.Signature([*arguments, sink], return_annotation=returns)
    former = map_former_names(cls)
    function.__module__ = run.__module__
    spelled = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__.removesuffix("Request")).lower()
    function.__name__ = function.__qualname__ = name or spelled
    function.__doc__ = _build_docstring(cls)
    function.__signature__ = signature  # type: ignore[attr-defined]
    return function


def run_request(instance: Q, run: Callable[[Q], T]) -> T:
    """Run a request within its memory limit; when it fails, nothing that it made stays behind.

    Where it names a hub's folder as a model, it gets the ONNX file in it.
    """
    warn_of_runtime_conflict(instance.sink)
    located: dict[str, Any] = {}
    for spec in list_request_fields(type(instance)):
        value = getattr(instance, spec.name) if spec.option.model else None
        if isinstance(value, (str, Path)):
            located[spec.name] = hub.locate_model(value)
        elif value is not None:
            located[spec.name] = tuple(map(hub.locate_model, value))
    instance = dataclasses.replace(instance, **located) if located else instance
    limit = instance.memory_limit if isinstance(instance, WorkerRequest) else None
    unpacked = instance.unpack_limit if isinstance(instance, UnpackRequest) else None
    with (
        memory.limit_memory(limit),
        regular_file.limit_unpacking(unpacked),
        clean_up_on_failure(instance.makes, instance.keeps),
    ):
        return run(instance)


def _build_docstring(kind: type[Request]) -> str:
    sections = [_split_docstring(cls) for cls in kind.__mro__]
    section = next((entry for entry in sections if "Raises" in entry), sections[0])
    args = [f"    {entry.name}: {entry.help}" for entry in list_request_fields(kind)]
    args.append("    sink: Receives notes and events.")
    parts = [section[""], "\n".join(["Args:", *args])]
    parts += [
        f"{name}:\n{section[name].rstrip()}" for name in ("Returns", "Raises") if name in section
    ]
    return "\n\n".join(parts)
