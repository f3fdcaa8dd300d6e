"""Report sections turn a study into blocks; writers turn blocks into a format."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from ortune.core.plugin import Plugin
from ortune.core.study import Study


@dataclass(frozen=True)
class Heading:
    """A section's title."""

    text: str


@dataclass(frozen=True)
class Text:
    """A paragraph; `tone` is one of plain, good, warn, code."""

    text: str
    tone: str = "plain"


@dataclass(frozen=True)
class Table:
    """Columns and rows of text. `marks` gives a row's tone: win, lose or empty."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    marks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Point:
    """One mark of a scatter plot."""

    x: float
    y: float
    label: str
    tone: str = ""


@dataclass(frozen=True)
class Scatter:
    """A scatter plot; points joined by the front are given in order."""

    x_label: str
    y_label: str
    points: tuple[Point, ...]
    front: tuple[int, ...] = ()


Block: TypeAlias = Heading | Text | Table | Scatter


@dataclass(frozen=True)
class Section(Plugin):
    """A part of the report.

    Attributes:
        order: Sections are shown in this order, then by name.
        terminal: Shown on the terminal too.
    """

    folder: ClassVar[str] = "sections"
    order: ClassVar[int] = 50
    terminal: ClassVar[bool] = False

    @abstractmethod
    def blocks(self, study: Study) -> Iterable[Block]:
        """Yield the section's blocks; none hides the section."""
