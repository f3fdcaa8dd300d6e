"""What a search hands out: where every plan is outside its budget, and where one loses half of it.

Plans are drawn in the order of their speed and go the way of a search: the samples are divided
as `optimize` divides them, the search's throw out what fails on them, some that are left are
judged on all: the fastest that may be accepted, then by speed. A plan that is proved or likely is
handed out.

    python -m benchmarks.accuracy.acceptance

counts how often what may be accepted is, and what may not; results:
``benchmarks/results/reach.json``.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from pathlib import Path
from statistics import NormalDist
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from benchmarks.accuracy.populations import HERE, LIMIT, OUT, Rng
from benchmarks.result_files import RESULTS, write_results
from ortune.core.budget import Budget
from ortune.core.trial import Score, Verdict
from ortune.data import split
from ortune.data.feeds import Feeds
from ortune.measurement.accuracy import (
    ERROR,
    compute_score,
    count_provable_samples,
    is_within_reach,
    judge_accuracy,
)
from ortune.search.loop import FINALISTS

Floats: TypeAlias = NDArray[np.float64]
Drawn: TypeAlias = tuple[Floats, Floats]
"""Records [plans, samples, k] of the candidates, and those [samples, k] of the baseline."""
Draw: TypeAlias = Callable[[Rng, int, int], Drawn]
"""By how many samples and plans."""

COUNTS = (50, 100, 200, 500, 1000)
PLANS = (1, 30)
ALIKE = 0.7
"""How often plans that share their losses fail on the same samples."""
_OBJECTS, _RECALL = 5.0, 0.9
ACCEPTED = (Verdict.PROVED, Verdict.LIKELY)
REACH_COUNTS, REACH_PLANS, _AT_ONCE = (100, 200, 500, 1000), (3, 10, 30), 6


@dataclass(frozen=True)
class Case:
    """Plans, and the budget that they are judged by.

    Attributes:
        outside: Every plan is; else the fastest alone is inside.
    """

    name: str
    budget: str
    draw: Draw
    outside: bool = True


def _levels(rng: Rng, plans: int, n: int, alike: float) -> Floats:
    """Return uniform numbers [plans, samples], some the same for all plans."""
    numbers = rng.random((plans, n))
    if alike:
        numbers = np.where(rng.random((plans, n)) < alike, rng.random(n), numbers)
    return numbers


def _answers(
    rng: Rng,
    n: int,
    plans: int,
    *,
    lost: tuple[float, float],
    won: float = 0.0,
    alike: float = 0.0,
) -> Drawn:
    """Right and wrong answers, lost by the fastest plan and by each other one so often."""
    base = (rng.random(n) < 0.8).astype(np.float64)
    base_column = base[:, None]
    rates = np.full((plans, 1), lost[1])
    rates[0] = lost[0]
    numbers = _levels(rng, plans, n, alike)
    flipped = np.where(base == 1, numbers < (rates + won) / 0.8, numbers < won / 0.2)
    return np.where(flipped, 1 - base, base)[:, :, None], base_column


def _decisions(rng: Rng, n: int, plans: int, *, share: float, alike: float = 0.0) -> Drawn:
    """One decision a sample, which is not always the original's."""
    same = _levels(rng, plans, n, alike) >= share
    records = np.stack([same.astype(np.float64), np.ones(same.shape)], 2)
    return records, np.ones((n, 2))


def _shares(rng: Rng, n: int, plans: int, *, share: float, alike: float = 0.0) -> Drawn:
    """Cosines of which too many are broken."""
    broken = _levels(rng, plans, n, alike) < share
    return np.where(broken, 0.5, 0.99999)[:, :, None], np.ones((n, 1))


def _signals(rng: Rng, n: int, plans: int, *, share: float) -> Drawn:
    """Loud and quiet samples around the limit of 30 dB, of which too many are below."""
    shift = NormalDist().inv_cdf(share)
    loud = np.exp(2 * rng.standard_normal(n))
    db = 30 + 3 * (rng.standard_normal((plans, n)) - shift)
    signal = np.broadcast_to(loud, db.shape)
    base = np.stack([loud, np.zeros(n)], 1)
    return np.stack([signal, signal * 10 ** (-db / 10)], 2), base


def _scores(rng: Rng, n: int, plans: int, *, lost: float) -> Drawn:
    """Scores between 0 and 1, of which few fall to 0."""
    return np.where(rng.random((plans, n)) < lost, 0.0, 1.0)[:, :, None], np.ones((n, 1))


def _objects(rng: Rng, n: int, plans: int, *, lost: float, whole: bool) -> Drawn:
    """Objects in pictures: found, and there; some that the original found are lost.

    Args:
        whole: All of a picture at once.
    """
    there = rng.poisson(_OBJECTS, n) + 1
    found = rng.binomial(there, _RECALL)
    if whole:
        gone = np.where(rng.random((plans, n)) < lost, found, 0)
    else:
        gone = rng.binomial(np.broadcast_to(found, (plans, n)), lost)
    records = np.stack([found - gone, np.broadcast_to(there, gone.shape)], 2)
    return records.astype(np.float64), np.stack([found, there], 1).astype(np.float64)


