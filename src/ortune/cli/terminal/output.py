"""The answer of a verb: one JSON object, lines and tables on stdout, remarks on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ortune.cli.terminal.figures import sides
from ortune.core.atomic_write import write_text
from ortune.core.errors import visible

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from ortune.core.facts import TensorSpec

STDOUT = "-"
JSON = "ortune.json"
"""Where the context of a command keeps what ``--json`` was given."""


def version() -> str:
    """Return the installed version."""
    from ortune.core.version import __version__

    return __version__


def answer(result: object, show: Callable[[], None]) -> None:
    """Give the result by `show`, as one JSON object, or both when that goes to a file."""
    json_to = click.get_current_context().meta[JSON]
    if json_to == STDOUT:
        click.echo(as_json(result))
        return
    if json_to is not None:
        write_text(Path(json_to), as_json(result) + "\n")
    show()


def as_json(result: object, indent: int = 2) -> str:
    """Write a result, a dataclass or a mapping, as JSON with the version that made it."""
    from ortune.core.plugins.codec import jsonable

    return json.dumps({"ortune": version(), **jsonable(result)}, indent=indent, allow_nan=False)


def say(text: str) -> None:
    """Write a line of the answer to stdout."""
    click.echo(visible(text))


def remark(text: str) -> None:
    """Write a line about the work to stderr."""
    click.echo(visible(text), err=True)


def console(*, err: bool = False) -> Console:
    """Return a console on stdout; wide where no terminal sets a width, so that nothing is cut.

    Names in what it prints cannot steer the terminal.

    Args:
        err: On stderr.
    """
    from rich.console import Console, ConsoleOptions
    from rich.segment import Segment

    class Visible(Console):
        def render(
            self, renderable: RenderableType, options: ConsoleOptions | None = None
        ) -> Iterable[Segment]:
            for text, style, control in super().render(renderable, options):
                yield Segment(text if control else visible(text), style, control)

    file = sys.stderr if err else sys.stdout
    width = None if err or file.isatty() else 160
    return Visible(file=file, width=width, soft_wrap=False, highlight=False)


def show(*items: RenderableType) -> None:
    """Print rich renderables to stdout; a line of text is broken on a terminal alone."""
    from rich.text import Text

    out = console()
    for item in items:
        out.print(item, soft_wrap=isinstance(item, Text) and not sys.stdout.isatty())


def table(columns: Sequence[str], rows: Sequence[Sequence[object]], title: str = "") -> None:
    """Print a table; columns whose name ends in ``>`` are set to the right."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    made = Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        right = name.endswith(">")
        made.add_column(name.rstrip(">"), justify="right" if right else "left", overflow="fold")
    for row in rows:
        made.add_row(*(Text(visible(str(cell))) for cell in row))
    show(made)


def specs(kind: str, given: Sequence[TensorSpec]) -> None:
    """Print names, types and shapes under the heading `kind`."""
    table((kind, "dtype", "shape"), [(one.name, one.dtype, sides(one.shape)) for one in given])
