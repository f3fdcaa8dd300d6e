"""What each kind of change brought, one after the other."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from ortune.core import wording as say
from ortune.core.plan_label import ORIGINAL, label_changes
from ortune.core.section import Block, Heading, Section, Table
from ortune.core.study import Study
from ortune.core.trial import Plan, Trial

_NAMES = {"baseline": ORIGINAL, "graph": "graph optimization"}


@dataclass(frozen=True)
class HistorySection(Section):
    """Speed-up, size and score on the way from the original to the winner; each is measured.

    Scores are on the search's samples throughout: the final ones are seen by finalists only.
    Changes that there was no time to measure alone share a row.
    """

    order: ClassVar[int] = 40
    terminal: ClassVar[bool] = True

    def blocks(self, study: Study) -> Iterable[Block]:
        rows = [_make_row(study, label, trial) for _, label, trial in list_contributions(study)]
        if len(rows) < 2:
            return
        metric = say.shorten_metric(str(study.budget.metric))
        yield Heading("What each change brought", folded=True)
        yield Table(("after", "speed-up, 99 %", "MB", metric), tuple(rows))


def list_contributions(study: Study) -> Iterator[tuple[str, str, Trial]]:
    """Yield the measured changes on the way to the winner: kind, label for people, and trial."""
    before = study.baseline
    for stage in study.history:
        if (trial := study.find(stage.key)) is not None:
            yield stage.name, _name_contribution(study, stage.name, trial, before), trial
            before = trial


def _name_contribution(study: Study, kind: str, trial: Trial, before: Trial) -> str:
    """Name a change by what differs from the plan before it, by both where two were made."""
    if kind in _NAMES:
        return _NAMES[kind]
    changes = label_changes(trial.plan, before.plan)
    if len(changes) < 2:
        return "".join(changes) or kind
    halfway = Plan(trial.plan.recipe, before.plan.backend)
    tried = any(t.plan.spelling == halfway.spelling for t in study.trials if t.error)
    why = "one of them fails alone" if tried else "out of time"
    return f"{' + '.join(changes)} (not separated: {why})"


def _make_row(study: Study, name: str, trial: Trial) -> tuple[str, ...]:
    return (
        name,
        say.NONE if trial.key == study.baseline.key else say.describe_speedup(trial.shown_ratio),
        say.format_megabytes(trial.size),
        say.format_score(study, say.find_search_trial(study, trial)),
    )
