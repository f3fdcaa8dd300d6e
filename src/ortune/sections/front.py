"""Latency against score: the plans that no other beats in both."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar

from ortune.core import wording as say
from ortune.core.acceptance import LOST, outcome
from ortune.core.section import Block, Heading, Point, Scatter, Section, Table
from ortune.core.study import Study
from ortune.core.trial import Trial


@dataclass(frozen=True)
class FrontSection(Section):
    """What another accuracy budget would have bought."""

    order: ClassVar[int] = 20

    def blocks(self, study: Study) -> Iterable[Block]:
        """Yield the plot of every scored plan and the table of the front."""
        shown = [_on_search_samples(study, trial) for trial in say.latest(study)]
        shown = [trial for trial in shown if _plotted(trial)]
        if len(shown) < 2:
            return
        front = replace(study, trials=tuple(shown)).front()
        metric = str(study.budget.metric)
        measure = study.job.workload.measure
        better = "higher" if study.budget.metric.higher_is_better else "lower"
        yield Heading(f"{measure[:1].upper()}{measure[1:]} against accuracy")
        yield Scatter(
            f"{measure} / {measure} of the original (lower is better)",
            f"{metric} ({better} is better)",
            tuple(_point(study, trial) for trial in shown),
            tuple(shown.index(trial) for trial in front),
        )
        yield Table(
            ("plan on the front", "speed-up", "99 % interval", metric, "MB", "verdict"),
            tuple(_row(study, trial) for trial in front),
            tuple("win" if trial.key == study.best.key else "" for trial in front),
        )


def _on_search_samples(study: Study, trial: Trial) -> Trial:
    """Give a finalist its score of the search: all scores here are on the same samples."""
    return replace(trial, scores=say.searched(study, trial).scores)


def _plotted(trial: Trial) -> bool:
    if trial.error or trial.ratio is None or trial.score is None:
        return False
    return math.isfinite(trial.ratio.value) and math.isfinite(trial.score.value)


def _point(study: Study, trial: Trial) -> Point:
    x = trial.ratio.value if trial.ratio else math.nan
    y = trial.score.value if trial.score else math.nan
    if trial.key == study.baseline.key:
        return Point(x, y, "original", "original")
    if trial.key == study.best.key:
        return Point(x, y, str(trial.plan), "win")
    return Point(x, y, str(trial.plan), "lose" if outcome(trial) in LOST else "")


def _row(study: Study, trial: Trial) -> tuple[str, ...]:
    speed = study.speedup(trial)
    judged = study.find(trial.key) or trial
    return (
        str(trial.plan),
        say.times(speed),
        say.span(speed),
        say.score(trial),
        say.megabytes(trial.size),
        say.verdict(judged) if trial.key != study.baseline.key else "",
    )
