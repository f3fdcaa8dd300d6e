"""The adaptive policy on records alone: trials in, a proposal out."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import pytest

from ortune.backends.cpu import Cpu
from ortune.backends.openvino import Openvino
from ortune.core.acceptance import Goal
from ortune.core.budget import Budget
from ortune.core.capabilities import Capabilities
from ortune.core.facts import Facts
from ortune.core.plugins.spelling import parse_plugin
from ortune.core.step import AS_IS, Edit, Recipe, Step, Transform
from ortune.core.trial import (
    Block,
    Burst,
    Interval,
    Measurement,
    Pair,
    Plan,
    Proposal,
    Score,
    Status,
    Trial,
    Verdict,
)
from ortune.measurement.workloads.latency import Latency
from ortune.quantizers.int8_static import Int8Static
from ortune.search import adaptive
from ortune.search.adaptive import Adaptive
from ortune.search.expectation.candidates import SETTINGS, Candidate
from ortune.search.expectation.expectations import Expectation, Expectations
from ortune.search.expectation.features import list_settings, plan_family
from ortune.search.expectation.mixtures import SurveyCandidate
from ortune.search.expectation.surrogate import Normal
from ortune.search.mixed_precision.survey import SurveyRequest
from ortune.search.policy import View
from ortune.search.recipe.space import SearchTarget, Space

OPS = {"MatMul": 60, "Add": 60, "LayerNormalization": 25, "Softmax": 12, "Gelu": 12}
FACTS = Facts(OPS, 170, 1, 80_000_000, {}, 17, 8, (), ())
CAPABLE = Capabilities(instruction_sets=("avx512_vnni", "avx512_bf16"), effective_cpus=2)
CPU, OPENVINO = Cpu(threads=1), Openvino(threads=1)
TARGETS = tuple(SearchTarget(one, CAPABLE, frozenset({"threads"})) for one in (CPU, OPENVINO))
SPACE = Space(FACTS, TARGETS, Latency(), CPU)
BASE = Trial("base", Plan(AS_IS, CPU), "search", Status.OK, Interval(1, 1, 1), stage="baseline")
BF16 = replace(OPENVINO, precision="bf16")

World = Callable[[Plan], tuple[float, float]]
"""What a plan's ratio is, and what share of the allowed loss it loses."""


def view(trials: Sequence[Trial] = (), left: float = 100.0, **known: object) -> View:
    made = View(FACTS, SPACE, (BASE, *trials), left, 180.0, Budget.parse("cosine>=0.99"))
    return replace(made, **known)


def trial(proposal: Proposal, ratio: float, lost: float = 0.0, **known: object) -> Trial:
    verdict = Verdict.FAILS if lost > 1 else Verdict.PROVED
    value = 1 - 0.01 * lost
    score = Score("cosine", value, 1.0, value, 1.0, 32, verdict)
    made = Trial(
        proposal.plan.spelling,
        proposal.plan,
        "search",
        Status.FAILS if lost > 1 else Status.OK if ratio < 1 else Status.SLOWER,
        Interval(ratio, ratio * 0.99, ratio * 1.01),
        (score,),
        stage=proposal.stage,
        neighbour_of=proposal.neighbour_of,
        effort=proposal.effort,
        seconds=3.0,
        reproduce="a command",
    )
    return replace(made, **known)


def searched(world: World, left: float = 100.0, most: int = 60) -> list[Trial]:
    """Return the trials of a search in a world, in order; each takes four seconds."""
    trials: dict[str, Trial] = {}
    for _ in range(most):
        proposal = Adaptive().next(view(list(trials.values()), left))
        if proposal is None:
            break
        made = trial(proposal, *world(proposal.plan))
        trials.pop(made.key, None)
        trials[made.key], left = made, left - 4
    return list(trials.values())


def usual(plan: Plan) -> tuple[float, float]:
    """A world where bf16 halves the time and static int8 fails until its weights are rounded."""
    text, ratio, lost = plan.spelling, 0.95, 0.0
    if "bf16" in text:
        ratio, lost = 0.5, 0.3
    if "int8-static" in text:
        ratio, lost = 0.35, 1.6 if "adaptive-rounding" not in text else 0.5
    if "SkipLayerNormFusion" in text:
        ratio *= 0.85
    return ratio, lost


