"""What each kind of change brought, one after the other."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from ortune.core import wording as say
from ortune.core.section import Block, Heading, Section, Table
from ortune.core.study import JOINED, Study
from ortune.core.trial import Trial

_NAMES = {"runtime": "runtime settings"}
_SHARED = "together, as the time was up before each was measured alone"


@dataclass(frozen=True)
class HistorySection(Section):
    """Latency ratio, size and score on the way from the original to the winner; each is measured.

    Scores are on the search's samples throughout: the final ones are seen by finalists only.
    Changes that there was no time to measure alone share a row.
    """

    order: ClassVar[int] = 40
    terminal: ClassVar[bool] = True

    def blocks(self, study: Study) -> Iterable[Block]:
        """Yield one row a stage."""
        stage_trials = [(stage.name, study.find(stage.key)) for stage in study.history]
        rows = tuple(
            _make_row(study, name, trial) for name, trial in stage_trials if trial is not None
        )
        if len(rows) < 2:
            return
        metric = study.budget.metric.name()
        yield Heading("What each change brought", folded=True)
        yield Table(("after", say.ratio_of(study), "MB", metric, "plan"), rows)


def _make_row(study: Study, name: str, trial: Trial) -> tuple[str, ...]:
    names = [_NAMES.get(part, part) for part in name.split(JOINED)]
    return (
        f"{' and '.join(names)}, {_SHARED}" if len(names) > 1 else names[0],
        say.NONE if trial.key == study.baseline.key else say.format_ratio(trial),
        say.format_megabytes(trial.size),
        say.format_score(study, say.find_search_trial(study, trial)),
        str(trial.plan),
    )
