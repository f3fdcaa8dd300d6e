"""What events say of work that goes on: a line each, and a board of how far it is."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from ortune.core import acceptance
from ortune.core.event import (
    Event,
    Note,
    Progress,
    StepDone,
    TimeLeft,
    Timing,
    TrialDone,
    TrialStarted,
    Unconfirmed,
)
from ortune.core.progress.wrapping import wrap_text
from ortune.core.trial import Interval, Status, Trial
from ortune.core.wording import format_count

_BAR = 30


def describe_event(event: Event, *, verbose: bool = False, place: str = "") -> str:
    """Return the line that tells of an event; empty for what is not worth one."""
    match event:
        case Note(text, warning):
            return f"warning: {text}" if warning else text
        case StepDone(edit) if verbose:
            done = format_count(edit.count, "edit") if edit.kept else f"rolled back: {edit.note}"
            return f"  {edit.step}: {done}, {edit.seconds:.1f} s"
        case TrialStarted(plan) if verbose:
            return f"{place} {plan} ..."
        case TrialDone(trial, cached):
            return (
                f"{place} {describe_trial(trial)}{' (from the ledger)' if cached else ''}".strip()
            )
        case Unconfirmed(trial) if trial.ratio is not None:
            return (
                f"first within the budget, unconfirmed: {trial.plan}, "
                f"{describe_speedup(trial.ratio)}"
            )
    return ""


def describe_trial(trial: Trial) -> str:
    """Say in one line what became of a trial."""
    kind = acceptance.classify_outcome(trial)
    if kind is acceptance.Outcome.UNTRIED:
        return f"{trial.plan}: {trial.why or kind}"
    parts = [f"{trial.plan}: {trial.status if trial.status is Status.OK else kind}"]
    if trial.ratio is not None:
        parts.append(f"{describe_speedup(trial.ratio)}")
    if trial.score is not None:
        verdict = f" {trial.score.verdict}" if trial.score.verdict else ""
        parts.append(f"{trial.score.metric} {trial.score.value:.5g}{verdict}")
    if kind is acceptance.Outcome.DISTURBED:
        parts.append(str(kind))
    elif trial.status is not Status.OK and kind is not acceptance.Outcome.LEVEL:
        parts += (trial.why or trial.error or "").splitlines()[:1]
    return ", ".join(parts)


def describe_speedup(ratio: Interval) -> str:
    """Write a latency ratio as the speed-up that people ask for, with its interval."""
    speedup = ratio.inverse()
    if not speedup.is_bounded:
        return f"about {speedup.value:.2f}x"
    return f"{speedup.value:.2f}x [{speedup.low:.2f}, {speedup.high:.2f}]"


def format_clock(seconds: float) -> str:
    """Write a duration as minutes and seconds."""
    whole = max(0, round(seconds))
    return f"{whole // 60}:{whole % 60:02}"


@dataclass
class Board:
    """How far a verb is; changed by events alone.

    A search has one counter, of all plans that it takes up whatever their stage, and the time that
    is left of its budget. Other work has the share that is done, and from that the time left.
    """

    plans: int = 0
    _seconds: float = 0.0
    _until: float | None = None
    _stage: str = ""
    _plan: str = ""
    _timing: str = ""
    _best: Trial | None = None
    _work: Progress | None = None
    _since: float = field(default_factory=time.monotonic)

    def record_event(self, event: Event) -> None:
        """Note what changes on the board."""
        match event:
            case TimeLeft(seconds):
                self._until = time.monotonic() + seconds
                self._seconds = max(self._seconds, seconds)
            case Progress(work) if not self._stage:
                if self._work is None or self._work.work != work:
                    self._since = time.monotonic()
                self._work = event
            case TrialStarted(plan, stage):
                self.plans += stage != "baseline"
                self._stage, self._plan, self._timing = stage, str(plan), ""
            case Timing(ratio, blocks):
                self._timing = f"{describe_speedup(ratio)} after {format_count(blocks, 'block')},"
            case TrialDone(trial):
                self._timing = ""
                if self._beats_best(trial):
                    self._best = trial
                elif self._best and trial.key == self._best.key:
                    self._best = None  # it fell when it was timed for longer

    @property
    def place(self) -> str:
        """Where a search is: ``[14, 1:48 left] final``; empty before its first plan."""
        if not self._stage:
            return ""
        remaining_s = self.estimate_remaining_s()
        countdown = [] if remaining_s is None else [f"{format_clock(remaining_s)} left"]
        number = [] if self._stage == "baseline" else [str(self.plans)]
        counted = ", ".join((*number, *countdown))
        return f"[{counted}] {self._stage}:" if counted else f"{self._stage}:"

    def describe_best(self) -> str:
        """Return the best plan so far behind its speed-up."""
        if self._best is None or self._best.ratio is None:
            return "the original"
        mark = "" if self._best.part == "final" else ", unconfirmed"
        return f"{describe_speedup(self._best.ratio)}{mark}, {self._best.plan}"

    def estimate_remaining_s(self) -> float | None:
        """Return the seconds left: of the budget, or as the work has gone so far."""
        now = time.monotonic()
        if self._until is not None:
            return max(0.0, self._until - now)
        work = self._work
        if work is None or not 0 < work.done <= work.total:
            return None
        return (now - self._since) * (work.total - work.done) / work.done

    def describe_progress(self) -> str:
        """Return how far the work is, in words: ``timing: 40 %, 0:12 left``."""
        if self._stage:
            return f"{self.place} {self._plan}"
        remaining_s = self.estimate_remaining_s()
        parts = []
        if self._until is None and self._work is not None and self._work.total:
            parts.append(f"{100 * min(1.0, self._work.done / self._work.total):.0f} %")
        parts.append(
            self._format_elapsed() if remaining_s is None else f"{format_clock(remaining_s)} left"
        )
        return f"{self._work.work if self._work else 'at work'}: {', '.join(parts)}"

    def render_lines(self, width: int) -> list[str]:
        """Return the board in lines of a width: a bar, and in a search the plan and the best."""
        done = round(_BAR * self._compute_share())
        bar = f"{'━' * done}{'─' * (_BAR - done)}"
        if not self._stage:
            return wrap_text(f"{bar} {self.describe_progress()}", width)
        now = " ".join(filter(None, (self.place, self._timing, self._plan)))
        texts = (f"{bar} {self._format_elapsed()}", now, f"best so far: {self.describe_best()}")
        return [line for text in texts for line in wrap_text(text, width, "  ")]

    def _compute_share(self) -> float:
        """Return the share of the budget or of the work that is behind us."""
        remaining_s = self.estimate_remaining_s()
        if self._until is not None and remaining_s is not None:
            return 1 - remaining_s / max(self._seconds, 1e-9)
        work = self._work
        return min(1.0, work.done / work.total) if work is not None and work.total else 0.0

    def _format_elapsed(self) -> str:
        return f"{format_clock(time.monotonic() - self._since)} so far"

    def _beats_best(self, trial: Trial) -> bool:
        seems = trial.status is Status.OK and acceptance.seems_faster(trial)
        if not seems or trial.ratio is None:
            return False
        best = self._best
        if best is None or best.ratio is None or trial.plan == best.plan:
            return True
        return trial.ratio.value < best.ratio.value
