"""Mixtures on records alone: a survey and trials in, the mixture to try next out."""

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from ortune.backends.cpu import Cpu
from ortune.backends.openvino import Openvino
from ortune.core.acceptance import Goal
from ortune.core.budget import Budget
from ortune.core.capabilities import Capabilities
from ortune.core.facts import Facts
from ortune.core.plugins.spelling import parse_plugin
from ortune.core.step import AS_IS, Edit, Quantizer, Recipe
from ortune.core.trial import Interval, Plan, Score, Status, Trial, Verdict
from ortune.measurement.workloads.latency import Latency
from ortune.quantizers.int8_dynamic import Int8Dynamic
from ortune.search.expectation.expectations import Expectation, Expectations
from ortune.search.expectation.mixtures import (
    MOST,
    Mixture,
    MixtureBases,
    MixtureSearch,
    estimate_mixtures,
    longest_s,
    propose_mixtures,
    rank_surveys,
)
from ortune.search.expectation.priors import Durations
from ortune.search.expectation.surrogate import Normal
from ortune.search.mixed_precision.choice import mix_recipe
from ortune.search.mixed_precision.survey import RegionCost, SharedCost, Survey
from ortune.search.policy import View
from ortune.search.recipe.space import SearchTarget, Space

CPU = Cpu()
FACTS = Facts({"MatMul": 6, "Add": 6}, 12, 1, 1, {}, 17, 8, (), ())
SPACE = Space(FACTS, (SearchTarget(CPU, Capabilities()),), Latency(), CPU)
BASE = Trial("base", Plan(AS_IS, CPU), "search", Status.OK, Interval(1, 1, 1), stage="baseline")
WHOLE = Plan(Recipe("int8-dynamic", (Int8Dynamic(),)), CPU)
NAN = math.nan


def trial(plan: Plan, ratio: float, lost: float | None) -> Trial:
    """Return a trial under the budget `cosine>=0.99`."""
    fails = lost is not None and lost > 1
    verdict = Verdict.FAILS if fails else Verdict.PROVED
    value = 1 - 0.01 * (lost or 0.0)
    scores = () if lost is None else (Score("cosine", value, 1.0, value, 1.0, 32, verdict),)
    status = Status.FAILS if fails else Status.OK
    ends = Interval(ratio, ratio * 0.99, ratio * 1.01)
    return Trial(plan.spelling, plan, "search", status, ends, scores, seconds=2.0, building=0.5)


def region(
    name: str, cost: float, gain: float, error: str = "", *, clear: bool = True
) -> RegionCost:
    ends = Interval(gain, gain - 0.0005, gain + 0.0005) if clear else Interval(gain, -1.0, 1.0)
    return RegionCost(name, (name,), name, ("MatMul",), Interval(cost, cost, cost), ends, 0, error)


def survey(*regions: RegionCost, whole: float | None = None) -> Survey:
    total = sum(one.accuracy_cost.value for one in regions) if whole is None else whole
    return Survey(WHOLE.spelling, WHOLE, regions, total, seconds=4.0)


def view(made: Survey | None, *trials: Trial, **known: object) -> View:
    held = () if made is None else (made,)
    budget = Budget.parse("cosine>=0.99")
    found = View(FACTS, SPACE, (BASE, *trials), 80.0, 100.0, budget, surveys=held, by_region=True)
    return replace(found, **known)


def of_mixture(made: Survey, left: Sequence[str], ratio: float, lost: float | None) -> Trial:
    return trial(Plan(mix_recipe(made, frozenset(left)), CPU), ratio, lost)


def first(made: Survey, *trials: Trial) -> Mixture | None:
    return next(propose_mixtures(view(made, *trials)), None)


FRAGILE = survey(region("a", 0.3, 0.02), region("b", 0.05, 0.2), region("c", 0.05, 0.3))


def test_what_costs_most_for_its_time_is_given_back() -> None:
    found = first(FRAGILE, trial(WHOLE, 0.4, 1.6))
    assert found.float_regions == ("a",)
    assert found.ratio == pytest.approx(0.42)
    assert found.budget_utilization == pytest.approx(0.4)
    assert found.keeps > 0.9
    assert found.why.startswith("regions: 1 of 3 in float (a): expected 2.4x, 40 % of")


