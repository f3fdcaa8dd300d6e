"""What a verb returns: readable at a prompt, in a notebook and as a DataFrame."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from html import escape
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

from ortune.core.errors import OrtuneError, shorten_text
from ortune.core.version import __version__

if TYPE_CHECKING:
    import pandas

_SHOWN = 20
"""Rows shown in a notebook."""
_PRINTED = 10
"""Rows printed at a prompt."""
_WIDTH = 110
"""Columns of a terminal that a printed table takes at most."""
_CELL = 44
"""Characters of a printed cell at most."""
_BYTES = frozenset({"size", "peak_rss"})
"""Names of byte counts that do not say so."""


def as_json(result: object, indent: int = 2) -> str:
    """Write a result, a dataclass or a mapping, as JSON with the version that made it."""
    from ortune.core.plugins.codec import make_jsonable

    return json.dumps(
        {"ortune": __version__, **make_jsonable(result)}, indent=indent, allow_nan=False
    )


def format_size(count: float) -> str:
    """Write a number of bytes with a unit of 1000."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError


class Result:
    """What shows its key figures, never its raw samples.

    Dataclasses are declared with ``@dataclass(frozen=True, repr=False)``: a generated `repr` would
    hide this one. JSON is made of the fields alone.

    Attributes:
        headline: Fields and properties that `summary` shows.
    """

    headline: ClassVar[tuple[str, ...]] = ()
    _shown_by: ClassVar[str] = ""

    def __init_subclass__(cls, shown_by: str = "", **more: object) -> None:
        """Take the module, above the core, whose ``display`` shows the result in a notebook."""
        super().__init_subclass__(**more)
        cls._shown_by = shown_by or cls._shown_by

    def summary(self) -> Mapping[str, object]:
        """Return label -> figure, a few: what it is of, the verdict, the key figures."""
        return {name: getattr(self, name) for name in self.headline}

    def __repr__(self) -> str:
        shown = [_write_figure(name, value) for name, value in self.summary().items()]
        width = max((len(label) for label, _ in shown), default=0)
        lines = [f"  {label:<{width}}  {text}" for label, text in shown]
        return "\n".join([type(self).__name__, *lines])

    def _repr_html_(self) -> str:
        shown = [_write_figure(name, value) for name, value in self.summary().items()]
        cells = "".join(map(_render_row, shown))
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

    def __repr__(self) -> str:
        names, rows = _tabulate(self.records()[:_PRINTED])
        return "\n".join([super().__repr__(), *_print_table(names, rows, len(self.records()))])

    def _ipython_display_(self) -> None:
        if not self._shown_by:
            raise NotImplementedError  # IPython then asks for the representations
        import_module(self._shown_by).display(self)

    def _repr_html_(self) -> str:
        names, rows = _tabulate(self.records()[:_SHOWN])
        if not rows:
            return super()._repr_html_()
        hidden = len(self.records()) - len(rows)
        more = f"<p>rows not shown: {hidden}</p>" if hidden else ""
        body = "".join(map(_render_row, rows))
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


def _tabulate(records: Sequence[Mapping[str, object]]) -> tuple[list[str], list[list[str]]]:
    """Return the headings and cells of the columns in which something stands."""
    names = dict.fromkeys(name for row in records for name in row)
    columns = [[_write_figure(name, row.get(name)) for row in records] for name in names]
    kept = [column for column in columns if any(text not in ("-", "no") for _, text in column)]
    rows = [[column[k][1] for column in kept] for k in range(len(records))]
    return [column[0][0] for column in kept], rows


def _print_table(names: Sequence[str], rows: Sequence[Sequence[str]], count: int) -> Iterator[str]:
    """Yield the lines of a table, columns from the left as far as a terminal is wide."""
    lines, width = [""] * (len(rows) + 1), 0
    for place, name in enumerate(names):
        cells = [name, *(_shorten_cell(row[place]) for row in rows)]
        wide = max(map(len, cells))
        width += wide + 2
        if width > _WIDTH and place:
            hidden = ", ".join(names[place:])
            yield from lines
            yield f"  columns not shown: {hidden}"
            break
        right = all(text[:1].isdigit() or text == "-" for text in cells[1:])
        lines = [
            f"{line}  {text:>{wide}}" if right else f"{line}  {text:<{wide}}"
            for line, text in zip(lines, cells, strict=True)
        ]
    else:
        yield from (line.rstrip() for line in lines if rows)
    if count > len(rows):
        yield f"  rows not shown: {count - len(rows)}"


def _shorten_cell(text: str) -> str:
    """Cut a text behind a word, a path at its front."""
    if " " in text or len(text) <= _CELL:
        return shorten_text(text, _CELL)
    return f"...{text[3 - _CELL :]}"


def _render_row(values: Iterable[str], tag: str = "td") -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(text)}</{tag}>' for text in values)}</tr>"


def _write_figure(name: str, value: object) -> tuple[str, str]:
    """Return a label and a text that a person reads: durations in ms, sizes with a unit."""
    if isinstance(value, Mapping):
        parts = (f"{key} {_write_figure(name, item)[1]}" for key, item in value.items())
        return name.replace("_", " "), ", ".join(parts) or "-"
    label, last = name.replace("_", " "), name.rpartition(".")[2]
    number = value if isinstance(value, (int, float)) else None
    if name.endswith("_ns"):
        return f"{label[:-3]} ms", "-" if number is None else f"{number / 1e6:.4g}"
    if number is not None and (last in _BYTES or "bytes" in last.replace("_", " ").split()):
        return label, format_size(number)
    return label, _format_value(value)


def _format_value(value: object) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_format_value(item)}" for name, item in value.items()) or "-"
    if isinstance(value, (tuple, list)):
        return ", ".join(map(_format_value, value)) or "-"
    return f"{value:.5g}" if isinstance(value, float) else str(value)
