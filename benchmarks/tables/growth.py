"""The table and the picture of how the time of verbs grows with the nodes of a model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

_VERBS = ("inspect", "simplify", "diff")
_LEAST_S = 0.7
"""Seconds of processor time by which a command's start varies from run to run, about."""
_WIDE, _HIGH, _MARGIN = 260, 260, 40
"""Of a panel of the picture, in pixels, and of what is left free around it."""


def growth(result: Mapping[str, Any]) -> str:
    """Return the kinds of graphs that are the worst of all in a column, and how many are not.

    A row has the largest size, the seconds of each verb there, and an exponent; kinds are compared
    with those of the same largest size.
    The exponent is the largest of the verbs': of the time without the command's start, which the
    smallest size tells, between the two largest sizes; of verbs alone that take longer at the
    smaller than what the start varies by.
    """
    lines = [
        "| kind of graph | nodes | `inspect` | `apply simplify` | `diff` | time grows as nodes^ |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    rows: dict[str, tuple[int, tuple[float, ...], str]] = {}
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
            if sizes[many][verb] is not None and _net(sizes, few, start, verb) >= _LEAST_S
        ]
        shown = f"{max(exponents):.2f}" if exponents else ""
        figures = (
            *(math.inf if sizes[many][verb] is None else sizes[many][verb] for verb in _VERBS),
            max(exponents, default=0.0),
        )
        line = f"| {kind} | {int(many):,} | {' | '.join(cells)} | {shown} |"
        rows[kind] = (int(many), figures, line)
    worst = {
        max(
            (kind for kind in rows if rows[kind][0] == size),
            key=lambda kind: rows[kind][1][column],
        )
        for size in {size for size, _, _ in rows.values()}
        for column in range(len(_VERBS) + 1)
    }
    lines += [line for kind, (_, _, line) in rows.items() if kind in worst]
    said = f"The worst of {len(rows)} kinds of graphs in each column."
    return "\n".join(["![Processor time against nodes](growth.svg)", "", *lines, "", said])


def draw_growth(result: Mapping[str, Any]) -> str:
    """Return an SVG: a panel a verb, a line a kind of graph, and n log n as a dashed line.

    Both axes are logarithmic; the time of the command's start is left out.
    """
    sizes = sorted({int(size) for kind in result["kinds"].values() for size in kind})[1:]
    left, right = math.log(sizes[0]), math.log(sizes[-1])
    bottom, top = math.log(0.1), math.log(1000)

    def place(panel: int, nodes: float, seconds: float) -> str:
        across = (math.log(nodes) - left) / (right - left)
        up = (math.log(max(0.1, seconds)) - bottom) / (top - bottom)
        x = _MARGIN + panel * (_WIDE + _MARGIN) + across * _WIDE
        return f"{x:.1f},{_MARGIN + _HIGH - up * _HIGH:.1f}"

    def write(panel: int, nodes: float, seconds: float, text: str, anchor: str = "middle") -> str:
        x, y = place(panel, nodes, seconds).split(",")
        return f'<text x="{x}" y="{y}" dy="14" text-anchor="{anchor}">{text}</text>'

    parts = []
    for panel, verb in enumerate(_VERBS):
        parts.append(write(panel, sizes[0], 2500, verb, "start"))
        parts += (write(panel, size, 0.1, f"{size // 1000}k") for size in sizes)
        for seconds in (0.1, 1, 10, 100, 1000):
            ends = f"{place(panel, sizes[0], seconds)} {place(panel, sizes[-1], seconds)}"
            parts.append(f'<polyline class="grid" points="{ends}"/>')
            parts.append(write(panel, sizes[0], seconds * 1.3, f"{seconds:g} s", "end"))
        steady = [place(panel, n, n * math.log(n) / (sizes[0] * left)) for n in sizes]
        parts.append(f'<polyline class="steady" points="{" ".join(steady)}"/>')
        for kind, cells in result["kinds"].items():
            start, *measured = cells
            points = [
                place(panel, int(size), _net(cells, size, start, verb))
                for size in measured
                if cells[size][verb] is not None
            ]
            parts.append(f'<polyline points="{" ".join(points)}"><title>{kind}</title></polyline>')
    width, height = 3 * (_WIDE + _MARGIN) + _MARGIN, _HIGH + 2 * _MARGIN
    style = (
        "polyline{fill:none;stroke:#36c;stroke-opacity:.5} .grid{stroke:#ddd;stroke-opacity:1} "
        ".steady{stroke:#000;stroke-dasharray:5} text{font:11px sans-serif}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}">'
        f'<style>{style}</style><rect width="100%" height="100%" fill="#fff"/>'
        f"{''.join(parts)}</svg>\n"
    )


def _net(sizes: Mapping[str, Mapping[str, float]], size: str, start: str, verb: str) -> float:
    return max(0.01, sizes[size][verb] - sizes[start][verb])
