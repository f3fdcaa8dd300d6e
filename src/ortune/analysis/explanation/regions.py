"""What became of surveyed regions: which plans leave them out, where the winner has them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ortune.analysis.explanation.result import GIVEN, KEPT, MixtureTold, RegionTold, SurveyTold
from ortune.core.step import Quantizer, Step
from ortune.core.trial import Trial
from ortune.model.analysis.precision import named
from ortune.quantization.node_filter import names
from ortune.quantization.roles import PREPARES, deciding, role
from ortune.regions.mixing import bare
from ortune.regions.survey import MixtureTried, RegionCost, Survey, unchanged

FLOAT = "float"


def alike(step: Step) -> Step:
    """Return a quantizer that names no nodes and has no rules by their place.

    A mixture spells out by name what such rules leave in float.
    """
    rules = {"keep_first": 0, "head": True}
    changes: dict[str, Any] = {name: value for name, value in rules.items() if hasattr(step, name)}
    return replace(bare(step), **changes) if changes else bare(step)


def precision(survey: Survey) -> str:
    """Return the step that decides the surveyed layers' precision, without the nodes it names."""
    at = deciding(survey.plan.recipe.steps)
    return "" if at is None else str(bare(survey.plan.recipe.steps[at]))


def takes(step: Step) -> Callable[[str], bool]:
    """Return what says whether a quantizer may take a node, as far as its fields name nodes."""
    only: Sequence[str] = getattr(step, "include", ())
    left = names(getattr(step, "exclude", ()))
    chosen = names(only)
    return lambda name: not left(name) and (not only or chosen(name))


def surveyed(trial: Trial, surveys: Sequence[Survey]) -> tuple[Survey, int] | None:
    """Return the survey of which a trial's plan is a mixture, and where its deciding step stands.

    It has the same backend, and the same steps up to nodes that they name; steps of its own take
    what is left out.
    """
    steps = [(at, alike(step)) for at, step in enumerate(trial.plan.recipe.steps)]
    for survey in surveys:
        at = deciding(survey.plan.recipe.steps)
        if at is None or survey.plan.backend != trial.plan.backend:
            continue
        wanted = alike(survey.plan.recipe.steps[at])
        found = next((place for place, step in steps if step == wanted), None)
        if found is not None:
            return survey, found
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
    found = surveyed(trial, surveys)
    if found is None:
        return None
    survey, at = found
    steps, line = trial.plan.recipe.steps, tried.get(trial.key)
    own = takes(steps[at])
    known = [one for one in survey.regions if not one.error and not unchanged(one)]
    back = [one for one in known if not all(map(own, one.layers or one.nodes))]
    if not back:
        return None
    kept = [one for one in known if one not in back]
    others = [(step, takes(step)) for place, step in enumerate(steps) if place != at]
    return MixtureTold(
        survey.key,
        tuple(one.region for one in back),
        dict(_instead(back, others)),
        len(survey.regions),
        sum(one.accuracy_cost.value for one in kept),
        sum(one.time_gained.value for one in kept),
        None if trial.ratio is None else 1 - trial.ratio.value,
        None if line is None else line.expected_ratio,
        None if line is None else line.expected_lost,
        None if line is None else line.lost,
        None if line is None else line.kept,
        "" if line is None else line.why,
    )


def _instead(
    back: Sequence[RegionCost], others: Sequence[tuple[Step, Callable[[str], bool]]]
) -> Iterator[tuple[str, str]]:
    for one in back:
        for step, may in others:
            decides = isinstance(step, Quantizer) and role(step) not in PREPARES
            if (
                decides
                and getattr(step, "include", None)
                and any(map(may, one.layers or one.nodes))
            ):
                yield one.region, str(bare(step))
                break


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
    own = {number: one for number, one in mixtures.items() if one.survey == survey.key}
    step = precision(survey)
    regions = []
    for one in survey.regions:
        left = tuple(number for number, held in own.items() if one.region in held.given_back)
        found = _in_winner(one, built) if winner[1] else ""
        instead = own[winner[0]].instead.get(one.region, "") if winner[0] in left else ""
        became = _became(one, step, winner, instead, given=winner[0] in left)
        regions.append(RegionTold(one, found, left, became, _why(one, step, became)))
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


def _in_winner(one: RegionCost, built: Mapping[str, str]) -> str:
    """Return the precision of a region's main node in the winner's file, else of its layers."""
    found = (named(built, name) for name in (one.region, *one.layers, *one.nodes))
    return next(filter(None, found), "")


def _became(
    one: RegionCost, step: str, winner: tuple[int, bool], instead: str, *, given: bool
) -> str:
    if one.error:
        return f"not measured: {one.error}"
    if unchanged(one):
        return f"left in float by {step} itself"
    if not winner[1]:
        return "the winner is of another precision"
    if not given:
        return f"{KEPT} in {step}"
    return f"{GIVEN} to {instead}" if instead else f"{GIVEN} back to float"


def _why(one: RegionCost, step: str, became: str) -> str:
    if one.error or unchanged(one):
        return became
    gain = f"{100 * one.time_gained.value:.2g} % of the time"
    return f"{became}: {step} costs {one.accuracy_cost.value:.3g} alone and saves {gain}"
