"""The table of what was attacked."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.attacks import PROMISES
from benchmarks.tables.markdown import table


def attacks(result: Mapping[str, Mapping[str, int]]) -> str:
    """Return a row a promise: how many attacks were tried on it and how many were survived."""
    rows = [
        (
            promise.promise,
            "{survived} of {tried}".format(**result[name]) if name in result else "not recorded",
            f"`{name}`",
        )
        for name, promise in PROMISES.items()
    ]
    return table(("promise", "attacks survived", "NAME"), rows)
