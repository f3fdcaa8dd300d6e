"""Replays a transcript of an API: calls come in its order with its arguments, or they fail.

A transcript is text. A line is a call, a property that is read or a property that is set, as the
program would write it, and what comes back::

    builder.create_network(2) -> network
    network.num_inputs -> 1
    config.builder_optimization_level = 3
    cudart.cudaMemcpyAsync(4096, HOST, 32, cudaMemcpyHostToDevice, 77) -> 0; reads x

A name that comes back is an object. ``; reads x`` compares the host's memory with an array of the
recording, ``; writes y`` fills it. A line that begins with ``*`` may come at any time, any number
of times. Every line is held to the signatures that NVIDIA's own bindings give, so a transcript
cannot invent a method, an argument or an enum's value.
"""

from __future__ import annotations

import ast
import ctypes
import enum
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

TRANSCRIPT = "ORTUNE_TRANSCRIPT"
"""Environment variable: the transcript; an ``.npz`` beside it has the arrays.

Of several, each process takes the first that no process has taken before it, and leaves the lines
that never came in a ``.rest`` beside it.
"""
API = "ORTUNE_TRANSCRIPT_API"
"""Which TensorRT's signatures hold, such as 10.16."""
_HOST = 1 << 40
"""Addresses from here on are the host's own; a transcript's device has lower ones."""
_LINE = re.compile(
    r"(?P<call>.+?)(?: -> (?P<gives>.+?))?(?:; (?P<verb>reads|writes) (?P<array>\w+))?"
)
_MEMBER = re.compile(
    r"(?P<owner>\w+)(?:\.(?P<name>\w+))?(?:\((?P<arguments>.*)\) -> (?P<gives>\w+))?"
)


class Unrecorded(AssertionError):
    """The program did something that the transcript does not have there."""


@dataclass(frozen=True)
class Signature:
    """One overload: names of arguments, how many must be given, what comes back."""

    arguments: tuple[str, ...]
    needed: int
    gives: str


class Surface:
    """What an API has: its version, its classes, functions and enums."""

    def __init__(self, path: Path) -> None:
        self.methods: dict[str, list[Signature]] = {}
        self.properties: set[str] = set()
        self.enums: dict[str, dict[str, int]] = {}
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.startswith("version "):
                self.version = line.removeprefix("version ")
            elif " = " in line:
                name, _, value = line.partition(" = ")
                owner, _, member = name.partition(".")
                self.enums.setdefault(owner, {})[member] = int(value)
            else:
                self._member(line)

    def _member(self, line: str) -> None:
        found = _MEMBER.fullmatch(line)
        assert found is not None, line
        name = found["owner"] + (f".{found['name']}" if found["name"] else "")
        if found["gives"] is None:
            self.properties.add(name)
            return
        words = tuple(one for one in found["arguments"].split(", ") if one)
        needed = sum(not one.endswith("=") for one in words)
        plain = tuple(one.rstrip("=") for one in words)
        self.methods.setdefault(name, []).append(Signature(plain, needed, found["gives"]))

    def demand(self, name: str, count: int) -> Signature:
        """Return the overload that takes so many arguments.

        Raises:
            Unrecorded: The API has none.
        """
        for one in self.methods.get(name, ()):
            if one.needed <= count <= len(one.arguments):
                return one
        raise Unrecorded(f"{self.version} has no {name} of {count} arguments")


@cache
def surface(name: str) -> Surface:
    """Return the recorded signatures of a package."""
    return Surface(Path(__file__).parent / "signatures" / f"{name}.txt")


@cache
def enums(name: str) -> dict[str, type[enum.IntEnum]]:
    """Return the enums of a package as they are there: numbers with names."""
    found = surface(name).enums
    return {one: enum.IntEnum(one, values) for one, values in found.items()}  # type: ignore[misc]


