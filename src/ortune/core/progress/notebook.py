"""Progress below a cell of a notebook: the board while a verb works, then its notes."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from importlib import import_module
from typing import Any

from ortune.core.event import Event, Note, Sink
from ortune.core.progress.board import Board, describe_event

_COLUMNS = 100
_DRAWN_S = 0.2


@contextmanager
def display_progress() -> Iterator[Sink]:
    """Yield a sink that shows the events of one verb below the present cell.

    The board goes when the verb is done; notes and warnings stay.
    """
    shown = _Output()
    try:
        yield shown.record_event
    finally:
        shown.draw_board([])


class _Output:
    """One output of a cell, written anew with every change."""

    def __init__(self) -> None:
        self._board = Board()
        self._notes: list[str] = []
        self._handle: Any = None
        self._drawn = 0.0

    def record_event(self, event: Event) -> None:
        self._board.record_event(event)
        if isinstance(event, Note):
            self._notes.append(describe_event(event))
        if isinstance(event, Note) or time.monotonic() - self._drawn > _DRAWN_S:
            self.draw_board(self._board.render_lines(_COLUMNS))

    def draw_board(self, board: list[str]) -> None:
        """Show the notes, and the board below them; nothing where neither says anything."""
        self._drawn = time.monotonic()
        text = "\n".join([*self._notes, *board])
        if not text and self._handle is None:
            return
        shell = import_module("IPython.display")
        output = shell.HTML(f"<pre>{escape(text)}</pre>" if text else "")
        if self._handle is None:
            self._handle = shell.display(output, display_id=True)
        else:
            self._handle.update(output)
