"""The table of what was attacked."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.attacks import PROMISES
from benchmarks.tables.markdown import table


def attacks(result: Mapping[str, Mapping[str, int]]) -> str:
    """Return a row a promise: how it is attacked, how often, and how often that was survived."""
    rows = [
        (
            promise.promise,
            promise.attack,
            *((result[name]["tried"], result[name]["survived"]) if name in result else ("", "")),
            f"`{name}`",
        )
        for name, promise in PROMISES.items()
    ]
    return table(("promise", "attacked by", "tried>", "survived>", "NAME"), rows)
