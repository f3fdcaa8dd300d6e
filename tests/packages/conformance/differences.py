"""Where ours answers otherwise than Triton 2.51, each with its reason; the rest is equal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from tests.packages.conformance.asking import Answer, fields


@dataclass(frozen=True)
class Difference:
    """Fields of cases that may differ.

    Attributes:
        cases: Pattern of their names.
        fields: Pattern of the fields' paths.
        reason: Why ours is as it is.
    """

    cases: str
    fields: str
    reason: str


DIFFERENCES = (
    Difference("*", "*error", "the wording of errors is ours; status and code are compared"),
)


@dataclass(frozen=True)
class Unlike:
    """One field in which two answers differ; None is a field that one of them has not."""

    case: str
    field: str
    ours: Any
    theirs: Any

    def listed(self) -> Difference | None:
        """Return the entry of the list that covers it."""
        for one in DIFFERENCES:
            if fnmatchcase(self.case, one.cases) and fnmatchcase(self.field, one.fields):
                return one
        return None


def unlike(case: str, ours: Answer, theirs: Answer) -> Iterator[Unlike]:
    """Yield the fields in which two answers to one request differ.

    Numbers agree when they are the same float32, which is what JSON carries of most.
    """
    mine, real = dict(fields(ours)), dict(fields(theirs))
    for field in sorted(mine.keys() | real.keys()):
        if field not in mine or field not in real or not _same(mine[field], real[field]):
            yield Unlike(case, field, mine.get(field), real.get(field))


def _same(one: Any, other: Any) -> bool:
    numbers = isinstance(one, int | float) and isinstance(other, int | float)
    if numbers and (isinstance(one, float) or isinstance(other, float)):
        with np.errstate(over="ignore"):
            return bool(np.float32(one) == np.float32(other))
    return type(one) is type(other) and bool(one == other)


def said(error: Any) -> bool:
    """Whether an error says something in one clean line of a person's words."""
    return isinstance(error, str) and bool(error.strip()) and "Traceback" not in error


def table(found: Mapping[Difference, int]) -> str:
    """Return the list as the documentation shows it."""
    lines = ["| requests | fields | why |", "|---|---|---|"]
    lines += [f"| `{d.cases}` | `{d.fields}` | {d.reason} |" for d in found]
    return "\n".join(lines)
