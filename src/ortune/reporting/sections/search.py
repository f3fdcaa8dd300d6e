"""The search over time: what it tried, and how the best so far grew."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from ortune.core import acceptance
from ortune.core.section import Block, Heading, Line, Lines, Point, Section, Text
from ortune.core.study import Study
from ortune.core.trial import Trial

_LEGEND = (
    ("final", "re-measured"),
    ("timed", "measured once"),
    ("screen", "measured for a moment"),
    ("lose", "slower, stopped early or outside the accuracy budget"),
)


@dataclass(frozen=True)
class SearchSection(Section):
    """Every trial when it ended, and the best plan known then."""

    order: ClassVar[int] = 18

    def blocks(self, study: Study) -> Iterable[Block]:
        """Yield the plot; nothing where fewer than two plans were timed."""
        best: dict[str, float] = {}
        points, spent = [(0.0, 1.0)], 0.0
        marks: list[Point] = []
        for trial in study.trials:
            before = max([1.0, *best.values()])
            spent += trial.seconds
            speed = study.speedup(trial).value
            if trial.key == study.baseline.key or not math.isfinite(speed):
                continue
            best.pop(trial.key, None)
            # Whether a trial could be handed out as far as it was known then.
            goal, strict = study.job.wanted, study.strict
            if acceptance.looks_eligible(trial, study.baseline, strict=strict, goal=goal):
                best[trial.key] = speed
            # What led is named first.
            place = 0 if speed == max(best.values(), default=0.0) else len(marks)
            marks.insert(place, Point(spent, speed, study.label(trial.plan), _select_tone(trial)))
            points += [(spent, before), (spent, max([1.0, *best.values()]))]
        if len(marks) < 2:
            return
        name = "best so far within the accuracy budget"
        yield Heading("The search over time")
        yield Lines(
            "seconds of search",
            "times as fast as the original",
            (Line(name, (*points, (spent, points[-1][1])), "win"),),
            tuple(marks),
            legend=_LEGEND,
            named=3,
        )
        yield Text("The line falls where a longer measurement corrects an earlier estimate.")


def _select_tone(trial: Trial) -> str:
    if acceptance.classify_outcome(trial) in acceptance.LOST or trial.stopped:
        return "lose"
    if trial.part == "final":
        return "final"
    return "screen" if trial.effort == "screen" else "timed"
