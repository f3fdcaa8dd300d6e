"""Kinds of request fields: how each is given in Python, on the command line and in a file."""

import math
import re
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import (
    Annotated,
    Any,
    ClassVar,
    Generic,
    Self,
    TypeAlias,
    TypeVar,
    get_args,
    get_origin,
    overload,
)

from ortune.core.errors import BadSettings
from ortune.core.plugins.bounds import ANY, HIGHEST, Bounds
from ortune.core.plugins.user_function import is_path

T = TypeVar("T")
G = TypeVar("G")

_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_DURATION = "".join(rf"(?:(\d+\.?\d*|\.\d+){unit})?" for unit in ("h", "m", "ms", "s?"))
_DIM_DIGITS, _MOST_BYTES = 12, 2**60
_REQUIRED: Any = object()


@dataclass(frozen=True)
class Option:
    """What the command line needs to know of a field beyond its name and type."""

    metavar: str = ""  # stands for the value in the help
    # The option where it is not the field's name; a positional field with one is an option on the
    # command line.
    word: str = ""
    shown: str = ""  # the default in the help where it is not the field's
    low: float = 0.0  # smallest number allowed
    high: float = HIGHEST  # largest number allowed
    per_cpu: int | None = None  # largest number allowed for each CPU at hand
    python: bool = False  # it is a parameter in Python alone
    # It is taken on the command line and not listed: rarely of use, or on its way out.
    hidden: bool = False
    # It names a model, or several: a hub's folder stands for the ONNX file in it.
    model: bool = False

    def check(self, name: str, value: object) -> None:
        """Check a number, or those of a list or a mapping.

        Raises:
            BadSettings: One is not finite, or out of bounds.
        """
        try:
            Bounds(self.low, self.high, self.per_cpu).check(value, here=True)
        except BadSettings as error:
            raise BadSettings(f"{name}: {error.what}", fix=error.fix) from None


File: TypeAlias = Annotated[str | Path, Option("FILE")]
Files: TypeAlias = Annotated[str | Path | Sequence[str | Path], Option()]
Model: TypeAlias = Annotated[str | Path, Option(model=True)]
Models: TypeAlias = Annotated[str | Path | Sequence[str | Path], Option(model=True)]
Out: TypeAlias = Annotated[str | Path | None, Option("PATH", "-o --out")]
Source: TypeAlias = Annotated[str | Path | Callable[[], Any] | None, Option("SOURCE")]


def make_paths(values: str | Path | Sequence[str | Path]) -> tuple[Path, ...]:
    """Return one or several files as paths."""
    return (Path(values),) if isinstance(values, (str, Path)) else tuple(map(Path, values))


class Field(Generic[T, G]):
    """A field that holds a `T` and may be given as a `T` or spelled as a `G`.

    It is the default of its own annotation: ``time: Duration = Duration("3m")``. The value is
    converted when the request is made, so type checkers see `T | G` in the signature and `T` in
    the instance.

    Attributes:
        metavar: Stands for the value in the help, unless the field's option says otherwise.
        several: The option may be repeated.
    """

    metavar: ClassVar[str] = ""
    several: ClassVar[bool] = False
    name: str

    def __init__(self, default: T | G = _REQUIRED, option: Option | None = None) -> None:
        self.default = default
        self.option = option or Option(self.metavar)

    @classmethod
    def find_types(cls) -> tuple[Any, Any]:
        """Return the types `T` and `G` of a subclass."""
        base: Any = cls.__dict__.get("__orig_bases__", cls.__bases__)[0]
        value_type, input_type = get_args(base) if get_origin(base) is Field else base.find_types()
        return value_type, input_type

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, request: None, owner: type) -> Self: ...
    @overload
    def __get__(self, request: object, owner: type) -> T: ...
    def __get__(self, request: object | None, owner: type) -> Any:
        if request is not None:
            return request.__dict__[self.name]
        if self.default is _REQUIRED:
            raise AttributeError(self.name)
        return self.default

    def __set__(self, request: object, value: T | G) -> None:
        try:
            request.__dict__[self.name] = self.read(value)
        except BadSettings as error:
            raise BadSettings(f"{self.name}: {error.what}", fix=error.fix) from None

    @abstractmethod
    def read(self, value: Any) -> T:
        """Convert a value.

        Raises:
            BadSettings: It cannot be read.
        """

    def spell(self, value: T) -> Any:
        """Write a value as a settings file has it; None leaves it out."""
        return value


class Duration(Field[float, str]):
    """Seconds, or ``20ms``, ``90s``, ``3m``, ``1h30m``."""

    metavar = "DURATION"

    def read(self, value: Any) -> float:
        """Convert to seconds."""
        return _read_duration(value)

    def spell(self, value: float) -> str:
        """Write minutes where they are whole, and milliseconds below a second."""
        return _spell_duration(value)


class OptionalDuration(Field[float | None, str | None]):
    """A `Duration`, or nothing."""

    metavar = "DURATION"

    def read(self, value: Any) -> float | None:
        """Convert to seconds."""
        return None if value is None else _read_duration(value)

    def spell(self, value: float | None) -> str | None:
        """Write it as a `Duration` is written."""
        return None if value is None else _spell_duration(value)


class ByteSize(Field[int | None, str]):
    """Bytes, 1 or more, or ``500M``, ``4G`` in units of 1024."""

    metavar = "SIZE"

    def __init__(self, default: int | str | None) -> None:
        super().__init__(default, Option(self.metavar, low=1, high=_MOST_BYTES))

    def read(self, value: Any) -> int | None:
        """Convert to bytes."""
        if value is None:
            return None
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", str(value).strip().lower())
        size = float(match[1]) * 1024 ** " kmgt".index(match[2] or " ") if match else math.inf
        if size > _MOST_BYTES:
            raise BadSettings(f"cannot read the size '{value}'", fix="write 500M or 4G")
        return int(size)


