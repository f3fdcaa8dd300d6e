"""Plans of a run: their records, and which of them a person means."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence

from ortune.analysis.explanation.result import Attempted, MixtureTold, PlanTold
from ortune.core import wording
from ortune.core.acceptance import outcome
from ortune.core.errors import BadSettings
from ortune.core.study import Study
from ortune.core.trial import Trial

_SHORTEST, _NEAR = 4, 3


def records(study: Study, mixtures: Mapping[int, MixtureTold]) -> tuple[PlanTold, ...]:
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
