"""Following a `fix:`: what it says is taken out of its text and done, and something changes."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

import pytest

from ortune.cli.main import main
from ortune.core.errors import OrtuneError


class Room(NamedTuple):
    """Where a situation is."""

    folder: Path
    patch: pytest.MonkeyPatch

    def write(self, name: str, content: str | bytes = "") -> Path:
        """Write a file, and the folders above it."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path


Act = Callable[[], object]
Situation = Callable[[Room], AbstractContextManager[tuple[Act, Act]]]


class Value(NamedTuple):
    """A fix that says what to write: all that it names is taken from its text and written.

    Attributes:
        act: Does it with a text in the place of what is wrong.
        wrong: What is refused.
        said: Pattern of a text to write, group 1 where it has one.
        then: Pattern of what may be amiss next.
    """

    act: Callable[[Room, str], object]
    wrong: str
    said: str
    then: str = ""


def end_at(said: str, act: Act) -> Act:
    """Return an act that ends at the next thing amiss."""

    def check() -> None:
        with pytest.raises(OrtuneError, match=said):
            act()

    return check


def refuse(act: Act) -> OrtuneError:
    """Return what an act is refused with."""
    with pytest.raises(OrtuneError) as caught:
        act()
    return caught.value


def follow_value(value: Value, room: Room) -> None:
    """Do what is refused, then what its fix says, with every text that the fix names."""
    error = refuse(lambda: value.act(room, value.wrong))
    told = list(dict.fromkeys(re.findall(value.said, error.fix)))
    assert told and value.wrong not in told, error.fix
    for text in told:
        try:
            value.act(room, text)
        except OrtuneError as later:
            assert value.then and re.search(value.then, later.what), later


def add_situation(
    situations: dict[str, tuple[str, Situation]], said: str
) -> Callable[[Callable[[Room], Iterator[tuple[Act, Act]]]], None]:
    """Register a situation: it yields what is refused, and what its fix says to do.

    Args:
        said: Pattern of the fix.
    """

    def register(make: Callable[[Room], Iterator[tuple[Act, Act]]]) -> None:
        situations[make.__name__] = (said, contextmanager(make))

    return register


def follow_situation(situation: tuple[str, Situation], room: Room) -> None:
    """Do what is refused, then what its fix says."""
    said, make = situation
    with make(room) as (refused, followed):
        error = refuse(refused)
        assert re.search(said, error.fix), error.fix
        followed()


def run(*words: object) -> tuple[int, str, str]:
    """Run a command; return its exit code, what is amiss and what to do about it."""
    with redirect_stderr(io.StringIO()) as said, redirect_stdout(io.StringIO()):
        code = main([str(word) for word in words])
    what, _, fix = said.getvalue().rpartition("  fix: ")
    return code, what.strip().rpartition("\n")[2], fix.removesuffix("\n")


def demand(*words: object) -> None:
    """Run a command and raise what is amiss."""
    code, what, fix = run(*words)
    if code:
        raise OrtuneError(what, fix=fix)
