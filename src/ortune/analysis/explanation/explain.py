"""Read a run and say why it came to its answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ortune.analysis.explanation import nodes, plans, regions
from ortune.analysis.explanation.requests import Explain
from ortune.analysis.explanation.result import ChangeTold, Explanation, MixtureTold, SurveyTold
from ortune.core import wording
from ortune.core.acceptance import Outcome
from ortune.core.errors import BadData
from ortune.core.request import verb
from ortune.core.study import Study
from ortune.engine import archive
from ortune.experiment.ledger import read_study
from ortune.experiment.surveys import journal
from ortune.regions.survey import MixtureTried, Survey
from ortune.sections.verdict import answer

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
    return explained(study, journal.read(root), node=asked.node, plan=asked.plan)


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
    numbered = plans.records(study, mixtures)
    asked = () if plan is None else plans.meant(numbered, plan)
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
