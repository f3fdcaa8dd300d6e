"""Report sections turn a study into blocks; writers turn blocks into a format."""

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
    """A paragraph."""

    text: str
    tone: str = "plain"  # one of plain, good, warn, code
    # Words of the text and the name of the section that they lead to on a page.
    links: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Table:
    """Columns and rows of text. `marks` gives a row's tone: win, lose or empty."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    marks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Point:
    """One mark of a scatter plot."""

    x: float  # its place
    y: float  # its place
    label: str  # its name
    tone: str = ""  # win, lose, original, or empty
    x_span: tuple[float, float] | None = None  # ends of its error bar along x; None draws none
    y_span: tuple[float, float] | None = None  # ends of its error bar along y
    size: float | None = None  # MB, for the area of the mark; None where all marks are alike


@dataclass(frozen=True)
class Limit:
    """A line across a plot, and the side of it that fails."""

    y: float  # where it stands
    label: str  # what it is, written beside it
    fails_below: bool  # whether what is below it fails; else what is above


@dataclass(frozen=True)
class Scatter:
    """A scatter plot; points joined by the front are given in order."""

    x_label: str  # quantity and unit
    y_label: str  # quantity and unit
    points: tuple[Point, ...]  # in any order
    front: tuple[int, ...] = ()  # indices of points
    # Tone -> its meaning, ``other`` of points without one; that of plans if empty.
    legend: tuple[tuple[str, str], ...] = ()
    named: tuple[int, ...] = ()  # indices of points to name beside the winner
    limit: Limit | None = None  # what is asked of y; None where nothing is
    log_x: bool = False  # logarithmic x axis; every x is above zero


@dataclass(frozen=True)
class Bar:
    """One row of a bar chart."""

    label: str  # what it stands for
    parts: tuple[float, ...]  # lengths of its stacked segments, none negative, in the chart's unit
    note: str = ""  # written behind the bar, such as ``1.20 ms, 34 %``
    tone: str = ""  # win, lose, or empty: of a bar of one segment


@dataclass(frozen=True)
class Bars:
    """Horizontal bars from zero, first bar on top; with several segments they are stacked."""

    unit: str  # what the lengths are, such as ``ms a run``
    bars: tuple[Bar, ...]  # at most some thirty
    # Names of the segments, the same for all bars; one needs no name.
    segments: tuple[str, ...] = ("",)
    stacked: bool = True  # segments end to end; else each starts at zero, one under the other


@dataclass(frozen=True)
class Estimate:
    """One row of a plot of intervals."""

    label: str  # what it stands for
    value: float  # the estimate; NaN draws none
    low: float  # end of its interval; with `high` equal to the value draws none
    high: float  # the other end
    figure: str  # the estimate in words, written behind the row
    note: str = ""  # what else there is to know, in a few words
    tone: str = ""  # win, lose, original, open (not confirmed), or empty (confirmed)


@dataclass(frozen=True)
class Intervals:
    """Estimates with their intervals beside a line that they are compared with, first on top."""

    title: str  # of the rows
    unit: str  # what the values are, such as ``speed-up``; the axis is logarithmic
    rows: tuple[Estimate, ...]  # the estimates, all values above zero
    legend: tuple[tuple[str, str], ...]  # tone -> its meaning
    reference: float = 1.0  # where the line stands


@dataclass(frozen=True)
class Line:
    """One series of a line chart, its points in order of x."""

    name: str  # in the legend
    points: tuple[tuple[float, float], ...]  # (x, y); on a logarithmic axis above zero
    # win, lose, original, roof (a limit drawn in the ink's colour), or empty for the next colour.
    tone: str = ""
    filled: bool = False  # the area under it is tinted


@dataclass(frozen=True)
class Lines:
    """Series against a common x, straight between their points, with marked points over them."""

    x_label: str  # quantity and unit
    y_label: str  # quantity and unit
    lines: tuple[Line, ...]  # the series
    # Points with names: written beside them in this order while there is room, always in the tool
    # tip. Their tone picks the colour: win, lose, original, or one of `legend`.
    marks: tuple[Point, ...] = ()
    log_x: bool = False  # logarithmic x axis; every x is above zero
    log_y: bool = False  # logarithmic y axis; every y is above zero
    # Tone of marks -> its meaning, in the order of colours.
    legend: tuple[tuple[str, str], ...] = ()
    named: int = 8  # how many marks may be named at most
    ends: bool = False  # lines are named at their right ends, else in a legend


@dataclass(frozen=True)
class Chart:
    """A chart that none of the other blocks draws."""

    spec: Mapping[str, Any]  # its Vega-Lite specification; colours are ``var(--NAME)``
    table: Table  # the same figures, for whoever does not see it


@dataclass(frozen=True)
class GraphPair:
    """Two graphs side by side, drawn by the page's own script."""

    shown: Mapping[str, Any]  # what it draws, as plain JSON values
    table: Table  # the same by region, for whoever does not see it


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
    """One figure, and what it was before."""

    title: str  # what it measures
    figure: str  # the figure with its unit
    change: str = ""  # what it was, or both, in a few words
    note: str = ""  # what it rests on
    tone: str = "plain"  # one of plain, good, warn, bad
    # Interval of a ratio, drawn beside a mark at 1; None draws nothing.
    span: tuple[float, float] | None = None


@dataclass(frozen=True)
class Tiles:
    """Figures side by side."""

    tiles: tuple[Tile, ...]


@dataclass(frozen=True)
class Shot:
    """One sample."""

    title: str  # what became of it, in a word
    caption: str  # which it is, and its figures
    tone: str = "plain"  # one of plain, lost, won, changed
    image: bytes = b""  # a PNG of its input; empty where it is no picture


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