def recall(expected: Any, actual: Any, label: Any) -> float:
    """Stand for the share of all objects that are found; only records are drawn."""
    raise NotImplementedError


recall.bounds = (0.0, 1.0)  # type: ignore[attr-defined]
recall.aggregate = lambda rows: float(rows[:, 0].sum() / rows[:, 1].sum())  # type: ignore[attr-defined]
_TOP1, _RECALLED = "top1>=base-0.01", f"{__name__}:recall>=base-0.02"
_JUST = 0.01 * OUT


def _one_in(draw: Draw, good: Draw) -> Draw:
    """Return plans of which the fastest is drawn by another law."""

    def drawn(rng: Rng, n: int, plans: int) -> Drawn:
        others, base = draw(rng, n, plans)
        first, _ = good(rng, n, 1)
        return np.concatenate([first, others[1:]]), base

    return drawn


@cache
def list_cases() -> tuple[Case, ...]:
    """Return every case, those in which all plans are outside first."""
    bad = 0.05 * OUT
    lost = 0.02 * OUT / _RECALL
    outside = [
        Case("labels, just outside", _TOP1, partial(_answers, lost=(_JUST, _JUST))),
        Case("labels, just outside, 2 % won", _TOP1,
             partial(_answers, lost=(_JUST, _JUST), won=0.02)),
        Case("labels, just outside, losses shared", _TOP1,
             partial(_answers, lost=(_JUST, _JUST), alike=ALIKE)),
        Case("labels, 2 points lost", _TOP1, partial(_answers, lost=(0.02, 0.02))),
        Case("labels, 2 points lost, losses shared", _TOP1,
             partial(_answers, lost=(0.02, 0.02), alike=ALIKE)),
        Case("agreement", "agreement>=0.99", partial(_decisions, share=_JUST)),
        Case("agreement, losses shared", "agreement>=0.99",
             partial(_decisions, share=_JUST, alike=ALIKE)),
        Case("SNR", "snr>=30", partial(_signals, share=bad)),
        Case("cosine, some broken", f"cosine>={LIMIT}", partial(_shares, share=bad)),
        Case("cosine, some broken, losses shared", f"cosine>={LIMIT}",
             partial(_shares, share=bad, alike=ALIKE)),
        Case("bounded scores", f"{HERE}:quality>=base-0.02", partial(_scores, lost=0.02 * OUT)),
        Case("detection, objects lost", _RECALLED, partial(_objects, lost=lost, whole=False)),
        Case("detection, pictures lost", _RECALLED, partial(_objects, lost=lost, whole=True)),
    ]  # fmt: skip
    half = lost / 2
    inside = [
        Case("labels, half of the budget lost", _TOP1, partial(_answers, lost=(0.005, 0.02))),
        Case("labels, half lost, 0.5 % won", _TOP1,
             partial(_answers, lost=(0.005, 0.02), won=0.005)),
        Case("labels, a tenth lost", _TOP1, partial(_answers, lost=(0.001, 0.02))),
        Case("agreement, half", "agreement>=0.99",
             _one_in(partial(_decisions, share=0.02), partial(_decisions, share=0.005))),
        Case("SNR, 1 % below", "snr>=30",
             _one_in(partial(_signals, share=0.1), partial(_signals, share=0.01))),
        Case("cosine, 1 % broken", f"cosine>={LIMIT}",
             _one_in(partial(_shares, share=0.1), partial(_shares, share=0.01))),
        Case("detection, half lost", _RECALLED, _first_objects(half, 2 * lost)),
    ]  # fmt: skip
    return (*outside, *(Case(c.name, c.budget, c.draw, outside=False) for c in inside))


def _first_objects(first: float, others: float) -> Draw:
    """Return plans that lose objects of the same pictures, the fastest fewer."""

    def draw(rng: Rng, n: int, plans: int) -> Drawn:
        rates = np.full((plans, 1), others)
        rates[0] = first
        return _objects(rng, n, plans, lost=rates, whole=False)  # type: ignore[arg-type]

    return draw


@dataclass(frozen=True)
class Division:
    """Which samples search, and which of those that are scored prove."""

    search: NDArray[np.int64]
    scored: NDArray[np.int64]
    proof: NDArray[np.int64]