def test_far_from_the_limit_single_losses_count() -> None:
    made = survey(
        region("a", 0.3, 0.02), region("b", 0.05, 0.2), region("c", 0.05, 0.3), whole=0.8
    )
    far, near = first(made, trial(WHOLE, 0.4, 8.0)), first(made, trial(WHOLE, 0.4, 1.6))
    assert (far.float_regions, far.budget_utilization) == (("a", "b"), pytest.approx(0.5)), (
        "0.05 of 0.8"
    )
    assert (near.float_regions, near.budget_utilization) == (("a",), pytest.approx(0.4)), (
        "0.1 of 0.4"
    )


def test_what_was_not_measured_stays_in_float() -> None:
    made = survey(
        region("b", 0.05, 0.2),
        region("slow", NAN, 0.1),
        region("untimed", 0.01, NAN),
        region("broken", 0.01, 0.2, "it does not build"),
        region("endless", math.inf, 0.1),
    )
    found = first(replace(made, whole_cost=0.1), trial(WHOLE, 0.4, 1.2))
    assert found.float_regions == ("slow", "untimed", "broken", "endless")


def test_a_gain_that_may_be_none_is_none() -> None:
    made = survey(region("a", 0.3, 0.1), region("tiny", 0.0, 0.0004, clear=False))
    made = replace(made, regions=(*made.regions, region("c", 0.05, 0.3)))
    found = first(made, trial(WHOLE, 0.4, 1.6))
    assert found.float_regions == ("a",)
    costs = replace(made.regions[1], accuracy_cost=Interval(0.001, 0, 0.002))
    found = first(
        replace(made, regions=(made.regions[0], costs, made.regions[2])), trial(WHOLE, 0.4, 1.6)
    )
    assert found.float_regions == ("a", "tiny")


@pytest.mark.parametrize(
    "whole",
    [trial(WHOLE, 0.4, None), trial(WHOLE, 0.4, NAN), replace(trial(WHOLE, 0.4, 2.0), ratio=None)],
)
def test_nothing_follows_where_the_plan_tells_nothing(whole: Trial) -> None:
    assert first(FRAGILE, whole) is None


def test_nothing_follows_where_no_region_costs_anything_or_all_cost_too_much() -> None:
    free = survey(*(region(name, 0.0, 0.1) for name in "abc"))
    assert first(free, trial(WHOLE, 0.4, 3.0)) is None
    dear = survey(*(region(name, 0.3, 0.1) for name in "abc"))
    assert first(dear, trial(WHOLE, 0.4, 30.0)) is None
    assert first(replace(FRAGILE, error="it died"), trial(WHOLE, 0.4, 2.0)) is None


def test_of_a_plan_within_the_budget_nothing_goes_back() -> None:
    made = survey(region("a", 0.1, -0.05), region("b", 0.1, 0.2), region("c", 0.1, 0.3))
    for lost in (0.0, 0.5):
        assert first(made, trial(WHOLE, 0.6, lost)) is None


MANY = survey(*(region(f"r{i}", 0.1 + 0.01 * i, 0.05) for i in range(10)))


def sum_of(found: Mixture) -> float:
    """Return the single losses of what a mixture of `MANY` has not in float."""
    return sum(r.accuracy_cost.value for r in MANY.regions if r.region not in found.float_regions)


def test_a_mixture_that_fails_is_followed_by_one_of_less() -> None:
    whole = trial(WHOLE, 0.4, 1.45)
    one = first(MANY, whole)
    failed = of_mixture(MANY, one.float_regions, 0.5, 1.3)
    two = first(MANY, whole, failed)
    assert len(two.float_regions) > len(one.float_regions)
    assert one.first and not two.first
    assert two.budget_utilization == pytest.approx(1.3 * sum_of(two) / sum_of(one)), (
        "as the first one lost"
    )


