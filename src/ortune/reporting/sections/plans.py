"""Which plan, and how sure: every plan's speed-up with its interval, beside the original."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from ortune.core import wording as say
from ortune.core.acceptance import Outcome, classify_outcome
from ortune.core.section import Block, Estimate, Heading, Intervals, Section, Text
from ortune.core.study import Study
from ortune.core.trial import Trial
from ortune.reporting.sections.common.plans import PLAN_LEGEND, select_tone

_MOST = 24
"""Rows at most; the table names all."""
_ORDER = ("win", "", "open", "rough", "original", "lose")


@dataclass(frozen=True)
class PlansSection(Section):
    """Every plan as an interval, the winner on top and what lost below."""

    order: ClassVar[int] = 4

    def blocks(self, study: Study) -> Iterable[Block]:
        ranked = sorted(say.list_latest_trials(study), key=lambda trial: _rank_key(study, trial))
        if sum(math.isfinite(study.speedup(trial).value) for trial in ranked) < 2:
            return
        # The first rows; the original and the finalists are always among them.
        kept = {trial.key for trial in (study.baseline, *study.final)}
        room = _MOST - len(kept)
        kept |= {trial.key for trial in [t for t in ranked if t.key not in kept][:room]}
        shown = [trial for trial in ranked if trial.key in kept]
        measure = study.job.workload.measure
        stays = study.best.key == study.baseline.key
        yield Heading("All plans" if stays else "All plans, the winner first")
        yield Text(
            f"Times as fast as the original, by {measure}. Bars: 99 % intervals; a bar that "
            "crosses 1x may be no faster."
        )
        rows = tuple(_make_estimate(study, trial) for trial in shown)
        yield Intervals("plan", "speed-up, 99 %", rows, PLAN_LEGEND)
        if remaining := len(ranked) - len(shown):
            yield Text(f"{say.format_count(remaining, 'slower plan')} more in the table below.")


def _rank_key(study: Study, trial: Trial) -> tuple[int, float]:
    """Order by what a plan is: winner, re-measured, measured once, original, then what lost."""
    place = _ORDER.index(select_tone(study, trial))
    speed = study.speedup(trial).value
    return (place, -speed if math.isfinite(speed) else math.inf)


def _make_estimate(study: Study, trial: Trial) -> Estimate:
    speed, kind = study.speedup(trial), select_tone(study, trial)
    if kind == "original":
        return Estimate("original", speed.value, speed.value, speed.value, "1", tone=kind)
    figure = say.format_speedup(speed)
    if speed.is_bounded:
        figure += f" [{say.format_span(speed)}]"
    elif figure != say.NONE:
        figure = f"about {figure}"
    ends = (speed.value, speed.low, speed.high)
    note = _describe_outcome(study, trial)
    return Estimate(study.label(trial.plan), *ends, figure, note, kind)


def _describe_outcome(study: Study, trial: Trial) -> str:
    """Say in a few words what the mark does not."""
    if trial.error:
        return "cut short" if trial.interruption else "failed"
    if trial.stopped:
        return "stopped early"
    if trial.key == study.best.key:
        return f"winner, accuracy {say.describe_verdict(trial)}"
    if trial.part == "final":
        waited = ", waited for a CPU" if trial.is_disturbed else ""
        return f"finalist, accuracy {say.describe_verdict(trial)}{waited}"
    kind = classify_outcome(trial)
    if kind is Outcome.ROUGH:
        return f"timed for {say.measure_timed_s(trial):.1f} s only"
    if kind is Outcome.DISTURBED:
        return "waited for a CPU"
    return "" if kind in (Outcome.FASTER, Outcome.LEVEL) else str(kind)
