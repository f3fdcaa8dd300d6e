"""Read a run and say why it came to its answer."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ortune.analysis.explanation import nodes, regions
from ortune.analysis.explanation.requests import Explain
from ortune.analysis.explanation.result import (
    Attempted,
    ChangeTold,
    Explanation,
    MixtureTold,
    PlanTold,
    SurveyTold,
)
from ortune.core import wording
from ortune.core.acceptance import Outcome, outcome
from ortune.core.errors import BadData, BadSettings
from ortune.core.request import verb
from ortune.core.study import Study
from ortune.core.trial import Trial
from ortune.engine import archive
from ortune.experiment import surveys
from ortune.experiment.ledger import read_study
from ortune.regions.survey import MixtureTried, Survey
from ortune.sections.verdict import answer

_SHORTEST, _NEAR = 4, 3


def number_plans(study: Study, mixtures: Mapping[int, MixtureTold]) -> tuple[PlanTold, ...]:
    """Return the record of every plan that was tried, numbered in order, the original first."""
    best = study.best.key
    made = []
    for number, last in enumerate(wording.latest(study)):
        trials = [trial for trial in study.trials if trial.key == last.key]
        first = trials[0]
        made.append(
            PlanTold(
                number,
                last.key,
                "original" if last.key == study.baseline.key else str(last.plan),
                tuple(map(str, last.plan.recipe.steps)),
                str(last.plan.backend),
                first.stage,
                first.proposed,
                str(outcome(last)) if number else "the original",
                wording.reason(last),
                last.edits,
                last.size,
                tuple(map(_attempted, trials)),
                last.key == best,
                mixtures.get(number),
                last.error,
                last.reproduce,
            )
        )
    return tuple(made)


def _attempted(trial: Trial) -> Attempted:
    return Attempted(
        trial.part,
        trial.effort,
        str(outcome(trial)),
        wording.reason(trial),
        trial.ratio,
        trial.predicted,
        trial.scores,
        trial.seconds,
        trial.stopped,
    )


def meant(plans: Sequence[PlanTold], text: str) -> tuple[PlanTold, ...]:
    """Return the plans of this number, name or start of a key; a name may be of several backends.

    Raises:
        BadSettings: There is none; close names are told.
    """
    if text.isdecimal() and len(text) < _SHORTEST and int(text) < len(plans):
        return (plans[int(text)],)
    if text == "winner":
        return tuple(one for one in plans if one.winner)
    recipes = {one.number: one.plan.partition(" @ ")[0] for one in plans}
    found = [one for one in plans if text in (one.plan, recipes[one.number])]
    if len(text) >= _SHORTEST:
        found = found or [one for one in plans if one.key.startswith(text)]
    if found:
        return tuple(found)
    every = [*dict.fromkeys([*recipes.values(), *(one.plan for one in plans)])]
    near = [name for name in every if text and text.lower() in name.lower()][:_NEAR]
    near = near or difflib.get_close_matches(text, every, n=_NEAR, cutoff=0.4) or every[:_NEAR]
    raise BadSettings(
        f"no plan '{text}' in this run",
        fix=f"give a number from 0 to {len(plans) - 1}, the start of a key, or a name such as "
        f"{', '.join(near)}",
    )


NO_SURVEY = "no regions were surveyed"


def run(asked: Explain) -> Explanation:
    """Explain a run, or a node or a plan of it."""
    root = Path(asked.run)
    if root.is_file() and archive.is_bundle(root):
        raise BadData(
            f"{root} is a bundle, which holds its own plans alone",
            fix="give the run's folder that it was packed from",
        )
    study = read_study(root)
    return explained(study, surveys.read(root), node=asked.node, plan=asked.plan)


explain = verb(Explain, run)


def explained(
    study: Study,
    records: Sequence[Survey | MixtureTried],
    *,
    node: str | None = None,
    plan: str | None = None,
) -> Explanation:
    """Explain a study.

    Args:
        study: It may be unfinished.
        records: Of its regions, as its journal has them.
        node: Tell all of this node.
        plan: Tell the record of this plan.

    Raises:
        BadSettings: There is no such node or plan.
    """
    latest = wording.latest(study)
    surveys = [one for one in records if isinstance(one, Survey)]
    tried = {one.key: one for one in records if isinstance(one, MixtureTried)}
    mixtures = {
        number: found
        for number, trial in enumerate(latest)
        if (found := regions.mixture(trial, surveys, tried)) is not None
    }
    numbered = number_plans(study, mixtures)
    asked = () if plan is None else meant(numbered, plan)
    models = nodes.known(study) if surveys or node is not None else nodes.KnownNodes({}, {})
    told = tuple(_surveys(study, surveys, mixtures, models.built))
    best = study.best
    return Explanation(
        run=study.root,
        model=study.job.model,
        answer=answer(study),
        accuracy=wording.means(best.score) if best.key != study.baseline.key else "",
        budget=str(study.budget),
        finished=study.finished,
        way=tuple(_way(study)),
        plans=numbered,
        untried=study.counts[Outcome.UNTRIED],
        left_out=study.ending.left_out,
        surveys=told,
        node=None if node is None else nodes.told(study, node, models, told),
        asked=asked,
        notes=(*models.notes, *(() if surveys else (f"{NO_SURVEY} in this run",))),
    )


def _surveys(
    study: Study,
    surveys: Sequence[Survey],
    mixtures: Mapping[int, MixtureTold],
    built: Mapping[str, str],
) -> Iterator[SurveyTold]:
    keys = [trial.key for trial in wording.latest(study)]
    number = keys.index(study.best.key)
    found = regions.surveyed(study.best, surveys)
    for survey in surveys:
        yield regions.told(survey, mixtures, (number, found is survey), built)


def _way(study: Study) -> Iterator[ChangeTold]:
    """Yield what each kind of change brought, with the reason why it was tried."""
    numbers = {trial.key: number for number, trial in enumerate(wording.latest(study))}
    for stage in study.history:
        trial = study.find(stage.key)
        if trial is not None:
            why = wording.searched(study, trial).proposed
            yield ChangeTold(stage.name, numbers[trial.key], trial.ratio, why)
