"""The staged policy on records alone: trials in, a proposal out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ortune.backends.cpu import Cpu
from ortune.core.capabilities import Capabilities
from ortune.core.facts import Facts
from ortune.core.plugins.spelling import parse
from ortune.core.step import AS_IS
from ortune.core.trial import (
    Interval,
    Plan,
    Proposal,
    Score,
    Status,
    Trial,
    Untried,
    Verdict,
)
from ortune.policies.staged import Staged, ranked
from ortune.recipe.space import Space, Target
from ortune.search.policy import LeftOut, Policy, View
from ortune.workloads.latency import Latency

FACTS = Facts({"Conv": 20, "Relu": 20, "Gemm": 1}, 41, 1, 1, {}, 17, 8, (), ())
CAPABLE = Capabilities(effective_cpus=2)
SPACE = Space(FACTS, (Target(Cpu(), CAPABLE, frozenset({"threads"})),), Latency(), Cpu())
BASE = Trial("base", Plan(AS_IS, Cpu()), "search", Status.OK, Interval(1, 1, 1), stage="baseline")


def trial(plan: Plan, ratio: float, verdict: Verdict = Verdict.PROVED, **known: object) -> Trial:
    score = Score("cosine", 1.0, 1.0, 1.0, 1.0, 32, verdict)
    status = Status.FAILS if verdict is Verdict.FAILS else Status.OK
    made = Trial(plan.spelled, plan, "search", status, Interval(ratio, ratio, ratio), (score,))
    return replace(made, **{"stage": "search", **known})


def view(trials: Sequence[Trial] = (), left: float = 100.0) -> View:
    return View(FACTS, SPACE, (BASE, *trials), left, 100.0)


def proposed(found: View) -> Proposal:
    proposal = Staged().next(found)
    assert proposal is not None
    return proposal


def of(*kept: str, otherwise: Verdict = Verdict.FAILS) -> list[Trial]:
    """All ranked plans tried: those of a recipe so named at half the time, the rest fail slow."""
    return [
        trial(p, 0.5) if p.recipe.name in kept else trial(p, 0.99, otherwise)
        for p in ranked(SPACE)
    ]


def test_plans_come_in_order_of_their_rank() -> None:
    plans = ranked(SPACE)
    for index, plan in enumerate(plans):
        found = proposed(view([trial(p, 0.9) for p in plans[:index]]))
        assert (found.plan, found.stage) == (plan, "search")
        assert found.why == f"bet {index + 1} of {len(plans)}"


def test_unchanged_failed_and_pending_plans_are_not_proposed_again() -> None:
    first, second, third, fourth = ranked(SPACE)[:4]
    trials = [
        Trial("a", first, "search", Status.UNCHANGED, stage="search"),
        Trial("b", second, "search", Status.FAILED, stage="search"),
    ]
    found = replace(view(trials), pending=(third,))
    assert proposed(found).plan == fourth


def test_one_plan_is_tried_however_late_it_is() -> None:
    assert proposed(view(left=-5.0)).plan == ranked(SPACE)[0]


def test_plans_end_with_their_share_of_the_time() -> None:
    plans = ranked(SPACE)
    tried = [trial(plans[0], 1.2)]
    assert proposed(view(tried, left=40.1)).plan == plans[1]
    late = view(tried, left=40.0)
    assert Staged().next(late) is None
    why = "the time for ranked plans was up"
    assert Staged().left_out(late) == LeftOut.of(plans[1:], why)
    assert [one.plan for one in Staged().left_out(late).untried] == list(map(str, plans[1:]))
    assert Staged(plans=0.9).next(late) is not None


def test_what_fails_and_is_clearly_faster_is_rescued() -> None:
    failed = [
        trial(p, 0.4 if p.recipe.name == "int8-static" else 1.2, Verdict.FAILS)
        for p in ranked(SPACE)
    ]
    found = proposed(view(failed))
    assert found.stage == "rescue"
    assert found.plan.recipe.name.endswith("int8-static")
    assert "fails the budget" in found.why
    saved = trial(found.plan, 0.45, stage="rescue")
    after = proposed(view([*failed, saved]))
    assert after.stage == "runtime"
    assert after.plan.recipe == found.plan.recipe
    assert proposed(view([*failed, replace(saved, status=Status.FAILS)])).stage == "rescue"


def test_nothing_is_rescued_that_would_gain_under_three_percent() -> None:
    failed = of("clean", otherwise=Verdict.FAILS)
    near = [replace(t, ratio=Interval(0.49, 0.49, 0.49)) for t in failed if t.plan.lossy]
    exact = [t for t in failed if not t.plan.lossy]
    assert proposed(view([*exact, *near])).stage == "runtime"


def test_the_descent_goes_on_around_what_became_the_best() -> None:
    trials = of("int8-static")
    leader = next(t for t in trials if t.plan.recipe.name == "int8-static")
    first = proposed(view(trials))
    assert (first.stage, first.neighbour_of) == ("runtime", leader.key)
    better = trial(first.plan, 0.4, stage="runtime", neighbour_of=leader.key)
    second = proposed(view([*trials, better]))
    assert second.neighbour_of == better.key
    worse = replace(better, ratio=Interval(0.4951, 0.4951, 0.4951))
    assert proposed(view([*trials, worse])).neighbour_of == leader.key


def test_settings_end_with_their_share_of_the_time() -> None:
    trials = of("int8-static")
    assert proposed(view(trials, left=30.1)).stage == "runtime"
    late = view(trials, left=30.0)
    assert Staged().next(late) is None
    (left,) = Staged().left_out(late).untried
    assert left == Untried("int8-static @ cpu(spin=false)", "the time for runtime settings was up")


def test_a_policy_is_spelled_and_keeps_no_state() -> None:
    assert parse(Policy, "staged(plans=0.5)") == Staged(plans=0.5)
    seen = view([trial(ranked(SPACE)[0], 0.9)])
    assert Staged().next(seen) == Staged().next(seen)
