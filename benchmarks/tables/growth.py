"""The table of how the time of verbs grows with the nodes of a model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

_VERBS = ("inspect", "simplify", "diff")


def growth(result: Mapping[str, Any]) -> str:
    """Return a row a kind of graph: its largest size, seconds of each verb, and an exponent.

    The exponent is the largest of the verbs': of the time without the command's start, which the
    smallest size tells, between the two largest sizes.
    """
    lines = [
        "| kind of graph | nodes | `inspect` | `apply simplify` | `diff` | time grows as nodes^ |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for kind, sizes in result["kinds"].items():
        start, *_, few, many = sizes
        cells = [
            "over the limit" if sizes[many][verb] is None else f"{sizes[many][verb]:.1f} s"
            for verb in _VERBS
        ]
        exponents = [
            math.log(_net(sizes, many, start, verb) / _net(sizes, few, start, verb))
            / math.log(int(many) / int(few))
            for verb in _VERBS
            if sizes[many][verb] is not None
        ]
        shown = f"{max(exponents):.2f}" if exponents else ""
        lines.append(f"| {kind} | {int(many):,} | {' | '.join(cells)} | {shown} |")
    return "\n".join(lines)


def _net(sizes: Mapping[str, Mapping[str, float]], size: str, start: str, verb: str) -> float:
    return max(0.01, sizes[size][verb] - sizes[start][verb])
