"""What events say of work that goes on: a line each, and a board of how far it is."""

import time
from dataclasses import dataclass, field
from statistics import median

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
from ortune.core.plan_label import label_plan
from ortune.core.progress.wrapping import crop_text
from ortune.core.trial import Plan, Status, Trial
from ortune.core.wording import (
    NONE,
    describe_speedup,
    format_count,
    format_estimate,
    format_milliseconds,
    shorten_metric,
)

_TELLING, _WARM_UP_S = 0.02, 10
"""Less than this share of a work, in its first seconds, does not say how long the rest takes."""
_BAR = 30
LINE = 80
"""Columns that a line of a finished trial has at most; its whole story is in the report."""
_UNEXPLAINED = (acceptance.Outcome.LEVEL, acceptance.Outcome.ROUGH)
_NOT_CLAIMED = (acceptance.Outcome.DISTURBED, acceptance.Outcome.EMULATED)
_STAGES = {
    "screen": "quick test",
    "rescue": "accuracy repair",
    "runtime": "runtime settings",
    "regions": "precision by region",
    "history": "contributions",
    "final": "final measurement",
}
"""Stages that have a name of their own on a screen."""


def describe_event(
    event: Event, *, verbose: bool = False, place: str = "", baseline: Plan | None = None
) -> str:
    """Return the line that tells of an event; empty for what is not worth one.

    Args:
        baseline: Plans are named by what differs from it; in full without it.
    """
    match event:
        case Note(text, warning):
            return f"warning: {text}" if warning else text
        case StepDone(edit) if verbose:
            done = format_count(edit.count, "edit") if edit.kept else f"rolled back: {edit.note}"
            return f"  {edit.step}: {done}, {edit.seconds:.1f} s"
        case TrialStarted(plan) if verbose:
            return f"{place} {name_plan(plan, baseline)} ..."
        case TrialDone(trial, cached):
            text = f"{place}  {describe_trial(trial, baseline)}".strip()
            text += " (measured before)" if cached else ""
            return text if verbose else crop_text(text, LINE)
        case Unconfirmed(trial) if trial.shown_ratio is not None:
            name = name_plan(trial.plan, baseline)
            text = f"first faster plan, to be re-measured: {_estimate_speed(trial)}, {name}"
            return text if verbose else crop_text(text, LINE)
    return ""


def name_plan(plan: Plan, baseline: Plan | None) -> str:
    """Return a plan's label, or its full spelling where the baseline is not known."""
    return str(plan) if baseline is None else label_plan(plan, baseline)


def describe_trial(trial: Trial, baseline: Plan | None = None) -> str:
    """Say in one line what became of a trial: its speed first, then the plan, then why."""
    kind, name = acceptance.classify_outcome(trial), name_plan(trial.plan, baseline)
    if kind is acceptance.Outcome.UNTRIED:
        return f"{'-':>6}  {name}: {trial.why or kind}"
    is_first = trial.stage == "baseline"  # there is nothing to compare it with
    figure, parts = _estimate_speed(trial), []
    if is_first and trial.measurement is not None and trial.measurement.latency_ns:
        figure = f"{format_milliseconds(median(trial.measurement.latency_ns))} ms"
    if trial.status is not Status.OK and not is_first:
        parts.append(str(kind))
    if trial.score is not None:
        verdict = f" ({trial.score.verdict})" if trial.score.verdict and not is_first else ""
        parts.append(f"{shorten_metric(trial.score.metric)} {trial.score.value:.5g}{verdict}")
    if kind in _NOT_CLAIMED and trial.status is Status.OK:
        parts.append(str(kind))
    if trial.status is not Status.OK and kind not in _UNEXPLAINED:
        parts += (trial.why or trial.error or "").splitlines()[:1]
    return f"{figure:>6}  {name}: {', '.join(parts)}".rstrip(": ")