class Transcript:
    """The lines that are still to come."""

    def __init__(self, path: Path) -> None:
        text = path.read_text(encoding="utf-8")
        lines = [line.strip() for line in text.splitlines()]
        kept = [line for line in lines if line and not line.startswith("#")]
        self._always = [line[1:].strip() for line in kept if line.startswith("*")]
        self._next = [line for line in kept if not line.startswith("*")]
        self._arrays, self._rest = path.with_suffix(".npz"), path.with_suffix(".rest")

    def take(self, call: str, *host: int) -> str:
        """Return what comes back for a call, as it is written.

        Args:
            call: As a line has it.
            host: Addresses of the host's memory that the call is about.

        Raises:
            Unrecorded: Another line is next.
        """
        for line in (*self._next[:1], *self._always):
            found = _LINE.fullmatch(line)
            assert found is not None, line
            if found["call"] == call:
                if line in self._next[:1]:
                    del self._next[0]
                    self._rest.write_text("\n".join(self._next), encoding="utf-8")
                if found["verb"]:
                    self._move(found["verb"], found["array"], host[0])
                return found["gives"] or "None"
        raise Unrecorded(f"{call}\n  is not what comes next: {(*self._next[:1], 'the end')[0]}")

    def done(self) -> list[str]:
        """Return the lines that never came."""
        return list(self._next)

    def _move(self, verb: str, name: str, address: int) -> None:
        with np.load(self._arrays) as arrays:
            array = np.ascontiguousarray(arrays[name])
        if verb == "writes":
            ctypes.memmove(address, array.ctypes.data, array.nbytes)
        elif ctypes.string_at(address, array.nbytes) != array.tobytes():
            raise Unrecorded(f"what is copied to the device is not {name}")


@cache
def transcript() -> Transcript:
    """Return the transcript of this process."""
    for text in os.environ[TRANSCRIPT].split(os.pathsep):
        with suppress(FileExistsError):
            Path(text).with_suffix(".rest").touch(exist_ok=False)
            return Transcript(Path(text))
    raise Unrecorded("one process more than there are transcripts")


def api() -> str:
    """Return the name of TensorRT's signatures."""
    return f"tensorrt-{os.environ.get(API, '10.16')}"


class Recorded:
    """An object of the API, by the name that the transcript gives it."""

    def __init__(self, label: str, kind: str, package: str) -> None:
        self.__dict__.update(_label=label, _kind=kind, _package=package)

    def __getattr__(self, name: str) -> Any:
        known, member = surface(self._package), f"{self._kind}.{name}"
        if member in known.properties:
            return value(transcript().take(f"{self._label}.{name}"), "", self._package)
        if member in known.methods:
            return lambda *given: call(f"{self._label}.{name}", member, given, self._package)
        raise Unrecorded(f"{known.version} has no {member}")

    def __setattr__(self, name: str, given: Any) -> None:
        known, member = surface(self._package), f"{self._kind}.{name}"
        if member not in known.properties:
            raise Unrecorded(f"{known.version} has no property {member}")
        transcript().take(f"{self._label}.{name} = {shown(given)}")

    def __bytes__(self) -> bytes:
        found: bytes = ast.literal_eval(transcript().take(f"bytes({self._label})"))
        return found


def call(written: str, member: str, given: tuple[Any, ...], package: str) -> Any:
    """Make one call: its name and count of arguments are the API's, the rest the transcript's."""
    signature = surface(package).demand(member, len(given))
    host = [one for one in given if isinstance(one, int) and one >= _HOST]
    back = transcript().take(f"{written}({', '.join(map(shown, given))})", *host)
    return value(back, signature.gives, package)


def shown(given: Any) -> str:
    """Write an argument as a transcript has it."""
    if isinstance(given, Recorded):
        return str(given._label)
    if isinstance(given, enum.Enum):
        return f"{type(given).__name__}.{given.name}"
    if hasattr(given, "errors"):
        return "logger"
    if hasattr(given, "notify_shape"):
        return "allocator"
    if isinstance(given, int) and given >= _HOST:
        return "HOST"
    if isinstance(given, str) and "/" in given:
        return repr(Path(given).name)
    return repr(given)


def value(text: str, kind: str, package: str) -> Any:
    """Read what came back: a value, an enum's member, or an object of the signature's class."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        pass
    owner, _, member = text.partition(".")
    if member:
        return enums(package)[owner][member]
    return Recorded(text, {"IParserError": "ParserError"}.get(kind, kind), package)