def test_a_mixture_with_room_is_followed_by_a_faster_one() -> None:
    whole = trial(WHOLE, 0.4, 3.0)
    one = first(MANY, whole)
    two = first(MANY, whole, of_mixture(MANY, one.float_regions, 0.7, 0.3))
    assert len(two.float_regions) < len(one.float_regions)


def test_between_what_keeps_and_what_fails_the_limit_is_closed_in_on() -> None:
    whole = trial(WHOLE, 0.4, 3.0)
    kept = of_mixture(MANY, [f"r{i}" for i in range(2, 10)], 0.8, 0.2)
    failed = of_mixture(MANY, [f"r{i}" for i in range(6, 10)], 0.6, 1.2)
    found = first(MANY, whole, kept, failed)
    assert 4 < len(found.float_regions) < 8
    assert 0.2 < found.budget_utilization <= 0.9
    near = of_mixture(MANY, [f"r{i}" for i in range(5, 10)], 0.65, 0.95)
    assert first(MANY, whole, near, failed) is None, "nothing lies between them"


def test_it_ends_after_a_few_and_where_nothing_is_gained() -> None:
    whole = trial(WHOLE, 0.4, 3.0)
    tried = [whole]
    while (found := first(MANY, *tried)) is not None:
        tried.append(of_mixture(MANY, found.float_regions, found.ratio, 0.2))
        assert len(tried) <= MOST + 1
    assert len(tried) > 2
    every = MixtureSearch.from_survey(MANY, view(MANY, *tried))
    assert [every.replay_expectation(t).float_regions for t in every.mixtures]
    first_of = every.replay_expectation(every.mixtures[0])
    assert first_of == first(MANY, whole)


def test_time_that_was_lost_otherwise_than_expected_counts_next() -> None:
    whole = trial(WHOLE, 0.4, 3.0)
    one = first(MANY, whole)
    twice = 0.4 + 2 * (one.ratio - 0.4)
    two = first(MANY, whole, of_mixture(MANY, one.float_regions, twice, 0.4))
    assert two.ratio == pytest.approx(0.4 + 0.1 * len(two.float_regions))


def test_settings_around_a_mixture_are_not_further_mixtures() -> None:
    whole = trial(WHOLE, 0.4, 3.0)
    one = first(MANY, whole)
    elsewhere = trial(Plan(one.plan.recipe, Cpu(threads=1)), 0.5, 0.2)
    assert first(MANY, whole, elsewhere) == one


# --- surveys ----------------------------------------------------------------------------------


def test_a_fast_plan_that_fails_is_worth_a_survey() -> None:
    found = rank_surveys(view(None, trial(WHOLE, 0.4, 1.6)))
    assert [one.request.plan for one in found] == [WHOLE]
    assert found[0].gain > 0.1
    assert found[0].request.why.endswith(
        "is 2.50x as fast as the original and uses 1.6 times its accuracy budget"
    )


def test_a_survey_is_kept_short_and_what_keeps_the_budget_has_none() -> None:
    (fails,) = rank_surveys(view(None, trial(WHOLE, 0.4, 1.6)))
    assert fails.request.seconds == pytest.approx(10.0), "of 100 s"
    assert rank_surveys(view(None, trial(WHOLE, 0.4, 0.2))) == []


def test_a_survey_leaves_the_time_of_two_mixtures_where_it_can() -> None:
    fast = trial(WHOLE, 0.4, 1.6)
    (short,) = rank_surveys(view(None, fast, total=10.0, remaining_s=10.0))
    needed = short.request.seconds / 2
    (shorter,) = rank_surveys(view(None, fast, remaining_s=needed + 3.5))
    assert shorter.request.seconds == pytest.approx(needed)


@pytest.mark.parametrize("kit", ["smooth-quant", "adaptive-rounding", "bias-correction"])
def test_regions_are_told_apart_however_their_weights_are_prepared(kit: str) -> None:
    recipe = Recipe(kit, (parse_plugin(Quantizer, kit), Int8Dynamic()))
    assert len(rank_surveys(view(None, trial(Plan(recipe, CPU), 0.4, 1.6)))) == 1
    plan = Plan(Recipe("new", (*recipe.steps[:1], Int8Dynamic(per_channel=False))), CPU)
    assert based(view(None), plan)[0]


