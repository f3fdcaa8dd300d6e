"""What became of surveyed regions: which plans leave them out, where the winner has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ortune.analysis.explanation.result import GIVEN, KEPT, MixtureTold, RegionTold, SurveyTold
from ortune.core.trial import Trial
from ortune.model.analysis.precision import named
from ortune.quantization.roles import deciding
from ortune.regions.choice import bare, parted
from ortune.regions.survey import MixtureTried, RegionCost, Survey, unchanged


def surveyed(trial: Trial, surveys: Sequence[Survey]) -> Survey | None:
    """Return the survey whose plan a trial's is, up to regions that it leaves in float."""
    for survey in surveys:
        same_place = survey.plan.backend == trial.plan.backend
        if same_place and parted(survey, trial.plan.recipe) is not None:
            return survey
    return None


def mixture(
    trial: Trial,
    surveys: Sequence[Survey],
    tried: Mapping[str, MixtureTried],
) -> MixtureTold | None:
    """Say which regions a plan leaves out of a survey's precision; None where it leaves none.

    Args:
        trial: Of the plan.
        surveys: Of the run.
        tried: Key of a trial -> what the journal says of it.
    """
    survey = surveyed(trial, surveys)
    if survey is None:
        return None
    in_float = parted(survey, trial.plan.recipe) or frozenset()
    measured = [one for one in survey.regions if not one.error and not unchanged(one)]
    kept = [one for one in measured if one.region not in in_float]
    if len(kept) == len(measured):
        return None
    line = tried.get(trial.key)
    return MixtureTold(
        survey=survey.key,
        given_back=tuple(one.region for one in measured if one.region in in_float),
        regions=len(survey.regions),
        expected_cost=sum(one.accuracy_cost.value for one in kept),
        expected_gain=sum(one.time_gained.value for one in kept),
        measured_gain=None if trial.ratio is None else 1 - trial.ratio.value,
        expected_ratio=None if line is None else line.expected_ratio,
        expected_lost=None if line is None else line.expected_lost,
        lost=None if line is None else line.lost,
        kept=None if line is None else line.kept,
        why="" if line is None else line.why,
    )


def told(
    survey: Survey,
    mixtures: Mapping[int, MixtureTold],
    winner: tuple[int, bool],
    built: Mapping[str, str],
) -> SurveyTold:
    """Say what became of every region of a survey.

    Args:
        mixtures: Number of a plan -> what it leaves out, of any survey.
        winner: Its number, and whether its steps are the surveyed ones up to what they leave out.
        built: Node of the winner's file -> precision.
    """
    at = deciding(survey.plan.recipe.steps)
    step = "" if at is None else str(bare(survey.plan.recipe.steps[at]))
    regions = []
    for one in survey.regions:
        left_in = tuple(
            number
            for number, plan in mixtures.items()
            if plan.survey == survey.key and one.region in plan.given_back
        )
        became = _became(one, step, winner, left_in)
        why = became
        if not one.error and not unchanged(one):
            gain = f"{100 * one.time_gained.value:.2g} % of the time"
            why += f": {step} costs {one.accuracy_cost.value:.3g} alone and saves {gain}"
        in_file = (named(built, name) for name in (one.region, *one.layers, *one.nodes))
        precision = next(filter(None, in_file), "") if winner[1] else ""
        regions.append(RegionTold(one, precision, left_in, became, why))
    return SurveyTold(
        survey.key,
        str(survey.plan),
        step,
        tuple(regions),
        survey.whole_cost,
        survey.unit,
        survey.seconds,
        survey.error,
    )


def _became(one: RegionCost, step: str, winner: tuple[int, bool], left_in: Sequence[int]) -> str:
    if one.error:
        return f"not measured: {one.error}"
    if unchanged(one):
        return f"left in float by {step} itself"
    if not winner[1]:
        return "the winner is of another precision"
    return f"{GIVEN} back to float" if winner[0] in left_in else f"{KEPT} in {step}"