def _estimate_speed(trial: Trial) -> str:
    """Write a speed-up in a few letters, one without an interval as about that."""
    return NONE if trial.shown_ratio is None else format_estimate(trial.shown_ratio.inverse())


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
    baseline: Plan | None = None
    plan: str = ""
    _budget: TimeLeft | None = None
    _until: float = 0.0
    _share: float = 0.0
    _stage: str = ""
    _timing: str = ""
    _best: Trial | None = None
    _work: Progress | None = None
    _since: float = field(default_factory=time.monotonic)

    def record_event(self, event: Event) -> None:
        """Note what changes on the board."""
        match event:
            case TimeLeft(seconds):
                if self._budget is None:
                    self._since = time.monotonic()
                self._budget, self._until = event, time.monotonic() + seconds
            case Progress(work) if not self._stage:
                if self._work is None or self._work.work != work:
                    self._share = 0.0 if self._budget is None else self._share
                    self._since = time.monotonic() if self._budget is None else self._since
                self._work = event
            case TrialStarted(plan, stage):
                self.plans += stage != "baseline"
                if stage == "baseline":
                    self.baseline = plan
                self._stage, self._timing = stage, ""
                self.plan = name_plan(plan, self.baseline)
            case Timing(ratio, blocks):
                self._timing = f"{describe_speedup(ratio)} after {format_count(blocks, 'round')}"
            case TrialDone(trial):
                self._timing = ""
                if trial.stage == "baseline":
                    self.baseline = trial.plan
                if self._beats_best(trial):
                    self._best = trial
                elif self._best and trial.key == self._best.key:
                    self._best = None  # it fell when it was timed for longer

    @property
    def place(self) -> str:
        """Where a search is: ``[14, 1:48 left]``; empty before its first plan."""
        if not self._stage:
            return ""
        remaining_s = self.estimate_remaining_s()
        countdown = [] if remaining_s is None else [f"{format_clock(remaining_s)} left"]
        number = [] if self._stage == "baseline" else [str(self.plans)]
        counted = ", ".join((*number, *countdown))
        return f"[{counted}]" if counted else ""

    @property
    def stage(self) -> str:
        """What is done with the plan, in words."""
        return _STAGES.get(self._stage, self._stage)

    def describe_best(self) -> str:
        """Return the best plan so far behind its speed-up."""
        if self._best is None or self._best.ratio is None:
            return "the original"
        mark = "" if self._best.part == "final" else ", not re-measured"
        name = name_plan(self._best.plan, self.baseline)
        return f"{_estimate_speed(self._best)} {name}{mark}"

    def estimate_remaining_s(self) -> float | None:
        """Return the seconds left: of the budget, or as the work has gone so far.

        None as long as that cannot be known, as in a set-up that may turn out not to count.
        """
        now = time.monotonic()
        if self._budget is not None:
            return None if self._budget.may_restart else max(0.0, self._until - now)
        work = self._work
        if work is None or not 0 < work.done <= work.total:
            return None
        passed = now - self._since
        if work.done < _TELLING * work.total and passed < _WARM_UP_S:
            return None
        return passed * (work.total - work.done) / work.done

    def describe_progress(self) -> str:
        """Return how far the work is, in words: ``timing: 40 %, 0:12 left``."""
        if self._stage:
            return f"{self.place} {self.stage}: {self.plan}".strip()
        remaining_s = self.estimate_remaining_s()
        parts = []
        if self._budget is None and self._work is not None and self._work.total:
            parts.append(f"{100 * min(1.0, self._work.done / self._work.total):.0f} %")
        elapsed_s = time.monotonic() - self._since
        remaining = None if remaining_s is None else f"{format_clock(remaining_s)} left"
        parts.append(remaining or f"{format_clock(elapsed_s)} so far")
        if self._work is not None and self._work.pace:
            parts.append(self._work.pace)
        return f"{self._work.work if self._work else 'at work'}: {', '.join(parts)}"

    def render_lines(self, width: int) -> list[str]:
        """Return the board in lines of a width: a bar, and in a search the plan and the best."""
        share = self.measure_share()
        done = round(_BAR * share)
        bar = f"{'━' * done}{'─' * (_BAR - done)}"
        if not self._stage:
            return [crop_text(f"{bar} {self.describe_progress()}", width)]
        now = ", ".join(filter(None, (f"{self.stage}: {self.plan}", self._timing)))
        lines = (
            f"{bar} {100 * share:.0f} % {self.place}",
            f"now   {now}",
            f"best  {self.describe_best()}",
        )
        return [crop_text(line, width) for line in lines]

    def measure_share(self) -> float:
        """Return the share of the time or of the work that is behind us: it never falls.

        While a set-up may still turn out not to count, the whole time is taken to follow it.
        """
        remaining_s, work = self.estimate_remaining_s(), self._work
        if self._budget is not None:
            elapsed_s = time.monotonic() - self._since
            following_s = self._budget.seconds if remaining_s is None else remaining_s
            share = elapsed_s / max(elapsed_s + following_s, 1e-9)
        else:
            share = work.done / work.total if work is not None and work.total else 0.0
        self._share = max(self._share, min(1.0, share))
        return self._share

    def _beats_best(self, trial: Trial) -> bool:
        seems = trial.status is Status.OK and acceptance.seems_faster(trial)
        if not seems or trial.ratio is None:
            return False
        best = self._best
        if best is None or best.ratio is None or trial.plan == best.plan:
            return True
        return trial.ratio.value < best.ratio.value