def test_it_finds_the_best_of_the_world_within_thirty_plans() -> None:
    found = searched(usual, left=140.0, most=30)
    fit = [t for t in found if t.status is Status.OK and t.ratio is not None]
    best = min(fit, key=lambda t: t.ratio.value if t.ratio else math.inf)
    assert best.ratio.value <= 0.35


def test_a_screened_plan_whose_block_waited_for_a_cpu_is_tried_again() -> None:
    """A captcha reader on bf16, 1.2 times as fast, was read as 0.77 beside a neighbour."""
    screened = trial(Proposal(Plan(AS_IS, BF16), "screen", effort="screen"), 1.3)
    others = [
        trial(Proposal(Plan(AS_IS, OPENVINO), "screen", effort="screen"), 1.1),
        trial(
            Proposal(Plan(Recipe("int8", (Int8Static(),)), BASE.plan.backend), "search"), 0.9, 2
        ),
    ]

    def propose(first: Trial) -> list[Plan]:
        ranked = Adaptive().rank_candidates(view([first, *others]))
        return [option.candidate.plan for option in ranked if option.worth > 0.01]

    assert Plan(AS_IS, BF16) not in propose(screened)
    disturbed = replace(screened, waited=True)
    assert Plan(AS_IS, BF16) in propose(disturbed)
    assert Plan(AS_IS, BF16) not in propose(replace(disturbed, effort="search"))


def test_it_ends_where_nothing_may_gain() -> None:
    def flat(plan: Plan) -> tuple[float, float]:
        return (0.2, 0.0) if plan == Plan(AS_IS, BF16) else (3.0, 0.0)

    found = searched(flat, left=10_000.0, most=400)
    assert len(found) < 100
    (last,) = [one for one in found if one.plan == Plan(AS_IS, BF16)]
    assert last.effort == "search", "the fastest screened plan is timed in full before the finals"


def test_what_so_few_samples_cannot_show_is_not_what_others_have_to_beat() -> None:
    hinted = trial(Proposal(Plan(AS_IS, BF16), "screen", ""), 0.5, 0.5)
    seen = replace(hinted.scores[0], verdict=Verdict.UNDECIDED, chance=0.4)
    fused = Plan(Recipe("fused", (parse_plugin(Transform, "simplify"),)), OPENVINO)
    known = [replace(hinted, scores=(seen,)), trial(Proposal(fused, "search", ""), 0.8)]
    few, many = (view(known, samples=count) for count in (40, 400))
    assert not few.is_acceptable(known[0]) and many.is_acceptable(known[0])
    assert few.to_beat == 0.8 and many.to_beat == 0.5
    quantized = Plan(Recipe("int8", (Int8Static(),)), BF16)
    short, enough, exact = (
        Expectations(one).estimate_plans([plan])[0]
        for one, plan in ((few, quantized), (many, quantized), (few, Plan(AS_IS, OPENVINO)))
    )
    assert short.keeps == enough.keeps < 1
    assert short.shown < 0.6 and enough.shown == exact.shown == 1, "what loses as much is unshown"
    latency = Normal(math.log(0.6), 0.0)
    gains = [
        replace(one, latency=latency).compute_expected_gain(math.log(0.5), math.log(0.8))
        for one in (short, exact)
    ]
    assert gains[0] < 0.6 * gains[1], "slower than the fastest, it wins only if it can be accepted"


