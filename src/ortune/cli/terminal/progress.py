"""Show work that goes on, on stderr: a live board on a terminal, plain lines elsewhere.

The board is redrawn when an event arrives and at no other time: events are sent between timed
bursts, so drawing never runs beside a measurement.
"""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ortune.cli.terminal.output import make_console, outlive_reader, write_error
from ortune.core.event import Event, Note, Progress
from ortune.core.progress.board import Board, describe_event

if TYPE_CHECKING:
    from rich.live import Live

_EVERY_S = 10.0
"""Where lines are kept, as in a log, a share of the work is one at most this often."""
_DRAWN_S = 0.1


class Display:
    """Takes events, and shows them on stderr: in a `live` board that goes away, or plain lines."""

    def __init__(self, *, live: bool, verbose: bool = False) -> None:
        self.live = live
        self.verbose = verbose
        self._board = Board()
        self._drawn: Live | None = None
        self._last = time.monotonic()

    def show_event(self, event: Event) -> None:
        """Show an event."""
        self._board.record_event(event)
        board = self._board
        text = describe_event(
            event, verbose=self.verbose, place=board.place, baseline=board.baseline
        )
        if text:
            self._print_line(text)
        if self.live:
            with outlive_reader(sys.stderr):
                self._draw_board(event)
        elif isinstance(event, Progress) and time.monotonic() - self._last > _EVERY_S:
            self._last = time.monotonic()
            self._print_line(self._board.describe_progress())

    def clear_board(self) -> None:
        """Take the board off the terminal until the next event."""
        if self._drawn is not None:
            drawn, self._drawn = self._drawn, None
            with outlive_reader(sys.stderr):
                drawn.stop()

    def _print_line(self, text: str) -> None:
        self.clear_board()
        write_error(text)

    def _draw_board(self, event: Event) -> None:
        from rich.live import Live
        from rich.text import Text

        if isinstance(event, Note) and self._drawn is None:
            return
        often = isinstance(event, Progress) and self._drawn is not None
        if often and time.monotonic() - self._last < _DRAWN_S:
            return
        self._last = time.monotonic()
        if self._drawn is None:
            self._drawn = Live(console=make_console(err=True), auto_refresh=False, transient=True)
            self._drawn.start()
        lines = self._board.render_lines(self._drawn.console.width)
        self._drawn.update(Text("\n".join(lines), no_wrap=True, overflow="crop"), refresh=True)


@contextmanager
def show_progress(*, quiet: bool = False, verbose: bool = False) -> Iterator[Display]:
    """Yield what shows a verb's events.

    Lines are plain where `quiet`, and where `verbose` shows steps and starts, as the runtime logs
    to stderr as well.
    """
    shown = Display(live=not (quiet or verbose) and sys.stderr.isatty(), verbose=verbose)
    try:
        yield shown
    finally:
        shown.clear_board()
