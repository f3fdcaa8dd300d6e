"""What a plan comes to by its time and its scores, and by a looser step of the budget."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from tests.unit.studies import CLEAN, measurement, trial

from ortune.backends.cpu import Cpu
from ortune.core.acceptance import Outcome, classify_outcome, select_winner
from ortune.core.budget import Budget
from ortune.core.judgement import conclude_trial, judge_by_step
from ortune.core.trial import Block, Burst, Interval, Pair, Plan, Status, Trial, Verdict

STEPS = Budget.parse("cosine>=0.999|0.99|0.9")
FAST, SLOW, UNKNOWN = Interval(0.5, 0.4, 0.6), Interval(1.3, 1.2, 1.4), Interval(0.5, 0, math.inf)


def scored() -> Trial:
    """A plan of cosine 0.95: outside the first two steps, inside the third; one more metric."""
    one = trial("a", Plan(CLEAN, Cpu()), 0.5, value=0.95, verdict=Verdict.FAILS)
    (score,) = one.scores
    looser = (score, replace(score, verdict=Verdict.PROVED))
    beside = replace(score, metric="snr", verdict=None)
    return replace(one, scores=(replace(score, looser=looser), beside))


def of_blocks(count: int, *, pairs: int = 1) -> Trial:
    entries = Burst((10**6,) * 4, (0.0,) * 4)
    timed = (Pair((Block(entries, entries),) * count),) * pairs
    return replace(scored(), measurement=replace(measurement(0.5), pairs=timed))


def test_each_step_judges_by_its_own_score_and_leaves_the_other_metrics() -> None:
    one = scored()
    judged = [judge_by_step(one, STEPS, step, "latency") for step in range(3)]
    assert [now.status for now in judged[1:]] == [Status.FAILS, Status.OK]
    assert judged[0] is one
    assert [now.scores[1:] for now in judged] == [one.scores[1:]] * 3
    assert "misses the budget of 0.99" in judged[1].why and "2.00x as fast" in judged[2].why


@pytest.mark.parametrize("lacking", [{"scores": ()}, {"ratio": None}])
def test_what_was_not_scored_or_not_timed_is_judged_by_no_step(lacking: dict[str, object]) -> None:
    one = replace(scored(), **lacking)  # type: ignore[arg-type]
    assert judge_by_step(one, STEPS, 1, "latency") is one


def test_a_score_that_knows_fewer_steps_is_judged_by_those_that_it_knows() -> None:
    one = scored()
    short = replace(one.scores[0], looser=one.scores[0].looser[:1])
    one = replace(one, scores=(short,))
    assert judge_by_step(one, STEPS, 1, "latency").status is Status.FAILS
    assert judge_by_step(one, STEPS, 2, "latency") is one


@pytest.mark.parametrize(
    ("ratio", "status"),
    [
        (Interval(1.2, 1.1, 1.3), Status.SLOWER),
        (Interval(1.2, 0.8, 1.9), Status.SCREENED),
        (Interval(1.4, 0.8, 2.2), Status.SLOWER),
        (Interval(0.7, 0.4, 1.1), Status.SCREENED),
    ],
)
def test_what_was_stopped_is_slower_beyond_the_noise_or_a_lone_block_far_from_one(
    ratio: Interval, status: Status
) -> None:
    one = replace(scored(), scores=(), ratio=ratio, stopped="stopped early")
    judged = conclude_trial(one, STEPS.steps[0], "latency", ratio)
    assert (judged.status, judged.why) == (status, "stopped early")


@pytest.mark.parametrize(
    ("one", "ratio", "why"),
    [
        (of_blocks(2), UNKNOWN, Outcome.DISTURBED),
        (of_blocks(6, pairs=2), UNKNOWN, Outcome.DISTURBED),
        (of_blocks(1), UNKNOWN, Outcome.LEVEL),  # a lone block has no interval
        (of_blocks(2, pairs=0), UNKNOWN, Outcome.LEVEL),
        (of_blocks(2), FAST, "2.00x as fast, accuracy proved"),
    ],
    ids=["two blocks", "two pairs", "a lone block", "no pairs", "an interval"],
)
def test_pairs_without_an_interval_waited_for_a_cpu(one: Trial, ratio: Interval, why: str) -> None:
    proved = replace(one, ratio=ratio, scores=one.scores[0].looser[1:])
    judged = conclude_trial(proved, STEPS.steps[2], "latency", ratio)
    assert (judged.status, judged.why) == (Status.OK, str(why))


def test_what_misses_the_budget_is_told_that_before_that_its_runs_waited() -> None:
    judged = conclude_trial(
        replace(of_blocks(2), ratio=UNKNOWN), STEPS.steps[0], "latency", UNKNOWN
    )
    assert judged.status is Status.FAILS and "misses the budget" in judged.why


def test_a_plan_without_a_ratio_of_its_own_is_judged_by_the_one_that_sorts() -> None:
    one = replace(of_blocks(2), ratio=None, scores=of_blocks(2).scores[0].looser[1:])
    assert conclude_trial(one, STEPS.steps[2], "latency", SLOW).status is Status.SLOWER
    level = Interval(1.1, 0.9, 1.3)
    assert conclude_trial(one, STEPS.steps[2], "latency", level).why == str(Outcome.LEVEL)


@pytest.mark.parametrize("status", [Status.OK, Status.LEVEL])
def test_an_emulated_cpu_claims_nothing(status: Status) -> None:
    one = replace(of_blocks(2), scores=of_blocks(2).scores[0].looser[1:], part="final")
    first = trial("o", Plan(CLEAN, Cpu()), 1.0)
    real, sure = replace(one, ratio=FAST), FAST if status is Status.OK else SLOW
    assert select_winner(
        [conclude_trial(real, STEPS.steps[2], "latency", FAST)], first, strict=False
    )
    emulated = replace(one, ratio=UNKNOWN, emulated="qemu-aarch64")
    judged = conclude_trial(emulated, STEPS.steps[2], "latency", sure)
    assert (judged.status, judged.why) == (status, str(Outcome.EMULATED))
    assert classify_outcome(judged) is Outcome.EMULATED and judged.shown_ratio is None
    assert not judged.is_disturbed, "it is not timed anew"
    assert select_winner([judged], first, strict=False) is None
    missed = replace(emulated, scores=of_blocks(2).scores)
    judged = conclude_trial(missed, STEPS.steps[0], "latency", sure)
    assert classify_outcome(judged) is Outcome.FAILS