@pytest.mark.parametrize(("share", "families"), [(0.1, 8), (9.0, 5)])
def test_families_that_may_win_come_before_settings(
    share: float, families: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever settings bring: a search of 105 s spent 85 on them and never tried static int8."""

    def generous(plan: Plan) -> tuple[float, float]:
        ratio, lost = usual(plan)
        return ratio * 0.9 ** len(list(list_settings(plan.backend))), lost

    monkeypatch.setattr(adaptive, "SETTINGS_SHARE", share)
    trials = searched(generous, left=300.0)
    first = next(at for at, one in enumerate(trials) if one.stage == SETTINGS)
    assert len({plan_family(one.plan) for one in trials[:first]}) == families


def test_what_was_stopped_by_disturbed_runs_comes_back_at_the_end() -> None:
    waited = Burst((1_000_000,) * 8, (0.5,) * 8, alike=True)
    disturbed = Measurement((Pair((Block(waited, waited),) * 3),), 1, 1, 0)
    trials = searched(usual, left=300.0)
    left = 300.0 - 4 * len(trials)
    assert Adaptive().next(view(trials, left)) is None
    at = max(range(len(trials)), key=lambda at: trials[at].ratio.value if trials[at].ratio else 0)
    stopped = replace(trials[at], stopped="stopped early: 9x", measurement=disturbed)
    proposal = Adaptive().next(view([*trials[:at], stopped, *trials[at + 1 :]], left))
    assert isinstance(proposal, Proposal)
    assert (proposal.plan, proposal.effort) == (stopped.plan, "full")
    again = replace(stopped, effort="full")
    assert Adaptive().next(view([*trials[:at], again, *trials[at + 1 :]], left)) is None, "once"


def test_what_died_is_not_proposed_under_that_hint_again() -> None:
    trials: list[Trial] = []
    for _ in range(25):
        proposal = Adaptive().next(view(trials))
        recipe, made = proposal.plan.recipe, trial(proposal, *usual(proposal.plan))
        if "int8-weights" in proposal.plan.spelling and "bf16" in proposal.plan.spelling:
            made = replace(made, status=Status.FAILED, ratio=None, scores=(), error="SIGFPE")
            assert not any(t.plan.recipe.steps == recipe.steps and t.error for t in trials)
        trials.append(made)


def test_nothing_begins_that_does_not_fit_into_the_time() -> None:
    screened = [
        trial(Proposal(Plan(AS_IS, one), "screen", effort="screen"), 0.6, 0.2)
        for one in (BF16, OPENVINO)
    ]
    assert Adaptive().next(view(screened, left=30.0)) is not None
    assert Adaptive().next(view(screened, left=30.0, kept_back=29.5)) is None
    late = Adaptive().explain_untried(view(screened, left=30.0, kept_back=29.5))
    assert late.late
    assert late.count > 10
    assert all(one.why for one in late.untried)
    assert "out of time, not tried:" in late.notes[0]


@pytest.mark.parametrize(("for_rivals", "begins"), [(29.0, True), (2.0, False)])
def test_a_family_may_take_the_time_of_finalists_as_fast_as_the_first(
    for_rivals: float, begins: bool
) -> None:
    screened = [
        trial(Proposal(Plan(AS_IS, one), "screen", effort="screen"), 0.6, 0.2)
        for one in (BF16, OPENVINO)
    ]
    of = view(screened, left=30.0, kept_back=31.0, for_rivals=for_rivals)
    proposal = Adaptive().next(of)
    assert (proposal is not None) is begins
    if begins:
        assert plan_family(proposal.plan) not in {plan_family(t.plan) for t in of.trials}


def listed(monkeypatch: pytest.MonkeyPatch, **expected: Expectation) -> View:
    """Return a view of plans of which so much is expected, by their names."""
    recipes = {name: Recipe(name, (parse_plugin(Transform, "simplify"),)) for name in expected}
    found = [Candidate(Plan(recipe, CPU), "search", "listed") for recipe in recipes.values()]
    monkeypatch.setattr(adaptive, "list_screening_plans", lambda view: iter(()))
    monkeypatch.setattr(adaptive, "list_candidates", lambda view: found)
    monkeypatch.setattr(
        adaptive.Expectations,
        "estimate_plans",
        lambda self, plans: [expected[p.recipe.name] for p in plans],
    )
    return view([trial(Proposal(Plan(AS_IS, BF16), "screen"), 0.9)])


def test_one_plan_that_is_very_slow_condemns_no_relative() -> None:
    plain = Plan(AS_IS, OPENVINO)
    around = Plan(AS_IS, replace(OPENVINO, pinning="on"))
    other = Plan(AS_IS, replace(OPENVINO, pinning="off"))
    known = [trial(Proposal(plain, "screen"), 0.9)]
    slow = trial(Proposal(around, "runtime"), 130.0, status=Status.SLOWER, stopped="at once")
    before, after = (
        Expectations(view(trials)).estimate_plans([other])[0].latency.mean
        for trials in (known, [*known, slow])
    )
    assert abs(after - before) < 0.05


def test_a_cheap_plan_of_no_worth_does_not_hide_a_costly_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    of = listed(
        monkeypatch,
        cheap=Expectation(Normal(math.log(0.89995), 0.0), 1.0, seconds=0.1),
        costly=Expectation(Normal(math.log(0.85), 0.0), 1.0, seconds=20.0),
    )
    found = Adaptive().next(of)
    assert found.plan.recipe.name == "costly"


def test_a_first_plan_is_tried_where_finalists_take_all_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    of = listed(monkeypatch, only=Expectation(Normal(-0.5, 0.1), 1.0, seconds=8.0))
    begun = replace(of, trials=(BASE,), remaining_s=9.0, kept_back=5.0)
    assert Adaptive().next(begun) is not None
    assert Adaptive().next(replace(begun, remaining_s=0.5)) is not None
    assert Adaptive().next(replace(of, remaining_s=9.0, kept_back=5.0)) is None


SURVEYED = SurveyRequest(Plan(Recipe("int8", (Int8Static(),)), CPU))


@pytest.mark.parametrize(
    ("left", "gain", "asked"),
    [
        pytest.param(60.0, 0.2, False, id="both fit: what gains more per second comes first"),
        pytest.param(41.0, 0.2, True, id="after the plan it would not fit"),
        pytest.param(42.0, 0.2, False, id="it just fits after the plan"),
        pytest.param(41.0, 0.04, False, id="the plan gains more"),
    ],
)
def test_a_survey_comes_first_where_it_would_fit_no_more_after_a_plan(
    monkeypatch: pytest.MonkeyPatch, left: float, gain: float, asked: bool
) -> None:
    sure = Expectation(Normal(math.log(0.9 * math.exp(-0.05)), 0.0), 1.0, seconds=2.0)
    of = replace(listed(monkeypatch, quick=sure), remaining_s=left)
    monkeypatch.setattr(
        adaptive, "rank_surveys", lambda view: [SurveyCandidate(SURVEYED, gain, 40.0)]
    )
    found = Adaptive().next(of)
    assert isinstance(found, SurveyRequest) is asked


def test_of_plans_as_small_as_the_smallest_the_fastest_is_looked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small = Normal(math.log(0.25), 0.0)
    of = listed(
        monkeypatch,
        larger=Expectation(Normal(-2.0, 0.1), 1.0, 1.0, Normal(math.log(0.5), 0.0)),
        tied=Expectation(Normal(-1.0, 0.1), 1.0, 9.0, small),
    )
    original = replace(BASE, size=1000)
    leader = trial(Proposal(Plan(AS_IS, OPENVINO), "search"), 0.9, size=250)
    wanted = replace(of, trials=(original, leader), goal=Goal(prefer="size"))
    found = Adaptive().next(wanted)
    assert found.plan.recipe.name == "tied"


def test_a_size_that_is_only_usual_may_turn_out_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = Normal(math.log(0.35), 0.25)
    of = listed(monkeypatch, unbuilt=Expectation(Normal(-1.0, 0.1), 1.0, 9.0, usual))
    original = replace(BASE, size=1000)
    leader = trial(Proposal(Plan(AS_IS, OPENVINO), "search"), 0.9, size=300)
    wanted = replace(of, trials=(original, leader), goal=Goal(prefer="size"))
    assert Adaptive().next(wanted) is not None


def test_what_does_not_change_is_worked_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proposal among hundreds of plans must take milliseconds."""
    space, asked = replace(SPACE), []
    failed = [trial(Proposal(plan, "search"), 0.9, 2.0) for plan in space.all_plans[:20]]
    rescues = Int8Static.rescues

    def counted(step: Int8Static, facts: Facts) -> Iterable[tuple[Step, ...]]:
        asked.append(step)
        return rescues(step, facts)

    monkeypatch.setattr(Int8Static, "rescues", counted)
    Adaptive().explain_untried(view(failed, space=space))
    once = len(asked)
    assert once
    Adaptive().explain_untried(view(failed, space=space))
    assert len(asked) == once


def test_what_was_built_is_not_paid_again() -> None:
    made = Recipe("int8", (Int8Static(),))
    first, other = Plan(made, OPENVINO), Plan(made, replace(OPENVINO, streams=2))
    new = Plan(Recipe("two steps", (Int8Static(head=True),)), OPENVINO)
    record = trial(Proposal(first, "search"), 0.5, seconds=23.0, building=20.0)
    edits = (Edit("int8-static", 60),)
    expected = Expectations(view([replace(record, edits=edits)])).estimate_plans([other, new])
    assert [round(one.seconds) for one in expected] == [3, 23]