@cache
def divide_samples(budget: str, count: int) -> Division:
    """Divide so many different samples as a search does that has time for all of them."""
    feeds = Feeds(Path(), count, tuple(map(str, range(count))), None, None)
    unchanged = np.ones((count, 2))
    needed = count_provable_samples(Budget.parse(budget), unchanged, ERROR / FINALISTS)
    parts = split.split_samples(feeds, None, needed)
    scored = np.array([*parts.search, *parts.final])
    return Division(np.array(parts.search), scored, np.arange(len(parts.search), len(scored)))


def hand_out(case: Case, rng: Rng, count: int, plans: int, draws: int) -> dict[str, Any]:
    """Count the draws in which a plan is handed out, and those in which the fastest is."""
    budget, parts = Budget.parse(case.budget), divide_samples(case.budget, count)
    handed = first = proved = 0
    for turn in range(draws):
        records, base = case.draw(rng, count, plans)
        judge = partial(_judge, budget, base, parts, plans, turn)
        scores = judge_finalists(budget, records, base, parts, judge)
        accepted = [at for at, score in scores.items() if score.verdict in ACCEPTED]
        handed += bool(accepted)
        first += 0 in accepted
        proved += any(score.verdict is Verdict.PROVED for score in scores.values())
    return {
        "budget": case.budget, "draws": draws, "plans": plans, "outside": case.outside,
        "handed out": handed, "fastest": first, "proved": proved,
    }  # fmt: skip


def judge_finalists(
    budget: Budget, records: Floats, base: Floats, parts: Division, judge: Callable[..., Score]
) -> dict[int, Score]:
    """Return the scores of the plans that a search would judge at its end, by their places."""
    candidates = [
        at for at in range(len(records)) if _holds(budget, records[at], base, parts.search)
    ]

    def may_be_accepted(at: int) -> bool:
        seen = judge(records[at], search=True)
        return is_within_reach(seen, len(parts.scored), len(records))

    unchanged = judge(base, search=True)
    if not is_within_reach(unchanged, len(parts.scored), len(records)):
        return {at: judge(records[at]) for at in candidates[:FINALISTS]}
    first = next(filter(may_be_accepted, candidates), None)
    candidates.sort(key=lambda at: at != first)
    scores = {at: judge(records[at]) for at in candidates[:FINALISTS]}
    if not any(score.verdict in ACCEPTED for score in scores.values()):
        for at in filter(may_be_accepted, candidates[FINALISTS:]):
            return scores | {at: judge(records[at])}
    return scores


def count_within_reach(rng: Rng, draws: int) -> dict[str, Any]:
    """Count plans that the search's samples leave, by whether all samples would make them likely
    were all like those, and how many of each are accepted then."""
    rows: dict[str, dict[int, Counter[str]]] = {}
    for budget_text, losses in _REACH.items():
        budget = Budget.parse(budget_text)
        for draw, count, plans in product(losses, REACH_COUNTS, REACH_PLANS):
            parts = divide_samples(budget_text, count)
            counted = rows.setdefault(budget_text, {}).setdefault(count, Counter())
            for turn in range(draws):
                records, base = draw(rng, count, _AT_ONCE)
                judge = partial(_judge, budget, base, parts, plans, turn)
                for one in records:
                    if _holds(budget, one, base, parts.search):
                        seen = judge(one, search=True)
                        reached = is_within_reach(seen, len(parts.scored), plans)
                        name = "within reach" if reached else "beyond"
                        counted[name] += 1
                        counted[f"{name}, accepted"] += judge(one).verdict in ACCEPTED
    every = sum((one for counts in rows.values() for one in counts.values()), Counter[str]())
    return {"all": every, "budgets": rows}


def _holds(budget: Budget, records: Floats, base: Floats, rows: NDArray[np.int64]) -> bool:
    value, unchanged = (compute_score(budget.metric, side[rows]) for side in (records, base))
    return budget.admits(value, unchanged)


def _judge(
    budget: Budget, base: Floats, parts: Division, plans: int, seed: int, records: Floats,
    *, search: bool = False,
) -> Score:  # fmt: skip
    rows = parts.search if search else parts.scored
    return judge_accuracy(
        budget,
        records[rows],
        base[rows],
        proof=() if search else parts.proof,
        plans=plans,
        error=ERROR / FINALISTS,
        seed=seed,
    )


_REACH: Mapping[str, Sequence[Draw]] = {
    "top1>=base-0.01": [
        partial(_answers, lost=(lost, lost)) for lost in (0.0, 0.001, 0.005, 0.009, 0.02)
    ],
    "agreement>=0.99": [partial(_decisions, share=0.005)],
    f"cosine>={LIMIT}": [partial(_shares, share=share) for share in (0.001, 0.01, 0.02, 0.07)],
}
"""Budget -> what draws plans that lose so many answers, or break so many samples."""


def main() -> None:
    """Count and write the results."""
    found = count_within_reach(np.random.default_rng(0), draws=12)
    write_results(RESULTS / "reach.json", found)
    print(json.dumps(found["all"]))


if __name__ == "__main__":
    main()