def bases(made: View) -> MixtureBases:
    return MixtureBases(made, Durations(made), rank_surveys(made))


def based(made: View, plan: Plan) -> tuple[float, float]:
    expected = Expectations(made)
    return bases(made).estimate_gain(plan, expected.estimate_plans([plan])[0])


def test_a_plan_that_probably_fails_is_worth_what_its_mixtures_may_gain() -> None:
    other = Plan(Recipe("other", (Int8Dynamic(per_channel=False),)), CPU)
    expected = Expectation(Normal(-1.0, 0.1), 0.1, 1.0, log_budget_utilization=Normal(0.5, 0.1))
    gain, seconds = bases(view(None)).estimate_gain(other, expected)
    assert gain > 0.05
    assert 0.5 < seconds < 10.0


def test_neighbours_that_share_what_they_lose_go_back_together() -> None:
    """Either alone brings nothing: the other rounds what flows between them as well."""
    regions = region("a", 0.3, 0.05), region("b", 0.3, 0.05), region("c", 0.1, 0.05)
    alone = survey(*regions)
    together = replace(alone, shared=(SharedCost("a", "b", 0.3),))
    whole = trial(WHOLE, 0.4, 1.3)
    one, two = first(alone, whole), first(together, whole)
    assert one is not None and two is not None
    assert len(one.float_regions) == 1
    assert two.float_regions == ("a", "b")
    assert two.budget_utilization == pytest.approx(1.3 * 0.1 / 0.4)


def test_of_what_was_not_measured_nothing_is_shared() -> None:
    """It is in no sum: nothing of it may be taken off."""
    late = region("b", 0.3, math.nan, "no time was left")
    made = survey(region("a", 0.3, 0.02), late, region("c", 0.2, 0.03), region("d", 0.1, 0.05))
    tried = trial(WHOLE, 0.4, 1.6), of_mixture(made, ("a", "b"), 0.43, 1.2)
    pairs = (SharedCost("a", "b", 0.25),)
    plain, paired = (first(one, *tried) for one in (made, replace(made, shared=pairs)))
    assert plain is not None and paired is not None
    assert (paired.float_regions, paired.budget_utilization) == (
        plain.float_regions,
        plain.budget_utilization,
    )


def test_a_base_is_worth_what_it_adds_to_those_at_hand() -> None:
    """Kits of a recipe that failed were tried under one hint and another, 6 s each, where what had
    been tried could be mixed."""
    other = Plan(Recipe("other", (Int8Dynamic(per_channel=False),)), CPU)
    expected = Expectation(Normal(-1.0, 0.1), 0.1, 1.0, log_budget_utilization=Normal(0.5, 0.1))
    none, worse, better = (
        bases(view(None, *tried)).estimate_gain(other, expected)[0]
        for tried in ((), (trial(WHOLE, 0.4, 20.0),), (trial(WHOLE, 0.3, 1.3),))
    )
    assert none > worse > better == 0.0


@pytest.mark.parametrize(
    "known",
    [
        {"by_region": False},
        {"facts": replace(FACTS, ops={"MatMul": 2})},
        {"remaining_s": 0.5},
        {"space": replace(SPACE, exact=True)},
        {"goal": Goal("size")},
        {"surveys": (FRAGILE,)},
    ],
)
def test_what_cannot_be_surveyed_is_no_base(known: dict[str, object]) -> None:
    made = view(None, **known)
    expected = Expectation(Normal(-1.0, 0.1), 0.1, 1.0, log_budget_utilization=Normal(0.5, 0.1))
    assert bases(made).estimate_gain(WHOLE, expected) == (0.0, 0.0)


THERE = Openvino(precision="bf16")
ROUNDED = Plan(WHOLE.recipe, THERE)


