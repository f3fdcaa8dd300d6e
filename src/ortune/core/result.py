"""What a verb returns: readable at a prompt, in a notebook and as a DataFrame."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING

from ortune.core.errors import OrtuneError

if TYPE_CHECKING:
    import pandas

_SHOWN = 20
"""Rows shown in a notebook."""


class Result(ABC):
    """A frozen dataclass that shows its key figures, never its raw samples.

    Subclasses are declared with ``@dataclass(frozen=True, repr=False)``: a generated `repr` would
    hide this one. JSON is made of the fields alone.
    """

    @abstractmethod
    def summary(self) -> Mapping[str, object]:
        """Return label -> figure, a few: what it is of, the verdict, the key figures."""

    def __repr__(self) -> str:
        shown = {label: _text(value) for label, value in self.summary().items()}
        width = max(map(len, shown), default=0)
        lines = [f"  {label:<{width}}  {text}" for label, text in shown.items()]
        return "\n".join([type(self).__name__, *lines])

    def _repr_html_(self) -> str:
        cells = "".join(_line((label, value)) for label, value in self.summary().items())
        return f"<b>{escape(type(self).__name__)}</b><table>{cells}</table>"


class TableResult(Result):
    """A result with rows."""

    @abstractmethod
    def records(self) -> Sequence[Mapping[str, object]]:
        """Return flat rows, all with the same keys."""

    def to_dataframe(self) -> pandas.DataFrame:
        """Return `records` as a pandas DataFrame.

        Raises:
            OrtuneError: pandas is not installed.
        """
        try:
            import pandas
        except ImportError:
            raise OrtuneError(
                "pandas is not installed", fix='pip install "ortune[dataframe]"'
            ) from None
        return pandas.DataFrame(list(self.records()))

    def _repr_html_(self) -> str:
        rows = self.records()
        if not rows:
            return super()._repr_html_()
        body = "".join(_line(row.values()) for row in rows[:_SHOWN])
        more = f"<p>and {len(rows) - _SHOWN} more rows</p>" if len(rows) > _SHOWN else ""
        return f"{super()._repr_html_()}<table>{_line(rows[0], 'th')}{body}</table>{more}"


def _line(values: Iterable[object], tag: str = "td") -> str:
    cells = "".join(f"<{tag}>{escape(_text(value))}</{tag}>" for value in values)
    return f"<tr>{cells}</tr>"


def _text(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