class InputShapes(Field[Mapping[str, tuple[int, ...]], Sequence[str] | None]):
    """Input name -> shape, or texts such as ``x:1x3x320x320``; ``x:`` is a scalar."""

    metavar = "INPUT:DIMS"
    several = True

    def read(self, value: Any) -> Mapping[str, tuple[int, ...]]:
        """Convert to a mapping."""
        if isinstance(value, Mapping):
            Bounds().check({name: tuple(shape) for name, shape in value.items()})
            return {str(name): tuple(map(int, shape)) for name, shape in value.items()}
        return _collect_unique(map(self._read_shape, _list_texts(value)), "shape")

    def _read_shape(self, text: str) -> tuple[str, tuple[int, ...]]:
        name, sign, dims = text.rpartition(":")
        dim = rf"\d{{1,{_DIM_DIGITS}}}"
        if not name or not sign or not re.fullmatch(rf"({dim}(x{dim})*)?", dims):
            raise BadSettings(f"cannot read shape '{text}'", fix="write input:1x3x320x320")
        return name, tuple(int(dim) for dim in dims.split("x")) if dims else ()

    def spell(self, value: Mapping[str, tuple[int, ...]]) -> list[str]:
        """Write one text an input."""
        return [f"{name}:{'x'.join(map(str, shape))}" for name, shape in value.items()]


class InputRanges(Field[Mapping[str, tuple[float, float]], Sequence[str] | None]):
    """Input name -> (low, high), or texts such as ``ids:0..30521`` and ``rate:16000``."""

    metavar = "INPUT:LO..HI"
    several = True

    def read(self, value: Any) -> Mapping[str, tuple[float, float]]:
        """Convert to a mapping; both ends are included for integers."""
        if isinstance(value, Mapping):
            return {str(name): self._check_ends(*ends) for name, ends in value.items()}
        return _collect_unique(map(self._read_range, _list_texts(value)), "range")

    def _read_range(self, text: str) -> tuple[str, tuple[float, float]]:
        match = re.fullmatch(rf"(.+):({_NUMBER})(?:\.\.({_NUMBER}))?", text)
        if match is None:
            raise BadSettings(f"cannot read range '{text}'", fix="write input:0..30521")
        return match[1], self._check_ends(float(match[2]), float(match[3] or match[2]))

    def _check_ends(self, low: float, high: float) -> tuple[float, float]:
        ANY.check((low, high))
        if low > high:
            raise BadSettings(
                f"range '{low:g}..{high:g}' ends before it begins", fix="write low..high"
            )
        return low, high

    def spell(self, value: Mapping[str, tuple[float, float]]) -> list[str]:
        """Write one text an input."""
        return [f"{name}:{low!r}..{high!r}" for name, (low, high) in value.items()]


class Words(Field[tuple[str, ...], Sequence[str] | None]):
    """Texts, or one with commas."""

    metavar = "WORD,..."

    def read(self, value: Any) -> tuple[str, ...]:
        """Convert to a tuple."""
        return _split_words(value)

    def spell(self, value: tuple[str, ...]) -> str:
        """Write them with commas."""
        return ",".join(value)


class Counts(Field[tuple[int, ...], Sequence[int] | int | str | None]):
    """Whole numbers, one of them, or a text such as ``1,8``."""

    metavar = "N,..."

    def read(self, value: Any) -> tuple[int, ...]:
        """Convert to a tuple."""
        items = _split_words(str(value) if isinstance(value, int) else value)
        parts = [str(part) for part in items]
        for part in parts:
            if not re.fullmatch(rf"\d{{1,{_DIM_DIGITS}}}", part):
                raise BadSettings(f"'{part[:40]}' is not a number", fix="write 1,8")
        return tuple(map(int, parts))

    def spell(self, value: tuple[int, ...]) -> str:
        """Write them with commas."""
        return ",".join(map(str, value))


class Libraries(Field[tuple[str, ...], Sequence[str]]):
    """Shared libraries, or Python modules that give one; files by their absolute paths."""

    metavar = "LIB"
    several = True

    def read(self, value: Any) -> tuple[str, ...]:
        """Convert to a tuple."""
        texts = map(str, _list_texts(value))
        return tuple(str(Path(text).absolute()) if is_path(text) else text for text in texts)


def _read_duration(value: Any) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        total = float(value)
    else:
        match = len(str(value)) < 99 and re.fullmatch(_DURATION, str(value).strip())
        parts = match.groups() if match else ()
        total = sum(float(x or 0) * n for x, n in zip(parts, (3600, 60, 1e-3, 1), strict=False))
    if not 0 < total < math.inf:
        raise BadSettings(
            f"cannot read the duration '{value}'", fix="write 20ms, 60s, 3m or 1h30m"
        )
    return total


def _spell_duration(value: float) -> str:
    if value % 60 == 0:
        return f"{value / 60:g}m"
    return f"{1000 * value:g}ms" if value < 1 else f"{value:g}s"


def _list_texts(value: Any) -> tuple[Any, ...]:
    return () if value is None else (value,) if isinstance(value, str) else tuple(value)


def _split_words(value: Any) -> tuple[Any, ...]:
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return _list_texts(value)


def _collect_unique(pairs: Iterable[tuple[str, T]], noun: str) -> Mapping[str, T]:
    mapping: dict[str, T] = {}
    for name, value in pairs:
        if name in mapping:
            raise BadSettings(f"two {noun}s for input '{name}'", fix="give one")
        mapping[name] = value
    return mapping
