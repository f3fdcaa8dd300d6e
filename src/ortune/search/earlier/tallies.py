"""What paid, counted: tallies of a search, joined over searches, and asked by features."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from statistics import fmean
from typing import NamedTuple

from ortune.core.facts import Facts
from ortune.core.hardware.paid import Paid, PlanTally
from ortune.core.plugins.plugin import Plugin
from ortune.core.trial import Plan, Status, Trial, Verdict
from ortune.search.earlier.words import expanded, kind, ours, size, words

MOST = 256
"""Tallies of a kind of machine; those that were added to longest ago are forgotten first."""
COUNT = 32
"""Searches from which on a tally is halved: what is older counts less and less."""
WORD = re.compile(r"[a-z][A-Za-z0-9_.-]*(=[A-Za-z0-9_.,()\[\] -]*)?")
LONGEST, WORDS = 80, 16
"""Characters of a word, and words of a tally, at most."""

_SPREAD = 0.3
"""Of the log-ratio of like plans between models, where nothing is known: a factor of 1.35."""
_STRANGE = {"model": 0.4, "size": 0.15}
"""Of the log-ratio of like plans between kinds and sizes of models."""
_WEIGHT = 2
"""Searches that this counts as."""


class Seen(NamedTuple):
    """What searches saw of plans.

    Attributes:
        mean: Of the logarithm of latency over the original's.
        sd: How far the next model's may lie from it: one standard deviation.
        searches: Behind it.
    """

    mean: float
    sd: float
    searches: int


def prior(paid: Paid, features: Iterable[str]) -> Seen | None:
    """Return what plans that have all these features brought on this kind of machine.

    That is the whole log-ratio of such plans, not the part of it that is theirs by the features.

    Args:
        features: Features, or words, of `search.earlier.words`.
    """
    found = pooled(paid, features)
    return None if found is None or not found.measured else _seen(found)


def evidence(paid: Paid, facts: Facts) -> tuple[tuple[tuple[str, ...], Seen], ...]:
    """Return words of like plans with what was seen of them: records for a regression.

    Their deviations are for a model of these facts: what models of another kind or size showed
    says less of it. `expanded` makes features of the words.
    """
    own = (f"model={kind(facts)}", f"size={size(facts)}")
    found = []
    for one in paid.tallies:
        if one.measured:
            seen = _seen(one)
            strange = [_STRANGE[w.partition("=")[0]] for w in own if w not in one.words]
            found.append((one.words, seen._replace(sd=math.hypot(seen.sd, *strange))))
    return tuple(found)


def pooled(paid: Paid, features: Iterable[str]) -> PlanTally | None:
    """Join all tallies of plans that have these features; None where there is none.

    Counts are of searches and plans: of several unlike plans of one search each counts.
    """
    wanted = frozenset(features)
    fit = [one for one in paid.tallies if wanted <= _has(one.words)]
    if not fit:
        return None
    found = replace(fit[0], words=tuple(sorted(wanted)))
    for one in fit[1:]:
        found = _added(found, one)
    return found


def tallied(trials: Sequence[Trial], facts: Facts) -> Paid:
    """Count the trials of one search, like plans together: each tally is of one search.

    The original, what changed nothing and plans with a plugin of the user's are left out.
    """
    found: dict[tuple[str, ...], list[Trial]] = {}
    for trial in {trial.key: trial for trial in trials}.values():  # a finalist's is the last
        if trial.stage == "baseline" or trial.status is Status.UNCHANGED or not _ours(trial.plan):
            continue
        said = words(trial.plan, facts)
        if len(said) <= WORDS and all(map(plain, said)):
            found.setdefault(said, []).append(trial)
    newest = list(reversed(found.items()))[:MOST]
    return Paid(tuple(_tally(said, some) for said, some in newest))


def joined(paid: Paid, more: Paid) -> Paid:
    """Add what a search found to what was known."""
    known = {one.words: one for one in paid.tallies}
    new = [_recent(_added(known.pop(t.words, PlanTally(t.words)), t)) for t in more.tallies]
    return Paid((*new, *known.values())[:MOST])


def plain(word: str) -> bool:
    """Whether a word has a form that may be recorded."""
    return len(word) <= LONGEST and WORD.fullmatch(word) is not None


def _ours(plan: Plan) -> bool:
    parts: list[Plugin] = [plan.backend, *plan.recipe.steps]
    return all(map(ours, parts))


def _tally(said: tuple[str, ...], trials: Sequence[Trial]) -> PlanTally:
    measured = [math.log(t.ratio.value) for t in trials if t.ratio and t.ratio.value > 0]
    scored = [t.score for t in trials if t.score is not None]
    builds = [sum(edit.seconds for edit in t.edits) for t in trials if t.measurement]
    loads = [t.measurement.load_ns / 1e9 for t in trials if t.measurement]
    return PlanTally(
        said,
        tried=1,
        failed=int(all(t.status is Status.FAILED for t in trials)),
        measured=int(bool(measured)),
        mean=fmean(measured) if measured else 0.0,
        scored=int(bool(scored)),
        kept=int(any(one.verdict is not Verdict.FAILS for one in scored)),
        build_s=_mean(builds),
        load_s=_mean(loads),
    )


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else 0.0


def _added(one: PlanTally, two: PlanTally) -> PlanTally:
    """Join two tallies; after Chan, Golub and LeVeque, 1979, for the squares."""
    count = one.measured + two.measured
    if not count:
        share, apart = 0.0, 0.0
    else:
        share, apart = two.measured / count, two.mean - one.mean
    return PlanTally(
        one.words,
        one.tried + two.tried,
        one.failed + two.failed,
        count,
        one.mean + share * apart,
        one.squares + two.squares + one.measured * share * apart**2,
        one.scored + two.scored,
        one.kept + two.kept,
        one.build_s + share * (two.build_s - one.build_s),
        one.load_s + share * (two.load_s - one.load_s),
    )


def _recent(tally: PlanTally) -> PlanTally:
    """Halve a tally of many searches, so that those to come count for more."""
    if tally.tried < COUNT:
        return tally
    return replace(
        tally,
        tried=tally.tried // 2,
        failed=tally.failed // 2,
        measured=tally.measured // 2,
        squares=tally.squares / 2,
        scored=tally.scored // 2,
        kept=tally.kept // 2,
    )


def _seen(tally: PlanTally) -> Seen:
    """Weigh the spread that was seen with the usual one; the mean is known from a few only."""
    count = tally.measured
    spread = (_WEIGHT * _SPREAD**2 + tally.squares) / (_WEIGHT + count - 1)
    return Seen(tally.mean, math.sqrt(spread * (1 + 1 / count)), count)


@cache
def _has(said: tuple[str, ...]) -> frozenset[str]:
    return frozenset((*said, *expanded(said)))
