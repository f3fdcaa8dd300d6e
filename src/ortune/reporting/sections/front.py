"""Speed against score, or against size: what another budget would have bought."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar

from ortune.core import wording as say
from ortune.core.section import Block, Heading, Limit, Point, Scatter, Section, Table, Text
from ortune.core.study import Study
from ortune.core.trial import Trial
from ortune.reporting.sections.common.plans import PLAN_LEGEND, select_tone


@dataclass(frozen=True)
class FrontSection(Section):
    """The trade of speed for accuracy; for size where that is preferred."""

    order: ClassVar[int] = 2
    columns: ClassVar[int] = 7

    def blocks(self, study: Study) -> Iterable[Block]:
        latest = [trial for trial in say.list_latest_trials(study) if _is_timed(trial)]
        if study.job.wanted.prefer == "size":
            yield from _plot_sizes(study, [trial for trial in latest if trial.size])
            return
        pairs = [(trial, trial.score) for trial in latest]
        shown = [t for t, score in pairs if score and math.isfinite(score.value - score.base)]
        if len(shown) < 2:
            return
        front = replace(study, trials=tuple(shown)).front()
        metric = say.shorten_metric(str(study.budget.metric))
        scale, unit = say.scale_score(study.budget.metric)
        yield Heading("Speed against accuracy")
        yield Scatter(
            "times as fast as the original",
            f"change of {metric}{unit}",
            tuple(_make_score_point(study, trial, scale) for trial in shown),
            tuple(shown.index(trial) for trial in front),
            PLAN_LEGEND,
            named=tuple(i for i, t in enumerate(shown) if t.key == study.baseline.key),
            limit=_find_limit(study, scale),
            log_x=True,
        )
        better = "higher" if study.budget.metric.higher_is_better else "lower"
        yield Text(
            f"Change on the same samples; {better} is better. Bars: 99 % intervals (speed), what "
            "the verdict rests on (accuracy). Dashes join the Pareto front."
        )
        yield Heading("Pareto front: plans that are better beyond these errors", folded=True)
        yield Table(
            ("plan", "speed-up", "99 % interval", metric, "MB", "verdict"),
            tuple(_make_row(study, trial) for trial in front),
            tuple("win" if trial.key == study.best.key else "" for trial in front),
        )


def _plot_sizes(study: Study, shown: list[Trial]) -> Iterable[Block]:
    if len(shown) < 2:
        return
    yield Heading("Speed against size")
    points = tuple(_make_point(study, trial, (trial.size or 0) / 1e6) for trial in shown)
    axes = ("times as fast as the original", "MB of model files")
    yield Scatter(*axes, points, legend=PLAN_LEGEND, log_x=True)
    yield Text("Smaller is better. Bars: 99 % intervals of the speed-up.")


def _is_timed(trial: Trial) -> bool:
    ratio = trial.shown_ratio
    return not trial.error and ratio is not None and math.isfinite(ratio.value)


def _find_limit(study: Study, scale: float) -> Limit | None:
    """Return the budget as a limit of the change; None where plans have bases of their own."""
    budget, score = study.budget, study.best.score
    if budget.relative:
        at = budget.limit
    elif score is not None and score.share is None and math.isfinite(score.base):
        at = budget.limit - score.base
    else:
        return None
    return Limit(scale * at, f"budget: {budget}", budget.metric.higher_is_better)


def _make_score_point(study: Study, trial: Trial, scale: float) -> Point:
    score = trial.score
    if score is None:
        return _make_point(study, trial, math.nan)
    point = _make_point(study, trial, scale * (score.value - score.base))
    scores = (score.low, score.value, score.high)
    ends = [scale * (end - score.base) for end in scores if math.isfinite(end)]
    if trial.key == study.baseline.key or len(ends) < 2 or min(ends) == max(ends):
        return point
    return replace(point, y_span=(min(ends), max(ends)))


def _make_point(study: Study, trial: Trial, y: float) -> Point:
    speed = study.speedup(trial)
    size = trial.size / 1e6 if trial.size else None
    tone = select_tone(study, trial)
    if tone == "original":
        return Point(speed.value, y, "original", tone, size=size)
    span = (speed.low, speed.high) if speed.is_bounded else None
    return Point(speed.value, y, study.label(trial.plan), tone, x_span=span, size=size)


def _make_row(study: Study, trial: Trial) -> tuple[str, ...]:
    speed = study.speedup(trial)
    judged = study.find(trial.key) or trial
    return (
        study.label(trial.plan),
        say.format_speedup(speed),
        say.format_span(speed),
        say.format_score(study, trial),
        say.format_megabytes(trial.size),
        say.describe_verdict(judged) if trial.key != study.baseline.key else "",
    )
