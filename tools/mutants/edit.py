"""One edit of a module's text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """One edit of one module.

    Attributes:
        path: The module's file.
        where: Qualified name of the function or class that holds it; empty at module level.
        line: First changed line, from 1.
        span: First and last byte that are replaced, the last one excluded.
        text: What is put there.
        was: The changed lines before, blanks joined.
        becomes: The same after.
    """

    path: str
    where: str
    line: int
    span: tuple[int, int]
    text: str
    was: str = ""
    becomes: str = ""

    def apply(self, source: bytes) -> bytes:
        """Return the changed source."""
        return source[: self.span[0]] + self.text.encode() + source[self.span[1] :]


def slice_text(source: bytes, begin: int, end: int) -> str:
    """Return part of a source as text."""
    return source[begin:end].decode()


def joined(text: str) -> str:
    """Return a text in one line."""
    return " ".join(text.split())


def lines_of(mutant: Mutant, source: bytes) -> Iterator[int]:
    """Yield the lines that an edit touches, from 1."""
    last = mutant.line + source[mutant.span[0] : mutant.span[1]].count(b"\n")
    yield from range(mutant.line, last + 1)
