"""The answer of a verb: one JSON object, lines and tables on stdout, remarks on stderr."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TextIO, runtime_checkable

import click

from ortune.core.atomic_write import keep_files, write_text
from ortune.core.errors import OrtuneError, escape_control_chars
from ortune.core.result import as_json
from ortune.core.result import format_size as format_size

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from ortune.core.facts import TensorSpec
    from ortune.core.trial import Interval
    from ortune.reporting.blocks import Part


def format_ms(ns: float | None) -> str:
    """Write nanoseconds as milliseconds; a dash where the samples support no such figure."""
    return "-" if ns is None else f"{ns / 1e6:.{1 if ns >= 1e8 else 2 if ns >= 1e7 else 3}f}"


def format_mb(count: float | None) -> str:
    """Write bytes as MB."""
    return "-" if count is None else f"{count / 1e6:.1f}"


def format_figure(value: float | None) -> str:
    """Write a number by its size."""
    return "-" if value is None else f"{value:.0f}" if value >= 1000 else f"{value:.4g}"


def format_interval(ratio: Interval | None) -> str:
    """Write a ratio with the ends of its interval."""
    if ratio is None:
        return "-"
    if ratio.low == ratio.high == 1:
        return "1"
    return f"{ratio.value:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]"


def format_amount(count: float) -> str:
    """Write a count with a prefix: 1.23 M."""
    for prefix in ("", " k", " M", " G", " T"):
        if abs(count) < 1000 or prefix == " T":
            return f"{count:g}" if prefix == "" else f"{count:.2f}{prefix}"
        count /= 1000
    raise AssertionError


def format_sides(shape: tuple[int | str | None, ...] | None) -> str:
    """Write a shape, or what is known of one."""
    if shape is None:
        return "any rank"
    if not shape:
        return "scalar"
    return " x ".join("?" if dim is None else str(dim) for dim in shape)


STDOUT = "-"
JSON = "ortune.json"
"""Where the context of a command keeps what ``--json`` was given."""
DISPLAY = "ortune.display"
"""Where it keeps what shows progress."""
_PIPED = 10_000
"""Columns of tables where no terminal sets a width: a row is one line for what reads it."""


@contextmanager
def outlive_reader(stream: TextIO) -> Iterator[None]:
    """Let the block print to a stream that may not take it: its reader is gone, its disk is full.

    What it prints from then on goes nowhere; the work and the exit status are as they would be,
    but where an answer is lost that somebody still waits for. Raises OrtuneError: the answer
    cannot be written to stdout, for another reason than that its reader went away, as `head` and
    terminals do.
    """
    try:
        yield
    except OSError as error:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
        if stream is sys.stdout and error.errno not in (errno.EPIPE, errno.EIO):
            reason = error.strerror or str(error)
            raise OrtuneError(
                f"the answer cannot be written to stdout: {reason[:1].lower()}{reason[1:]}",
                fix="send it elsewhere, or free some space; files that were made are kept",
            ) from None


def print_result(result: object, show: Callable[[], None]) -> None:
    """Give the result by `print_items`, as one JSON object, or both when that goes to a file.

    What the verb has made stays from here on, whatever becomes of the telling.
    """
    keep_files()
    clear_progress()
    json_to = click.get_current_context().meta[JSON]
    if json_to == STDOUT:
        with outlive_reader(sys.stdout):
            click.echo(as_json(result))
        return
    if json_to is not None:
        write_text(Path(json_to), as_json(result) + "\n")
    show()


def print_text(text: str) -> None:
    """Write a line of the answer to stdout, broken between words on a terminal."""
    with outlive_reader(sys.stdout):
        click.echo(wrap_for_stream(escape_control_chars(text), sys.stdout))


def write_remark(text: str) -> None:
    """Write a line about the work to stderr, broken between words on a terminal."""
    clear_progress()
    write_error(text)


def write_error(text: str) -> None:
    """Write a line to stderr where no progress is drawn, broken between words on a terminal."""
    with outlive_reader(sys.stderr):
        click.echo(wrap_for_stream(escape_control_chars(text), sys.stderr), err=True)


class ClearableProgress(Protocol):
    """What shows progress on the terminal."""

    def clear_board(self) -> None:
        """Take it off the terminal; the next event draws it again."""


def clear_progress() -> None:
    """Take the progress of the present command off the terminal."""
    context = click.get_current_context(silent=True)
    shown: ClearableProgress | None = context.meta.get(DISPLAY) if context else None
    if shown is not None:
        shown.clear_board()


def wrap_for_stream(text: str, stream: TextIO) -> str:
    """Break a text for the width of a terminal; what is piped or logged stays in its lines."""
    if not stream.isatty():
        return text
    from rich.console import Console

    from ortune.core.progress.wrapping import wrap_text

    return "\n".join(wrap_text(text, Console(file=stream).width, "  "))


def make_console(*, err: bool = False) -> Console:
    """Return a console on stdout or stderr; wide without a terminal's width, for rows in lines.

    Names in what it prints cannot steer the terminal.
    """
    from rich.console import Console, ConsoleOptions
    from rich.segment import Segment

    class Visible(Console):
        def render(
            self, renderable: RenderableType, options: ConsoleOptions | None = None
        ) -> Iterable[Segment]:
            for text, style, control in super().render(renderable, options):
                yield Segment(text if control else escape_control_chars(text), style, control)

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))  # for `outlive_reader`

    file = sys.stderr if err else sys.stdout
    width = None if err or file.isatty() else _PIPED
    return Visible(file=file, width=width, soft_wrap=False, highlight=False)


@runtime_checkable
class TabularItem(Protocol):
    """What is rows of cells where no terminal shows it."""

    def list_rows(self) -> Iterable[Sequence[str]]:
        """Return the rows, their head first."""


def print_items(*items: RenderableType) -> None:
    """Print rich renderables to stdout; to a pipe, texts unbroken and cells between tabs."""
    from ortune.reporting.terminal import Paragraph

    out, piped = make_console(), not sys.stdout.isatty()
    for item in items:
        with outlive_reader(sys.stdout):
            if isinstance(item, Paragraph) and piped:
                click.echo(escape_control_chars(item.text))
            elif piped and isinstance(item, TabularItem):
                for row in item.list_rows():
                    click.echo(escape_control_chars("\t".join(" ".join(c.split()) for c in row)))
            else:
                out.print(item, crop=False)


def print_parts(parts: Sequence[Part]) -> None:
    """Print parts of a report."""
    from ortune.reporting.terminal import make_renderables

    print_items(*make_renderables(parts))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]], title: str = "") -> None:
    """Print a table; columns whose name ends in ``>`` are set to the right."""
    from ortune.core.section import Table
    from ortune.reporting.terminal import FittedTable

    names = tuple(name.rstrip(">") for name in columns)
    cells = tuple(tuple(escape_control_chars(str(cell)) for cell in row) for row in rows)
    print_text(f"\n{title}" if title else "")
    print_items(FittedTable(Table(names, cells), tuple(name.endswith(">") for name in columns)))


def print_specs(kind: str, tensors: Sequence[TensorSpec]) -> None:
    """Print names, types and shapes under the heading `kind`."""
    print_table(
        (kind, "dtype", "shape"),
        [(tensor.name, tensor.dtype, format_sides(tensor.shape)) for tensor in tensors],
    )
