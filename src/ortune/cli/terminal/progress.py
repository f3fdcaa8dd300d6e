"""Show a search at work on stderr: a live display on a terminal, plain lines elsewhere.

The display is redrawn when an event arrives and at no other time: events are sent between timed
bursts, so drawing never runs beside a measurement.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ortune.cli.terminal.output import console, remark
from ortune.core import acceptance
from ortune.core.event import (
    Event,
    Note,
    Sink,
    StepDone,
    Timing,
    TrialDone,
    TrialStarted,
    Unconfirmed,
)
from ortune.core.trial import Interval, Status, Trial
from ortune.core.wording import count

if TYPE_CHECKING:
    from rich.console import RenderableType

_WIDTH = 40


@contextmanager
def display(*, seconds: float | None, quiet: bool, verbose: bool) -> Iterator[Sink]:
    """Yield a sink for the events of one search.

    Args:
        seconds: The time budget, for the time left; None when there is none.
        quiet: Take plain lines on a terminal too.
        verbose: Show steps and starts. Plain lines then, as the runtime logs to stderr as well.
    """
    if quiet or verbose or not sys.stderr.isatty():
        yield lines(verbose)
        return
    from rich.live import Live

    board = Board(seconds)
    out = console(err=True)
    with Live(console=out, auto_refresh=False, transient=True) as live:

        def sink(event: Event) -> None:
            board.take(event)
            if text := describe(event, place=board.place):
                out.print(text, markup=False, soft_wrap=True)
            live.update(board.render(), refresh=True)

        yield sink


def lines(verbose: bool) -> Sink:
    """Return a sink that writes one line an event to stderr."""
    board = Board(None)

    def sink(event: Event) -> None:
        board.take(event)
        if text := describe(event, verbose=verbose, place=board.place):
            remark(text)

    return sink


@contextmanager
def held(sink: Sink, *, verbose: bool = False) -> Iterator[Sink]:
    """Yield a sink that keeps notes until the work is done; after an error they are not told.

    An error is two lines. With `verbose` nothing is kept.
    """
    notes: list[Event] = []
    yield (
        sink
        if verbose
        else lambda event: notes.append(event) if isinstance(event, Note) else sink(event)
    )
    for note in notes:
        sink(note)


def describe(event: Event, *, verbose: bool = False, place: str = "") -> str:
    """Return the line that tells of an event; empty for what is not worth one."""
    match event:
        case Note(text, warning):
            return f"warning: {text}" if warning else text
        case StepDone(edit) if verbose:
            done = count(edit.count, "edit") if edit.kept else f"rolled back: {edit.note}"
            return f"  {edit.step}: {done}, {edit.seconds:.1f} s"
        case TrialStarted(plan) if verbose:
            return f"{place} {plan} ..."
        case TrialDone(trial, cached):
            return f"{place} {outcome(trial)}{' (from the ledger)' if cached else ''}".strip()
        case Unconfirmed(trial) if trial.ratio is not None:
            return f"first within the budget, unconfirmed: {trial.plan}, {speed(trial.ratio)}"
    return ""


def outcome(trial: Trial) -> str:
    """Say in one line what became of a trial."""
    kind = acceptance.outcome(trial)
    if kind is acceptance.Outcome.UNTRIED:
        return f"{trial.plan}: {trial.why or kind}"
    parts = [f"{trial.plan}: {trial.status if trial.status is Status.OK else kind}"]
    if trial.ratio is not None:
        parts.append(f"{speed(trial.ratio)}")
    if trial.score is not None:
        verdict = f" {trial.score.verdict}" if trial.score.verdict else ""
        parts.append(f"{trial.score.metric} {trial.score.value:.5g}{verdict}")
    if trial.status is not Status.OK and kind is not acceptance.Outcome.LEVEL:
        parts += (trial.why or trial.error or "").splitlines()[:1]
    return ", ".join(parts)


def _place(stage: str, index: int, total: int) -> str:
    """Say which plan of a stage it is; what explains the winner is of no number known before."""
    if stage == "history":
        return stage
    return f"{'final ' if stage == 'final' else ''}{index}{f'/{total}' if total else ''}"


def speed(ratio: Interval) -> str:
    """Write a latency ratio as the speed-up that people ask for, with its interval."""
    found = ratio.inverse()
    if not found.bounded:
        return f"about {found.value:.2f}x"
    return f"{found.value:.2f}x [{found.low:.2f}, {found.high:.2f}]"


def clock(seconds: float) -> str:
    """Write a duration as minutes and seconds."""
    whole = max(0, round(seconds))
    return f"{whole // 60}:{whole % 60:02}"


@dataclass
class Board:
    """What the display shows; changed by events alone.

    Attributes:
        seconds: The time budget; None when there is none.
    """

    seconds: float | None
    place: str = ""
    _work: str = "starting"
    _timing: str = ""
    _best: Trial | None = None
    _start: float = field(default_factory=time.monotonic)

    def take(self, event: Event) -> None:
        """Note what changes on the board."""
        match event:
            case TrialStarted(plan, stage, index, total):
                self.place = f"[{_place(stage, index, total)}]"
                self._work, self._timing = str(plan), ""
            case Timing(ratio, blocks):
                self._timing = f"{speed(ratio)} after {count(blocks, 'block')},"
            case TrialDone(trial):
                self._timing = ""
                if self._beats(trial):
                    self._best = trial
                elif self._best and trial.key == self._best.key:
                    self._best = None  # it fell when it was timed for longer

    def best(self) -> str:
        """Return the best plan so far behind its speed-up: a long name is cut at the end."""
        if self._best is None or self._best.ratio is None:
            return "the original"
        mark = "" if self._best.part == "final" else ", unconfirmed"
        return f"{speed(self._best.ratio)}{mark}, {self._best.plan}"

    def left(self) -> float | None:
        """Return the seconds left of the budget."""
        if self.seconds is None:
            return None
        return max(0.0, self.seconds - (time.monotonic() - self._start))

    def render(self) -> RenderableType:
        """Draw the board."""
        from rich.table import Table
        from rich.text import Text

        grid = Table.grid(padding=(0, 2))
        work = " ".join(filter(None, (self.place, self._timing, self._work)))
        rows = (("at work", work), ("best so far", self.best()), ("time left", self._bar()))
        for name, text in rows:
            grid.add_row(name, Text(text, no_wrap=True, overflow="ellipsis"))
        return grid

    def _bar(self) -> str:
        left = self.left()
        if left is None or not self.seconds:
            return f"{clock(time.monotonic() - self._start)} so far"
        done = round(_WIDTH * (1 - left / self.seconds))
        return f"{clock(left)} {'━' * done}{'─' * (_WIDTH - done)}"

    def _beats(self, trial: Trial) -> bool:
        seems = trial.status is Status.OK and acceptance.seems_faster(trial)
        if not seems or trial.ratio is None:
            return False
        best = self._best
        if best is None or best.ratio is None or trial.plan == best.plan:
            return True
        return trial.ratio.value < best.ratio.value
