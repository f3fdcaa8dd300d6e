"""The accuracy verdict: is a candidate within the budget, and how surely?

* **fails**: the estimate on all samples is outside the budget, or is NaN;
* **undecided**: the estimate is inside, and so it might be were the plan outside;
* **likely**: all samples say that it is inside; of searches in which every plan that they looked
  at is outside, 15 % at most call one so;
* **proved**: samples that no earlier choice read say so, with an error of 5 % at most.

What can be proved goes by the kind of the metric (`ortune.core.metric.Kind`); ``docs/accuracy.md``
has the tests, their sources and what they cost. A plan of exact steps whose outputs equal the
baseline's to 80 dB is proved by construction.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ortune.core.budget import Budget
from ortune.core.errors import BadSettings
from ortune.core.metric import Kind, Metric
from ortune.core.trial import LIKELY_ERROR, Score, Verdict
from ortune.core.wording import drop_output_lists, format_count
from ortune.measurement.evidence import (
    PairedRecords,
    estimate_score,
    number_groups,
    weigh_evidence,
)
from ortune.measurement.statistics import betting, binomial, paired
from ortune.metrics.common.fidelity import SHARE, Fidelity

ERROR = 0.05  # the chance, at most, that what is outside the budget is called proved
EXACT_DB = 80.0  # outputs so close are equal: exact steps are proved by it
SAME_DB = 60.0
"""Outputs of exact steps that are a thousandth apart differ by rounding, not by a fault."""

Floats = NDArray[np.float64]


def judge_accuracy(
    budget: Budget,
    candidate: Floats,
    baseline: Floats,
    groups: Sequence[str] | None = None,
    *,
    proof: Sequence[int] | None = None,
    counted: Sequence[int] | None = None,
    plans: int | None = 1,
    error: float = ERROR,
    seed: int = 0,
    exact: bool = False,
    snr_db: float | None = None,
    provable: bool = True,
) -> Score:
    """Judge records [samples, k] of a candidate against those of the baseline.

    Args:
        groups: Of each sample; None where every sample counts by itself.
        proof: Rows that no earlier choice read: a proof rests on them alone; None takes all.
        counted: Rows that may make it likely: samples that differ; None takes all.
        plans: How many were looked at on these rows, this one among them; None where it is not
            known yet, and nothing is likely by its samples.
        error: Of a proof; to be divided by the number of candidates that may be proved.
        seed: Of the order in which means are bet on; best a digest of the data.
        exact: The plan claims to compute the same.
        snr_db: Signal to noise of its outputs against the baseline's; None when unknown.
        provable: False of a baseline that does not know the answers: nothing that changes them
            is more than undecided.

    Raises:
        BadData: A record is outside the bounds that the metric declares.
    """
    metric, units = budget.metric, number_groups(groups, len(candidate))
    everything = np.arange(len(candidate))
    proof_rows, counted_rows = (
        everything if rows is None else np.asarray(rows, np.int64) for rows in (proof, counted)
    )
    data = PairedRecords(budget, candidate, baseline, units, proof_rows, error, seed, counted_rows)
    evidence = weigh_evidence(data)
    basis = evidence.basis if evidence.units != 0 else "no held-out samples"
    verdict, needed, units_behind = Verdict.UNDECIDED, evidence.needed, None
    chance: float | None = evidence.chance
    nan = math.isnan(evidence.value) or math.isnan(evidence.base)
    if nan or not budget.admits(evidence.value, evidence.base):
        verdict, needed = Verdict.FAILS, None
    elif objection := metric.find_objection(candidate):
        verdict, needed, basis = Verdict.FAILS, None, objection
    elif not provable:
        verdict = Verdict.LIKELY if exact else Verdict.UNDECIDED
        needed, chance, basis = None, None, "the original does not know the answers"
    elif exact and snr_db is not None and snr_db >= EXACT_DB:
        verdict, needed = Verdict.PROVED, None
        basis = f"exact steps, outputs equal to {snr_db:.0f} dB"
    elif evidence.proved:
        verdict, needed, units_behind = Verdict.PROVED, None, evidence.units
    elif exact and not (snr_db is not None and snr_db < SAME_DB):
        verdict, chance = Verdict.LIKELY, None
    better = metric.higher_is_better
    bound = (min if better else max)(evidence.bound, evidence.value)
    score = Score(
        str(metric),
        evidence.value,
        evidence.base,
        low=bound if better else -math.inf,
        high=math.inf if better else bound,
        samples=len(candidate),
        verdict=verdict,
        needed=needed,
        basis=basis,
        error=error,
        proved_on=units_behind,
        share=None if evidence.inside is None else metric.kept_by,
        inside=evidence.inside,
        claim=describe_claim(budget, metric.kind(baseline), groups is not None),
        unit=data.noun,
        chance=chance,
        change=evidence.change,
    )
    return score if plans is None else decide_likely(score, plans)


def decide_likely(score: Score, plans: int) -> Score:
    """Return a score that is likely or undecided, by how many plans were looked at.

    Each of them may be called likely with an equal part of `LIKELY_ERROR`, whatever they have in
    common (Bonferroni), so that the samples which chose among them count too. What is proved,
    fails or keeps the budget by construction stays so, as do scores of older runs. Scores by
    looser steps of the budget are decided likewise.
    """
    score = replace(score, looser=tuple(decide_likely(looser, plans) for looser in score.looser))
    if score.chance is None or score.verdict not in (Verdict.LIKELY, Verdict.UNDECIDED):
        return score
    is_likely = score.chance <= LIKELY_ERROR / max(1, plans)
    verdict = Verdict.LIKELY if is_likely else Verdict.UNDECIDED
    return replace(score, verdict=verdict, plans=max(1, plans))


def is_within_reach(score: Score, samples: int, plans: int) -> bool:
    """Say whether so many samples make a plan of as many likely, if all are as in this score."""
    if score.verdict in (Verdict.PROVED, Verdict.FAILS) or score.chance is None:
        return score.verdict in (Verdict.PROVED, Verdict.LIKELY)
    enough = score.count_likely_samples(plans)
    return enough is not None and samples >= enough


def compute_score(metric: Metric, records: Floats, groups: Sequence[str] | None = None) -> float:
    """Return the score of records [samples, k] alone, as a budget compares it."""
    return estimate_score(metric, records, number_groups(groups, len(records)))


def describe_claim(budget: Budget, kind: Kind, grouped: bool = False) -> str:
    """Say as a clause what a budget asks for, such as ``top1 falls by at most 0.01``."""
    metric, limit = budget.metric, f"{abs(budget.limit):g}"
    if isinstance(metric, Fidelity) and metric.groups:
        plain = replace(budget, metric=replace(metric, groups=()))
        return f"{describe_claim(plain, kind, grouped)}, and each group of outputs follows"
    name, better = getattr(metric, "path", "") or str(metric), metric.higher_is_better
    worse = (budget.limit < 0) is better
    if kind is Kind.SHARE:
        if isinstance(metric, Fidelity):
            name = drop_output_lists(str(replace(metric, share=SHARE)))
        inputs = f"at least {100 * metric.kept_by:g} % of {'groups' if grouped else 'inputs'}"
        if not budget.relative:
            return f"{inputs} keep {name} {budget.limit:g}"
        lose = "lose" if better else "gain"
        return f"{inputs} {lose} at most {limit if worse else 0} of {name}"
    if not budget.relative:
        return f"{name} is at {'least' if better else 'most'} {budget.limit:g}"
    down, up = ("fall", "rise") if better else ("rise", "fall")
    if not budget.limit:
        return f"{name} does not {down}"
    return f"{name} {down}s by at most {limit}" if worse else f"{name} {up}s by at least {limit}"


def count_provable_samples(
    budget: Budget, baseline: Floats | None, error: float = ERROR, *, grouped: bool = False
) -> int | None:
    """Return the least samples that prove a candidate whose answers do not change.

    Args:
        baseline: The baseline's records; None where there are none yet.
        grouped: Samples come in groups; then it is the least groups, of one size.

    Returns:
        Independent samples that no earlier choice read; None when no number proves this budget.
    """
    metric, kind = budget.metric, budget.metric.kind(baseline)
    if kind is Kind.SHARE:
        return binomial.count_needed_samples(metric.kept_by, error)
    bounds = metric.bounds
    if kind is Kind.FIGURE or bounds is None:
        return None
    sign = 1 if metric.higher_is_better else -1
    if budget.relative and kind is Kind.RIGHT and not grouped:
        return paired.compute_min_samples(-budget.limit, error)
    if budget.relative:
        return betting.compute_min_units(-sign * budget.limit, bounds[1] - bounds[0], error)
    if baseline is None or not len(baseline):
        return None
    scores, worst = sign * baseline[:, 0], min(sign * bounds[0], sign * bounds[1])
    if kind is Kind.RIGHT and not grouped:
        return binomial.find_required_samples(float(scores.mean()), budget.limit, error)
    return betting.estimate_required_units(
        scores, np.ones(len(scores)), sign * budget.limit, worst, error
    )


def require_provable(budget: Budget) -> None:
    """Refuse a budget that asks for a figure where only a proof will do.

    Raises:
        BadSettings: It has ``share=0``.
    """
    metric = budget.metric
    if isinstance(metric, Fidelity) and not metric.share:
        raise BadSettings(
            f"--strict asks for a proof, and no number of samples proves '{budget}'",
            fix=f"leave share=0 out: {replace(budget, metric=replace(metric, share=SHARE))}",
        )


def warn_coarse_budget(budget: Budget, samples: int, baseline: Floats | None = None) -> str:
    """Say when the budget is finer than one sample's right or wrong; else empty.

    Where the baseline's records are not all 0 or 1, nothing is said.
    """
    metric, limit = budget.metric, abs(budget.limit)
    right = baseline is None or bool(np.isin(baseline[:, 0], (0.0, 1.0)).all())
    if metric.kind(baseline) in (Kind.SHARE, Kind.FIGURE) or not right or not samples:
        return ""
    fine = limit if budget.relative else 1 - limit
    if fine <= 0 or fine * samples >= 1 - 1e-9:
        return ""
    resolution = f"cannot tell {fine:.4g}: one is {1 / samples:.2g}"
    return f"{format_count(samples, 'scored sample')} {resolution}"
