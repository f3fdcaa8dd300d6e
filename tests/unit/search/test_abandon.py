"""When a trial is stopped part way, and how it is told."""

import json
from dataclasses import replace

import pytest
from benchmarks.result_files import find_results
from tests.unit import studies
from tests.unit.search.test_adaptive import view

from ortune.backends.cpu import Cpu
from ortune.core.plugins.spelling import parse_plugin
from ortune.core.step import Quantizer, Recipe
from ortune.core.trial import Block, Burst, Pair, Plan, Verdict
from ortune.search.abandon import NEAR, StoppingRule, make_stopping_rule

BASE = 1_000_000


def pair(*ratios: float, waited: float = 0.0) -> Pair:
    blocks = [
        Block(
            Burst((BASE,) * 8, (waited,) * 8, alike=True),
            Burst((round(ratio * BASE),) * 8, (waited,) * 8, alike=True),
        )
        for ratio in ratios
    ]
    return Pair(tuple(blocks))


@pytest.mark.parametrize(
    ("done", "limit"), [(0, 3.0), (0.5, 1.5), (1, 1.35), (2, 1.22), (3, 1.1), (7, 1.1)]
)
def test_the_more_is_timed_the_less_behind_a_plan_may_be(done: float, limit: float) -> None:
    whole = max(1, int(done))
    for best in (1.0, 0.3):
        rule = StoppingRule(best)
        assert rule(pair(*[limit * best * 0.999] * whole), done) == ""
        text = rule(pair(*[limit * best * 1.001] * whole), done)
        assert text == f"stopped early: {limit * 1.001:.1f}x slower than the best"


def test_blocks_are_counted_unless_told() -> None:
    assert StoppingRule()(pair(1.3)) == ""
    assert StoppingRule()(pair(1.3, 1.3))
    assert StoppingRule()(Pair(())) == ""


def test_runs_that_waited_stop_a_plan_only_where_three_blocks_agree() -> None:
    assert StoppingRule()(pair(1.4)), "undisturbed, one block suffices"
    assert StoppingRule()(pair(2.9, waited=0.5)) == ""
    assert StoppingRule()(pair(2.9, 2.9, waited=0.5)) == ""
    assert StoppingRule()(pair(1.4, 1.4, 1.4, waited=0.5))
    assert StoppingRule()(pair(2.9, 2.9, 1.3, waited=0.5)) == "", "one of them does not agree"
    (block,) = pair(4.0).blocks
    half = replace(block, candidate=replace(block.candidate, waited=(0.5,) * 8))
    assert StoppingRule()(Pair((half,))) == "", "one side waited, and half of what it took"


def test_runs_that_waited_stop_a_plan_where_all_of_them_are_far_behind() -> None:
    assert StoppingRule()(pair(80.0, waited=0.15)) == "stopped early: 80x slower than the best"
    assert StoppingRule()(pair(3.1, waited=0.5))
    assert StoppingRule(0.5)(pair(1.6, waited=0.5)), "of the best, not of the original"
    (block,) = pair(80.0, waited=0.15).blocks
    once = (block.candidate.latency_ns[0], *[2 * BASE] * 7)
    apart = replace(block, candidate=replace(block.candidate, latency_ns=once))
    assert StoppingRule()(Pair((apart,))) == "", "not all of them"
    lone = Block(
        *(Burst(b.latency_ns[:1], b.waited[:1]) for b in (block.baseline, block.candidate))
    )
    assert StoppingRule()(Pair((lone,)), 0) == "", "a single run"


def test_few_recorded_plans_near_the_best_would_have_been_stopped() -> None:
    found = json.loads(find_results("abandoned")[0].read_text())[
        "stopped though within 2 % of the best"
    ]
    assert found["of all stopped"] <= 0.01
    assert NEAR == 1.02


def test_an_exact_plan_is_stopped_only_by_what_may_be_accepted() -> None:
    original, exact = studies.baseline(), Plan(Recipe("clean"), Cpu(threads=1))
    lossy = Plan(Recipe("int8", (parse_plugin(Quantizer, "int8-dynamic"),)), Cpu(threads=2))
    trials = [original, studies.trial("e", exact, 0.8), studies.trial("l", lossy, 0.3)]
    one, other = replace(exact, backend=Cpu(threads=3)), replace(lossy, backend=Cpu(threads=3))
    known = replace(view(), trials=trials)
    for plan, strict, best in ((one, True, 0.8), (one, False, 0.3), (other, True, 0.3)):
        assert make_stopping_rule(plan, known, strict=strict).best == best
    score = replace(trials[2].scores[0], verdict=Verdict.UNDECIDED, chance=0.4)
    known = replace(known, trials=[*trials[:2], replace(trials[2], scores=(score,))], samples=1)
    for plan, best in ((one, 0.8), (other, 0.3)):
        assert make_stopping_rule(plan, known, strict=False).best == best, "so few show nothing"


def test_a_plan_that_is_timed_again_does_not_run_against_its_own_first_block() -> None:
    lucky, other = (Plan(Recipe("clean"), Cpu(threads=n)) for n in (1, 2))
    trials = [studies.baseline(), studies.trial("a", lucky, 0.25), studies.trial("b", other, 0.4)]
    known = replace(view(), trials=trials)
    assert make_stopping_rule(lucky, known, strict=False).best == 0.4
    assert make_stopping_rule(other, known, strict=False).best == 0.25
