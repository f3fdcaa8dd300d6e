"""Every plan: how fast, how good, and why it lost."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from ortune.core import wording as say
from ortune.core.acceptance import LOST, Outcome, between, outcome
from ortune.core.section import Block, Heading, Section, Table, Text
from ortune.core.study import Study
from ortune.core.trial import Trial

_ORDER = (
    Outcome.FASTER,
    Outcome.LEVEL,
    Outcome.UNSCORED,
    Outcome.FAILS,
    Outcome.SLOWER,
    Outcome.TOO_LARGE,
    Outcome.FAILED,
    Outcome.UNTRIED,
)


@dataclass(frozen=True)
class RankingSection(Section):
    """The finalists first, then what the search left behind."""

    order: ClassVar[int] = 30
    terminal: ClassVar[bool] = True

    def blocks(self, study: Study) -> Iterable[Block]:
        """Yield one row a plan, then how to repeat each failure."""
        ranked = sorted(say.latest(study), key=lambda trial: _place(study, trial))
        yield Heading("Every plan", folded=True)
        yield Table(
            ("plan", "speed-up", say.ratio_of(study), _metric(study), "MB", "verdict", "why"),
            tuple(_row(study, trial) for trial in ranked),
            tuple(_mark(study, trial) for trial in ranked),
        )
        scored = {t.score.samples for t in study.final if t.score}
        if scored and scored != {study.samples.get("search", 0)}:
            yield Text(
                f"Scores: finalists on all {say.count(max(scored), 'sample')}, others on "
                f"the {study.samples.get('search', 0):,} of the search."
            )
        for trial in ranked:
            if trial.error and trial.reproduce:
                yield Text(f"{trial.plan} failed; to repeat it:")
                yield Text(trial.reproduce, "code")


def _place(study: Study, trial: Trial) -> tuple[bool, int, float]:
    ratio = trial.ratio.value if trial.ratio else math.inf
    winner = trial.key == study.best.key
    final = winner or trial.part == "final"
    return (not final, -1 if winner else _ORDER.index(outcome(trial)), ratio)


def _metric(study: Study) -> str:
    return study.budget.metric.name()


def _mark(study: Study, trial: Trial) -> str:
    if trial.key == study.best.key:
        return "win"
    return "lose" if outcome(trial) in LOST else ""


def _row(study: Study, trial: Trial) -> tuple[str, ...]:
    original = trial.key == study.baseline.key
    return (
        "original" if original else str(trial.plan),
        say.times(study.speedup(trial)),
        say.NONE if original else say.ratio(trial),
        say.score(trial),
        say.megabytes(trial.size),
        say.verdict(trial) if not original else "",
        _why(study, trial),
    )


def _why(study: Study, trial: Trial) -> str:
    reason = say.reason(trial)
    if trial.key == study.baseline.key:
        return ""
    if trial.key == study.best.key:
        return f"the winner: {reason}"
    over = study.job.wanted.over(trial)
    if over and outcome(trial) in (Outcome.FASTER, Outcome.LEVEL, Outcome.UNSCORED):
        reason = over
    elif outcome(trial) is Outcome.FASTER:
        reason = _beaten(study, trial)
    return f"{'finalist: ' if trial.part == 'final' else ''}{reason}"


def _named(study: Study, trial: Trial) -> str:
    return "the original" if trial.key == study.baseline.key else "the winner"


def _beaten(study: Study, trial: Trial) -> str:
    """Say why a plan that is faster than the original is not the winner."""
    if not study.accepts(trial):
        return "its accuracy is likely, not proved, and --strict was asked"
    best = study.best
    wanted = study.job.wanted
    if wanted.saves(best, trial):
        return f"needs more {wanted.prefer} than {_named(study, best)}"
    if best.key == study.baseline.key or trial in study.unconfirmed:
        return "measured once, not confirmed in fresh pairs"
    if between(best, trial).high < 1:
        return f"beaten by the winner's {say.times(study.speedup(best))}"
    return "not apart from the winner beyond the noise"
