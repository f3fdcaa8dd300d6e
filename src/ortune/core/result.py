"""What a verb returns: readable at a prompt, in a notebook and as a DataFrame."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from html import escape
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

from ortune.core.errors import OrtuneError
from ortune.core.version import __version__

if TYPE_CHECKING:
    import pandas

_SHOWN = 20
"""Rows shown in a notebook."""


def as_json(result: object, indent: int = 2) -> str:
    """Write a result, a dataclass or a mapping, as JSON with the version that made it."""
    from ortune.core.plugins.codec import make_jsonable

    return json.dumps(
        {"ortune": __version__, **make_jsonable(result)}, indent=indent, allow_nan=False
    )


class Result:
    """A frozen dataclass that shows its key figures, never its raw samples.

    Subclasses are declared with ``@dataclass(frozen=True, repr=False)``: a generated `repr` would
    hide this one. JSON is made of the fields alone.

    Attributes:
        headline: Fields and properties that `summary` shows.
    """

    headline: ClassVar[tuple[str, ...]] = ()
    _shown_by: ClassVar[str] = ""

    def __init_subclass__(cls, shown_by: str = "", **more: object) -> None:
        """Take the module, above the core, whose ``html`` shows the result in a notebook."""
        super().__init_subclass__(**more)
        cls._shown_by = shown_by or cls._shown_by

    def summary(self) -> Mapping[str, object]:
        """Return label -> figure, a few: what it is of, the verdict, the key figures."""
        return {name.replace("_", " "): getattr(self, name) for name in self.headline}

    def __repr__(self) -> str:
        shown = {label: _format_value(value) for label, value in self.summary().items()}
        width = max(map(len, shown), default=0)
        lines = [f"  {label:<{width}}  {text}" for label, text in shown.items()]
        return "\n".join([type(self).__name__, *lines])

    def _repr_html_(self) -> str:
        cells = "".join(_render_row((label, value)) for label, value in self.summary().items())
        return f"<b>{escape(type(self).__name__)}</b><table>{cells}</table>"


class TableResult(Result):
    """A result with rows.

    Attributes:
        table: Field or property with the rows, dataclasses of one kind.
    """

    table: ClassVar[str] = "rows"

    def records(self) -> Sequence[Mapping[str, object]]:
        """Return flat rows; what is nested has names such as ``score.value``."""
        return [_flatten_fields(row) for row in getattr(self, self.table)]

    def to_dataframe(self) -> pandas.DataFrame:
        """Return `records` as a pandas DataFrame.

        Raises:
            OrtuneError: pandas is not installed.
        """
        try:
            import pandas
        except ImportError:
            raise OrtuneError("pandas is not installed", fix="pip install pandas") from None
        return pandas.DataFrame(list(self.records()))

    def _repr_html_(self) -> str:
        if self._shown_by:
            return str(import_module(self._shown_by).html(self))
        rows = self.records()
        if not rows:
            return super()._repr_html_()
        names = dict.fromkeys(name for row in rows for name in row)
        body = "".join(_render_row(map(row.get, names)) for row in rows[:_SHOWN])
        more = f"<p>rows not shown: {len(rows) - _SHOWN}</p>" if len(rows) > _SHOWN else ""
        return f"{super()._repr_html_()}<table>{_render_row(names, 'th')}{body}</table>{more}"


def _flatten_fields(row: Any, prefix: str = "") -> dict[str, object]:
    """Return a dataclass's fields but those hidden from `repr`; nested ones with a prefix."""
    figures: dict[str, object] = {}
    for field in fields(row):
        value = getattr(row, field.name)
        if is_dataclass(value):
            figures |= _flatten_fields(value, f"{prefix}{field.name}.")
        elif field.repr:
            figures[f"{prefix}{field.name}"] = value
    return figures


def _render_row(values: Iterable[object], tag: str = "td") -> str:
    cells = "".join(f"<{tag}>{escape(_format_value(value))}</{tag}>" for value in values)
    return f"<tr>{cells}</tr>"


def _format_value(value: object) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_format_value(item)}" for name, item in value.items()) or "-"
    if isinstance(value, (tuple, list)):
        return ", ".join(map(_format_value, value)) or "-"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
