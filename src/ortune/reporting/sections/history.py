"""What each kind of change brought, one after the other."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from ortune.core import wording as say
from ortune.core.section import Block, Heading, Section, Table
from ortune.core.study import Study
from ortune.core.trial import Trial

_NAMES = {"runtime": "runtime settings"}


@dataclass(frozen=True)
class HistorySection(Section):
    """Latency ratio, size and score on the way from the original to the winner; each is measured.

    Scores are on the search's samples throughout: the final ones are seen by finalists only.
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
    return (
        _NAMES.get(name, name),
        say.NONE if trial.key == study.baseline.key else say.format_ratio(trial),
        say.format_megabytes(trial.size),
        say.format_score(say.find_search_trial(study, trial)),
        str(trial.plan),
    )
