"""What is mutated and which tests are near: `modules.toml`, `hand.toml`, `accepted.toml`."""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tools.mutants.edit import Mutant, joined
from tools.mutants.operators import mutants

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
SOURCES = "src/ortune"


@dataclass(frozen=True)
class Module:
    """One module that decides.

    Attributes:
        path: Below src/ortune.
        tests: Files and folders of near tests, seconds in all.
        skip: Functions and classes that only show or describe.
        why: Reason for leaving those out.
    """

    path: str
    tests: tuple[str, ...]
    skip: tuple[str, ...] = ()
    why: str = ""

    def source(self, root: Path = ROOT) -> bytes:
        """Return its text."""
        return (root / SOURCES / self.path).read_bytes()

    def source_digest(self) -> str:
        """Digest what makes its edits: the module and the operators."""
        made_by = self.source(), (HERE / "operators.py").read_bytes()
        return digest(self.path, repr(self.skip), *(text.decode() for text in made_by))

    def digest(self) -> str:
        """Digest what the outcome depends on: the module, its near tests, the operators."""
        files = [ROOT / SOURCES / self.path, HERE / "operators.py"]
        for name in self.tests:
            found = ROOT / name
            files += sorted(found.rglob("*.py")) if found.is_dir() else [found]
        return digest(repr(self), *(file.read_text(encoding="utf-8") for file in files))


@dataclass(frozen=True)
class Accepted:
    """Edits that no test can or need notice.

    Attributes:
        where: Qualified name of the function or class; empty at module level.
        was: The changed lines, blanks joined.
        becomes: The lines after; empty for every edit of these lines.
        why: The reason.
    """

    path: str
    where: str
    was: str
    why: str
    becomes: str = ""

    def matches(self, path: str, where: str, was: str, becomes: str) -> bool:
        """Say whether this edit is meant."""
        same = (self.path, self.where, self.was) == (path, where, was)
        return same and self.becomes in ("", becomes)


@cache
def edits(module: Module) -> list[Mutant]:
    """Return a module's edits."""
    return mutants(module.path, module.source(), module.skip)


def digest(*texts: str) -> str:
    """Digest texts."""
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]


def modules() -> list[Module]:
    """Return the modules that decide."""
    return [Module(**_tuples(one)) for one in _read("modules")["module"]]


@cache
def accepted() -> list[Accepted]:
    """Return the survivors that are known, with their reasons."""
    return [Accepted(**one) for one in _read("accepted").get("survivor", [])]


def by_hand() -> Iterator[tuple[str, Mutant]]:
    """Yield the named mutations: name and edit.

    Raises:
        ValueError: A text does not occur exactly once in its module.
    """
    for one in _read("hand")["mutation"]:
        path, find, put = one["path"], one["find"], one["put"]
        source = (ROOT / SOURCES / path).read_bytes()
        if source.count(find.encode()) != 1:
            raise ValueError(f"{one['name']}: not exactly once in {path}: {find!r}")
        begin = source.index(find.encode())
        line = source[:begin].count(b"\n") + 1
        span = (begin, begin + len(find.encode()))
        yield one["name"], Mutant(path, one["name"], line, span, put, joined(find), joined(put))


def _read(name: str) -> dict[str, Any]:
    return tomllib.loads((HERE / f"{name}.toml").read_text(encoding="utf-8"))


def _tuples(one: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(v) if isinstance(v, list) else v for key, v in one.items()}
