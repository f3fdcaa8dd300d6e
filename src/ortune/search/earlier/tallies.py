"""What paid, counted: tallies of a search, joined over searches."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import fields, replace
from statistics import fmean

from ortune.core.facts import Facts
from ortune.core.hardware.paid import Paid, PlanTally
from ortune.core.plugins.plugin import Plugin
from ortune.core.trial import BESIDE, Trial
from ortune.search.expectation.elsewhere import model_kind
from ortune.search.expectation.features import latency_features
from ortune.search.expectation.surrogate import Features

MOST = 256
"""Tallies of a kind of machine; those that were added to longest ago are forgotten first."""
COUNT = 32
"""Searches from which on a tally is halved: what is older counts less and less."""
FEATURE = re.compile(r"[a-z@]+(:[\w.@-]*(/\w+)?(=[\w.,()\[\]' -]*)?)?", re.ASCII)
LONGEST, FEATURES = 80, 24
"""Characters of a feature, and features of a tally, at most."""


def tallied(trials: Sequence[Trial], facts: Facts) -> Paid:
    """Count the timed trials of one search, like plans together: each tally is of one search.

    The original and plans with a plugin of the user's are left out.
    """
    found: dict[tuple[str, ...], tuple[Features, list[float]]] = {}
    for trial in {trial.key: trial for trial in trials}.values():  # a finalist's is the last
        plan, ratio = trial.plan, trial.ratio.value if trial.ratio else 0.0
        if (
            trial.stage in ("baseline", BESIDE)
            or ratio <= 0
            or not ours(plan.backend, *plan.recipe.steps)
        ):
            continue
        made = latency_features(plan, public=True)
        if len(made) <= FEATURES and all(map(plain, made)):
            found.setdefault(tuple(made), (made, []))[1].append(math.log(ratio))
    model, newest = model_kind(facts), list(reversed(found.values()))[:MOST]
    return Paid(tuple(PlanTally(model, made, mean=fmean(some)) for made, some in newest))


def joined(paid: Paid, more: Paid) -> Paid:
    """Add what a search found to what was known."""
    known = {one.key: one for one in paid.tallies}
    new = [_added(known.pop(one.key, None), one) for one in more.tallies]
    return Paid((*new, *known.values())[:MOST])


def plain(feature: str) -> bool:
    """Whether a feature has a form that may be recorded."""
    return len(feature) <= LONGEST and FEATURE.fullmatch(feature) is not None


def ours(*plugins: Plugin) -> bool:
    """Whether plugins and those in their fields are ortune's: the names of others may tell."""
    for one in plugins:
        values = (getattr(one, field.name) for field in fields(one))
        inner = (value for value in values if isinstance(value, Plugin))
        if not type(one).__module__.startswith("ortune.") or not ours(*inner):
            return False
    return True


def _added(known: PlanTally | None, new: PlanTally) -> PlanTally:
    """Join two tallies; after Chan, Golub and LeVeque, 1979, for the squares.

    One of many searches is halved, so that those to come count for more.
    """
    if known is None:
        return new
    searches = known.searches + new.searches
    share, apart = new.searches / searches, new.mean - known.mean
    mean = known.mean + share * apart
    squares = known.squares + new.squares + known.searches * share * apart**2
    if searches >= COUNT:
        searches, squares = searches // 2, squares / 2
    return replace(known, searches=searches, mean=mean, squares=squares)
