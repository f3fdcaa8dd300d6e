"""Speed against score, or against size: what another budget would have bought."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar

from ortune.core import wording as say
from ortune.core.acceptance import LOST, outcome, resolution
from ortune.core.section import Block, Heading, Point, Scatter, Section, Table, Text
from ortune.core.study import Study
from ortune.core.trial import Trial


@dataclass(frozen=True)
class FrontSection(Section):
    """The trade of speed for accuracy; for size where that is preferred."""

    order: ClassVar[int] = 20

    def blocks(self, study: Study) -> Iterable[Block]:
        """Yield the plot of every plan that was timed, and the table of the front."""
        latest = [trial for trial in say.latest(study) if _timed(trial)]
        if study.job.wanted.prefer == "size":
            yield from _sizes(study, [trial for trial in latest if trial.size])
            return
        shown = [replace(one, scores=say.searched(study, one).scores) for one in latest]
        shown = [one for one in shown if one.score and math.isfinite(one.score.value)]
        if len(shown) < 2:
            return
        front = replace(study, trials=tuple(shown)).front()
        metric = say.metric(str(study.budget.metric))
        better = "higher" if study.budget.metric.higher_is_better else "lower"
        yield Heading("Speed against accuracy")
        yield Scatter(
            "times as fast as the original",
            metric,
            tuple(_scored(study, trial) for trial in shown),
            tuple(shown.index(trial) for trial in front),
        )
        yield Text(
            f"Of scores {better} is better; all are on the search's samples. Bars across are "
            "99 % intervals; up and down, what chance may make of a score. No step of the front "
            "is one that chance could make."
        )
        yield Heading("The front", folded=True)
        yield Table(
            ("plan on the front", "speed-up", "99 % interval", metric, "MB", "verdict"),
            tuple(_row(study, trial) for trial in front),
            tuple("win" if trial.key == study.best.key else "" for trial in front),
        )


def _sizes(study: Study, shown: list[Trial]) -> Iterable[Block]:
    if len(shown) < 2:
        return
    yield Heading("Speed against size")
    yield Scatter(
        "times as fast as the original",
        "MB of model files",
        tuple(_point(study, trial, (trial.size or 0) / 1e6) for trial in shown),
    )
    yield Text("Smaller is better. Bars across are 99 % intervals.")


def _timed(trial: Trial) -> bool:
    return not trial.error and trial.ratio is not None and math.isfinite(trial.ratio.value)


def _scored(study: Study, trial: Trial) -> Point:
    score = trial.score
    if score is None:
        return _point(study, trial, math.nan)
    point, chance = _point(study, trial, score.value), resolution(score, study.budget)
    if trial.key == study.baseline.key or not chance:
        return point
    return replace(point, y_span=(score.value - chance, score.value + chance))


def _point(study: Study, trial: Trial, y: float) -> Point:
    speed = study.speedup(trial)
    if trial.key == study.baseline.key:
        return Point(speed.value, y, "original", "original")
    lost = "lose" if outcome(trial) in LOST else ""
    kind = "win" if trial.key == study.best.key else lost
    span = (speed.low, speed.high) if speed.bounded else None
    return Point(speed.value, y, str(trial.plan), kind, x_span=span)


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