def test_what_the_hint_loses_alone_is_left_to_no_region() -> None:
    fast = trial(ROUNDED, 0.4, 1.6)
    alone = {lost: trial(Plan(AS_IS, THERE), 0.6, lost) for lost in (0.1, 0.5, 0.85)}
    gains = [rank_surveys(view(None, fast, one)) for one in alone.values()]
    assert gains[0][0].gain > gains[1][0].gain > 0
    assert not gains[2] or gains[2][0].gain == 0
    made = replace(FRAGILE, plan=ROUNDED)
    free, half = (
        MixtureSearch.from_survey(made, view(made, fast, one)) for one in (fast, alone[0.5])
    )
    assert free is not None and half is not None
    assert (free.floor, half.floor) == (0.0, 0.5)
    one, two = free.propose_mixture(), half.propose_mixture()
    assert one is not None and two is not None
    assert one.budget_utilization == pytest.approx(0.4)
    assert two.budget_utilization == pytest.approx(0.5 + 1.1 * 0.25), (
        "a quarter of what regions lose is left"
    )
    full = MixtureSearch.from_survey(made, view(made, fast, trial(Plan(AS_IS, THERE), 0.6, 0.92)))
    assert full is not None and full.propose_mixture() is None


def test_a_mixture_is_built_of_what_is_known() -> None:
    whole = replace(
        trial(WHOLE, 0.4, 1.6), seconds=32.0, building=30.0, edits=(Edit("int8-dynamic", 1, True),)
    )
    seen = view(FRAGILE, whole)
    ((_, found),) = estimate_mixtures(seen, Expectations(seen)).items()
    assert found.seconds == pytest.approx(0.3 * 30.0 + 2.0)


def test_a_plan_that_is_hardly_faster_than_the_best_is_worth_little() -> None:
    """Its mixtures are no faster than itself: two such surveys took 49 s of a search of 180."""
    best = trial(Plan(Recipe("other", (Int8Dynamic(per_channel=False),)), CPU), 0.405, 0.5)
    gains = [
        max(
            (one.gain for one in rank_surveys(view(None, trial(WHOLE, ratio, 1.1), best))),
            default=0.0,
        )
        for ratio in (0.3, 0.4)
    ]
    assert gains[0] > 0.1 and gains[1] < 0.02


def test_the_more_it_loses_the_less_a_survey_is_worth() -> None:
    gains = [
        rank_surveys(view(None, trial(WHOLE, 0.4, lost)))[0].gain for lost in (1.1, 3.0, 30.0)
    ]
    assert gains == sorted(gains, reverse=True)
    assert len(set(gains)) == 3


@pytest.mark.parametrize(
    "known",
    [
        {"by_region": False},
        {"facts": replace(FACTS, ops={"MatMul": 2})},
        {"remaining_s": 1.0},
        {"kept_back": 79.0},
        {"total": 2.0},
        {"surveys": (FRAGILE,)},
        {"space": replace(SPACE, exact=True)},
        {"budget": None},
    ],
)
def test_no_survey_where_it_is_off_known_or_does_not_fit(known: dict[str, object]) -> None:
    assert rank_surveys(replace(view(None, trial(WHOLE, 0.4, 1.6)), **known)) == []


def test_no_survey_of_what_cannot_win_or_tells_nothing() -> None:
    fast = trial(Plan(AS_IS, Cpu(threads=1)), 0.3, 0.0)
    assert rank_surveys(view(None, fast, trial(WHOLE, 0.4, 1.6))) == []
    for odd in (trial(WHOLE, 0.4, NAN), replace(trial(WHOLE, 0.4, 2.0), stopped="too slow")):
        assert rank_surveys(view(None, odd)) == []
    leaves_nothing_out = Plan(AS_IS, CPU)
    assert rank_surveys(view(None, replace(trial(leaves_nothing_out, 0.4, 2.0), key="k"))) == []


def test_surveys_share_a_quarter_of_the_time_and_end_before_the_finals() -> None:
    assert longest_s(view(None)) == 25.0
    assert longest_s(view(FRAGILE)) == 21.0
    assert longest_s(view(FRAGILE, kept_back=70.0)) == 10.0
