"""Report sections turn a study into blocks; writers turn blocks into a format."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

from ortune.core.plugins.plugin import Plugin
from ortune.core.study import Study


@dataclass(frozen=True)
class Heading:
    """A title; what stands under a folded one, down to the next, is shown on demand."""

    text: str
    folded: bool = False


@dataclass(frozen=True)
class Text:
    """A paragraph.

    Attributes:
        tone: One of plain, good, warn, code.
        links: Words of the text and the name of the section that they lead to on a page.
    """

    text: str
    tone: str = "plain"
    links: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Table:
    """Columns and rows of text. `marks` gives a row's tone: win, lose or empty."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    marks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Point:
    """One mark of a scatter plot.

    Attributes:
        x: Its place.
        y: Its place.
        label: Its name.
        tone: win, lose, original, or empty.
        x_span: Ends of its error bar along x; None draws none.
        y_span: Ends of its error bar along y.
        size: MB, for the area of the mark; None where all marks are alike.
    """

    x: float
    y: float
    label: str
    tone: str = ""
    x_span: tuple[float, float] | None = None
    y_span: tuple[float, float] | None = None
    size: float | None = None


@dataclass(frozen=True)
class Limit:
    """A line across a plot, and the side of it that fails.

    Attributes:
        y: Where it stands.
        label: What it is, written beside it.
        fails_below: Whether what is below it fails; else what is above.
    """

    y: float
    label: str
    fails_below: bool


@dataclass(frozen=True)
class Scatter:
    """A scatter plot; points joined by the front are given in order.

    Attributes:
        x_label: Quantity and unit.
        y_label: Quantity and unit.
        points: In any order.
        front: Indices of points.
        legend: Tone -> its meaning, ``other`` of points without one; that of plans if empty.
        named: Indices of points to name beside the winner.
        limit: What is asked of y; None where nothing is.
        log_x: Logarithmic x axis; every x is above zero.
    """

    x_label: str
    y_label: str
    points: tuple[Point, ...]
    front: tuple[int, ...] = ()
    legend: tuple[tuple[str, str], ...] = ()
    named: tuple[int, ...] = ()
    limit: Limit | None = None
    log_x: bool = False


@dataclass(frozen=True)
class Bar:
    """One row of a bar chart.

    Attributes:
        label: What it stands for.
        parts: Lengths of its stacked segments, none negative, in the chart's unit.
        note: Written behind the bar, such as ``1.20 ms, 34 %``.
        tone: win, lose, or empty: of a bar of one segment.
    """

    label: str
    parts: tuple[float, ...]
    note: str = ""
    tone: str = ""


@dataclass(frozen=True)
class Bars:
    """Horizontal bars from zero, first bar on top; with several segments they are stacked.

    Attributes:
        unit: What the lengths are, such as ``ms a run``.
        bars: At most some thirty.
        segments: Names of the segments, the same for all bars; one needs no name.
        stacked: Segments end to end; else each starts at zero, one under the other.
    """

    unit: str
    bars: tuple[Bar, ...]
    segments: tuple[str, ...] = ("",)
    stacked: bool = True


@dataclass(frozen=True)
class Estimate:
    """One row of a plot of intervals.

    Attributes:
        label: What it stands for.
        value: The estimate; NaN draws none.
        low: End of its interval; with `high` equal to the value draws none.
        high: The other end.
        figure: The estimate in words, written behind the row.
        note: What else there is to know, in a few words.
        tone: win, lose, original, open (not confirmed), or empty (confirmed).
    """

    label: str
    value: float
    low: float
    high: float
    figure: str
    note: str = ""
    tone: str = ""


@dataclass(frozen=True)
class Intervals:
    """Estimates with their intervals beside a line that they are compared with, first on top.

    Attributes:
        title: Of the rows.
        unit: What the values are, such as ``speed-up``; the axis is logarithmic.
        rows: The estimates, all values above zero.
        legend: Tone -> its meaning.
        reference: Where the line stands.
    """

    title: str
    unit: str
    rows: tuple[Estimate, ...]
    legend: tuple[tuple[str, str], ...]
    reference: float = 1.0


