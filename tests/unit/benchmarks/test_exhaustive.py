"""The exhaustive policy on records alone: everything once, whatever comes of it."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.search.exhaustive import Exhaustive, ranked
from tests.unit.search import test_adaptive
from tests.unit.search.test_adaptive import trial

from ortune.backends.cpu import Cpu
from ortune.core.capabilities import Capabilities
from ortune.core.facts import Facts
from ortune.core.trial import Proposal, Status, Trial, Verdict
from ortune.measurement.workloads.latency import Latency
from ortune.search.policy import LeftOut, View
from ortune.search.recipe.space import SearchTarget, Space

FACTS = Facts({"Conv": 20, "Relu": 20, "Gemm": 1}, 41, 1, 1, {}, 17, 8, (), ())
CPU = SearchTarget(Cpu(), Capabilities(effective_cpus=2), frozenset({"threads"}))
SPACE = Space(FACTS, (CPU,), Latency(), Cpu())


def view(trials: list[Trial], left: float) -> View:
    return test_adaptive.view(trials, left, facts=FACTS, space=SPACE)


def result(proposal: Proposal, ratio: float, verdict: Verdict = Verdict.PROVED) -> Trial:
    return trial(proposal, ratio, 2.0 if verdict is Verdict.FAILS else 0.0)


def played(comes: Callable[[Proposal], Trial], policy: Exhaustive | None = None) -> list[Proposal]:
    """Return all that is proposed, each with what comes of the one before."""
    trials: list[Trial] = []
    found: list[Proposal] = []
    while (proposal := (policy or Exhaustive()).next(view(trials, left=1e6))) is not None:
        found.append(proposal)
        trials.append(comes(proposal))
    return found


def fails_in_int8(proposal: Proposal) -> Trial:
    fails = "int8-static" in proposal.plan.recipe.name and proposal.stage == "search"
    return result(proposal, 0.5, Verdict.FAILS if fails else Verdict.PROVED)


def test_everything_is_tried_once_at_full_effort() -> None:
    found = played(fails_in_int8)
    spelled = [proposal.plan.spelling for proposal in found]
    assert len(spelled) == len(set(spelled))
    assert {proposal.effort for proposal in found} == {"full"}
    plans = ranked(SPACE)
    assert [proposal.plan for proposal in found[: len(plans)]] == plans


def test_whatever_fails_is_rescued_even_when_saved_before() -> None:
    found = played(fails_in_int8)
    failed = [p.plan for p in found if fails_in_int8(p).status is Status.FAILS]
    wanted = {rescue.spelling for plan in failed for rescue in SPACE.list_rescues(plan)}
    tried = {p.plan.spelling for p in found}
    assert wanted and wanted <= tried
    assert {p.stage for p in found} == {"search", "rescue", "runtime"}


def test_settings_are_tried_around_the_fastest_alone() -> None:
    ratios = {plan.spelling: 0.5 + 0.01 * at for at, plan in enumerate(ranked(SPACE))}
    other = {"runtime": 0.3}
    found = played(
        lambda p: result(p, ratios.get(p.plan.spelling, other.get(p.stage, 0.9))),
        Exhaustive(fastest=2),
    )
    around = list(dict.fromkeys(p.neighbour_of for p in found if p.stage == "runtime"))
    assert around == [plan.spelling for plan in ranked(SPACE)[:2]]
    tried = {p.plan.spelling for p in found}
    for plan in ranked(SPACE)[:2]:
        for plans in SPACE.list_neighbours(plan).values():
            assert {one.spelling for one in plans} <= tried


def test_what_keeps_the_budget_is_tried_with_more_in_integers() -> None:
    found = {p.plan.spelling for p in played(lambda p: result(p, 0.5))}
    wanted = {more.spelling for one in ranked(SPACE) for more in SPACE.list_extensions(one)}
    assert wanted and wanted <= found


def test_nothing_is_left_out_when_all_is_tried() -> None:
    trials: list[Trial] = []
    while (proposal := Exhaustive().next(view(trials, left=1e6))) is not None:
        trials.append(result(proposal, 1.2))
    assert Exhaustive().explain_untried(view(trials, left=1e6)) == LeftOut()
