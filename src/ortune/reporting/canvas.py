"""What plots share: text as SVG, and places for names where nothing else is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TypeAlias

from ortune.reporting.axis import Axis

CHARACTER, LINE = 6.3, 14
"""Rough extent of a letter in px at the label's font size."""
_LONGEST = 44

Box: TypeAlias = tuple[float, float, float, float]
"""Left, top, right, bottom in px."""


@dataclass(frozen=True)
class Canvas:
    """The extent of a plot, and where its axes end, px."""

    width: int
    height: int
    left: int = 64

    @property
    def right(self) -> int:
        """End of the x axis."""
        return self.width - 24

    @property
    def top(self) -> int:
        """End of the y axis."""
        return 34

    @property
    def bottom(self) -> int:
        """Start of the y axis."""
        return self.height - 46

    @property
    def frame(self) -> Box:
        """What names stay inside of."""
        return (self.left, self.top - 12, self.width, self.bottom)

    @property
    def ticks(self) -> int:
        """About how many ticks the x axis has."""
        return max(4, self.width // 120)

    def plot(self, label: str, *parts: str) -> str:
        """Return a plot with axes; `label` tells those who do not see it."""
        name = escape(label, quote=True)
        size = f'viewBox="0 0 {self.width} {self.height}"'
        return "\n".join([f'<svg {size} role="img" aria-label="{name}">', *parts, "</svg>"])


WIDE, NARROW = Canvas(760, 400), Canvas(344, 300, left=60)
"""For a page, and for a phone: the same letters on both."""


def text(x: float, y: float, words: str, kind: str) -> str:
    """Write escaped text at a place."""
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{escape(words)}</text>'


def grid(x: Axis, y: Axis, x_label: str, y_label: str, ticks: int = 6) -> list[str]:
    """Draw grid lines, ticks, both axes and their titles. `y` runs upwards."""
    left, right, top, bottom = x.start, x.stop, y.stop, y.start
    parts = []
    for value in x.ticks(ticks):
        at = x.at(value)
        parts.append(f'<path class="grid" d="M{at:.1f} {top}V{bottom}"/>')
        parts.append(text(at, bottom + 18, x.tick(value), "tick middle"))
    for value in y.ticks():
        at = y.at(value)
        parts.append(f'<path class="grid" d="M{left} {at:.1f}H{right}"/>')
        parts.append(text(left - 8, at + 4, y.tick(value), "tick end"))
    parts.append(f'<path class="axis" d="M{left} {top}V{bottom}H{right}"/>')
    parts.append(text((left + right) / 2, bottom + 40, x_label, "title middle"))
    parts.append(text(8, 16, shortened(y_label, int(right / 7)), "title"))
    return parts


def along(one: tuple[float, float], two: tuple[float, float]) -> list[Box]:
    """Return small boxes on a straight line, so that no name is crossed out by it."""
    count = max(1, int(math.dist(one, two) / 8))
    shares = [step / count for step in range(1, count)]
    places = [(one[0] + s * (two[0] - one[0]), one[1] + s * (two[1] - one[1])) for s in shares]
    return [(x - 1.0, y - 1.0, x + 1.0, y + 1.0) for x, y in places]


def spots(x: float, y: float, width: float) -> list[Box]:
    """Return places for a name around a point, the best first."""
    sides = (x + 11, x - 11 - width)
    places = [(side, y) for side in sides]
    for step in (17, 30, 43):
        places += [(left, y + d) for d in (-step, step) for left in (*sides, x - width / 2)]
    return [(left, mid - LINE / 2, left + width, mid + LINE / 2) for left, mid in places]


def free(places: Sequence[Box], taken: Sequence[Box], frame: Box) -> Box | None:
    """Return the first place inside the frame that overlaps nothing taken."""
    fit = (box for box in places if _inside(box, frame))
    return next((box for box in fit if not any(_overlap(box, t) for t in taken)), None)


def named(
    marks: Sequence[tuple[float, float, str]], lines: Sequence[Box], canvas: Canvas, most: int
) -> list[str]:
    """Name marks in their order where there is room, each name once, off the lines if possible.

    Args:
        marks: Place in px and name; one without a name only takes its room.
        lines: Boxes along the lines.
    """
    taken = [(x - 7.0, y - 7.0, x + 7.0, y + 7.0) for x, y, _ in marks]
    parts: list[str] = []
    written = {""}
    frame, longest = canvas.frame, min(_LONGEST, canvas.width // 14)
    for x, y, label in marks:
        name = shortened(label.splitlines()[0] if label else "", longest)
        if name in written or len(parts) == most:
            continue
        places = spots(x, y, len(name) * CHARACTER)
        box = free(places, [*taken, *lines], frame) or free(places, taken, frame)
        if box is not None:
            taken.append(box)
            written.add(name)
            parts.append(text(box[0], box[1] + LINE / 2 + 4, name, "label"))
    return parts


def shortened(words: str, longest: int = _LONGEST) -> str:
    """Cut a label to a length."""
    return words if len(words) <= longest else words[: longest - 1] + "…"


def middle_cut(words: str, longest: int) -> str:
    """Cut a label in its middle: paths differ at their ends."""
    if len(words) <= longest:
        return words
    tail = 2 * longest // 3
    return f"{words[: longest - tail - 1]}…{words[len(words) - tail :]}"


def _inside(box: Box, frame: Box) -> bool:
    left, top, right, bottom = box
    return left > frame[0] and top > frame[1] and right < frame[2] and bottom < frame[3]


def _overlap(one: Box, two: Box) -> bool:
    return one[0] < two[2] and two[0] < one[2] and one[1] < two[3] and two[1] < one[3]
