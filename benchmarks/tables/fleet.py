"""The table and the picture of what builders bring to a search."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from benchmarks.tables.markdown import table

_WIDE, _HIGH, _MARGIN = 360, 180, 50
"""Of the picture's plot, in pixels, and of what is left free around it."""


def fleet(result: Mapping[str, Any]) -> str:
    """Return a row a number of builders, and what a fleet of models costs."""
    rows = [
        [
            f"{row['builders']}" + f", one build in {row['lost']} lost" * bool(row["lost"]),
            f"{row['near_s']:.1f} s",
            f"{100 * row['building']:.1f} %",
            f"{row['tried']:.1f}",
            f"{row['regret']:.3f}",
        ]
        for row in result["rows"]
    ]
    reached = (
        f"median of the {result['rows'][0]['reached']} of {len(result['tables'])} that get there"
    )
    head = (
        "builders",
        f"to within 2 % of the best, {reached}",
        "waiting for builds",
        "plans tried",
        "regret",
    )
    about, hours = result["fleet"], result["fleet"]["hours"]
    cost = "; ".join(
        f"{count} of each: {one['whole']:.0f} h, or {one['near']:.0f} h to within 2 %"
        for count, one in hours.items()
    )
    text = (
        f"{about['models']:,} models on {about['kinds']} kinds of device, "
        f"{result['seconds']:.0f} s a search, the kinds beside each other, by devices {cost}."
    )
    return f"{table(head, rows)}\n\n![Seconds against builders](fleet.svg)\n\n{text}"


def draw_fleet(result: Mapping[str, Any]) -> str:
    """Return an SVG: seconds to within 2 % of the best against builders, on a log scale."""
    rows = [row for row in result["rows"] if not row["lost"]]
    top, last = 1.2 * max(row["near_s"] for row in rows), math.log2(1 + rows[-1]["builders"])

    def place(builders: int, seconds: float) -> tuple[float, float]:
        x = _MARGIN + math.log2(1 + builders) / last * _WIDE
        return x, _MARGIN + _HIGH * (1 - seconds / top)

    def write(x: float, y: float, text: str, anchor: str = "middle") -> str:
        return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{text}</text>'

    parts = [write(_MARGIN, _MARGIN - 20, "seconds to within 2 % of the best", "start")]
    for seconds in range(0, int(top) + 1, 10):
        (x, y), (right, _) = place(0, seconds), place(rows[-1]["builders"], seconds)
        parts.append(f'<path class="grid" d="M{x:.1f} {y:.1f}H{right:.1f}"/>')
        parts.append(write(x - 6, y + 4, str(seconds), "end"))
    bottom = _MARGIN + _HIGH + 18
    parts += (write(place(row["builders"], 0)[0], bottom, str(row["builders"])) for row in rows)
    parts.append(write(_MARGIN + _WIDE / 2, _MARGIN + _HIGH + 38, "builders"))
    points = " ".join(
        "{:.1f},{:.1f}".format(*place(row["builders"], row["near_s"])) for row in rows
    )
    parts.append(f'<polyline points="{points}"/>')
    width, height = _WIDE + 2 * _MARGIN, _HIGH + 2 * _MARGIN
    style = (
        "polyline{fill:none;stroke:#36c;stroke-width:2} .grid{stroke:#ddd} "
        "text{font:11px sans-serif}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}">'
        f'<style>{style}</style><rect width="100%" height="100%" fill="#fff"/>'
        f"{''.join(parts)}</svg>\n"
    )