@dataclass(frozen=True)
class Line:
    """One series of a line chart, its points in order of x.

    Attributes:
        name: In the legend.
        points: (x, y); on a logarithmic axis above zero.
        tone: win, lose, original, roof (a limit drawn in the ink's colour), or empty for the next
            colour.
        filled: The area under it is tinted.
    """

    name: str
    points: tuple[tuple[float, float], ...]
    tone: str = ""
    filled: bool = False


@dataclass(frozen=True)
class Lines:
    """Series against a common x, straight between their points, with marked points over them.

    Attributes:
        x_label: Quantity and unit.
        y_label: Quantity and unit.
        lines: The series.
        marks: Points with names: written beside them in this order while there is room, always in
            the tool tip. Their tone picks the colour: win, lose, original, or one of `legend`.
        log_x: Logarithmic x axis; every x is above zero.
        log_y: Logarithmic y axis; every y is above zero.
        legend: Tone of marks -> its meaning, in the order of colours.
        named: How many marks may be named at most.
    """

    x_label: str
    y_label: str
    lines: tuple[Line, ...]
    marks: tuple[Point, ...] = ()
    log_x: bool = False
    log_y: bool = False
    legend: tuple[tuple[str, str], ...] = ()
    named: int = 8


@dataclass(frozen=True)
class Chart:
    """A chart that none of the other blocks draws.

    Attributes:
        spec: Its Vega-Lite specification; colours are ``var(--NAME)``.
        table: The same figures, for whoever does not see it.
    """

    spec: Mapping[str, Any]
    table: Table


@dataclass(frozen=True)
class GraphPair:
    """Two graphs side by side, drawn by the page's own script.

    Attributes:
        shown: What it draws, as plain JSON values.
        table: The same by region, for whoever does not see it.
    """

    shown: Mapping[str, Any]
    table: Table


@dataclass(frozen=True)
class Pill:
    """One answer in a few words. `tone` is one of plain, good, warn, bad."""

    text: str
    tone: str = "plain"


@dataclass(frozen=True)
class Pills:
    """Answers that are seen at once."""

    pills: tuple[Pill, ...]


@dataclass(frozen=True)
class Tile:
    """One figure, and what it was before.

    Attributes:
        title: What it measures.
        figure: The figure with its unit.
        change: What it was, or both, in a few words.
        note: What it rests on.
        tone: One of plain, good, warn, bad.
        span: Interval of a ratio, drawn beside a mark at 1; None draws nothing.
    """

    title: str
    figure: str
    change: str = ""
    note: str = ""
    tone: str = "plain"
    span: tuple[float, float] | None = None


@dataclass(frozen=True)
class Tiles:
    """Figures side by side."""

    tiles: tuple[Tile, ...]


@dataclass(frozen=True)
class Shot:
    """One sample.

    Attributes:
        title: What became of it, in a word.
        caption: Which it is, and its figures.
        tone: One of plain, lost, won, changed.
        image: A PNG of its input; empty where it is no picture.
    """

    title: str
    caption: str
    tone: str = "plain"
    image: bytes = b""


@dataclass(frozen=True)
class Shots:
    """Samples side by side."""

    shots: tuple[Shot, ...]


Plot: TypeAlias = Scatter | Bars | Intervals | Lines | Chart
Block: TypeAlias = Heading | Text | Table | Plot | GraphPair | Pills | Tiles | Shots


@dataclass(frozen=True)
class Section(Plugin):
    """A part of the report.

    Attributes:
        order: Sections are shown in this order, then by name.
        terminal: Shown on the terminal too.
        folded: Title under which a report folds the whole section; empty where it is open.
        columns: Of twelve that a wide page has, how many it takes.
    """

    folder: ClassVar[str] = "sections"
    order: ClassVar[int] = 50
    terminal: ClassVar[bool] = False
    folded: ClassVar[str] = ""
    columns: ClassVar[int] = 12

    @abstractmethod
    def blocks(self, study: Study) -> Iterable[Block]:
        """Yield the section's blocks; none hides the section."""
