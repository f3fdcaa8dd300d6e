"""The table of what builders bring to a search."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.tables.markdown import table

_SHOWN = (0, 1, 4, 64)


def fleet(result: Mapping[str, Any]) -> str:
    """Return a row a number of builders."""
    rows = [
        [
            f"{row['builders']}" + f", one build in {row['lost']} lost" * bool(row["lost"]),
            f"{row['near_s']:.1f} s",
            f"{100 * row['building']:.1f} %",
            f"{row['tried']:.1f}",
        ]
        for row in result["rows"]
        if row["builders"] in _SHOWN
    ]
    reached = (
        f"median of the {result['rows'][0]['reached']} of {len(result['tables'])} that get there"
    )
    head = (
        "builders",
        f"to within 2 % of the best, {reached}",
        "waiting for builds",
        "plans tried",
    )
    return table(head, rows)
