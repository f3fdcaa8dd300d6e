"""Whatever is expected to gain most per second, by all that this run has measured."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from ortune.core.plan_label import label_plan
from ortune.core.step import Recipe
from ortune.core.trial import Effort, Interval, Proposal, Status, Trial, UntriedPlan
from ortune.measurement.timing import stats
from ortune.search.compare import select_leaders
from ortune.search.expectation.candidates import (
    SETTINGS,
    Candidate,
    find_obstacle,
    list_candidates,
    list_mended_plans,
    list_screening_plans,
)
from ortune.search.expectation.expectations import Expectation, Expectations
from ortune.search.expectation.features import plan_family
from ortune.search.expectation.mixtures import (
    MixtureBases,
    SurveyCandidate,
    estimate_mixtures,
    rank_surveys,
)
from ortune.search.mixed_precision.survey import SurveyRequest
from ortune.search.policy import LeftOut, View

_AS_BASE = "; where it fails, some of its layers may go back to float"
_AS_SMALL = 0.01  # files whose sizes differ by less, in the logarithm, are as small
SETTINGS_SHARE = 0.1
"""Share of the time that settings may take before every family that may win has a trial."""
_MUCH_LONGER = 2.0
"""Times the time left: a family's first plan is tried unless it is expected to take more. What
building takes is expected by other models too, and the clock ends a build."""


@dataclass(frozen=True)
class _RankedCandidate:
    """A plan without a trial, what is expected of it, and what that is worth.

    Attributes:
        mixed: What mixtures of its regions may gain where it fails, after `more` seconds.
    """

    candidate: Candidate
    expected: Expectation
    worth: float
    mixed: float = 0.0
    more: float = 0.0

    @property
    def rate(self) -> float:
        """Expected gain per second, to six digits.

        What agrees so far is tried as it is listed: further digits depend on how many threads the
        linear algebra runs with, and a run that goes on would propose another plan.
        """
        seconds = self.expected.seconds
        rate = max(self.worth / seconds, (self.worth + self.mixed) / (seconds + self.more))
        return float(f"{rate:.6g}")


@dataclass(frozen=True)
class Adaptive:
    """Screen what needs no building, then try what is expected to gain most per second.

    Every plan's latency, chance to keep the budget and cost are expected from all trials so far
    (`search.expectation`), and the plan of the highest expected gain per second comes next, while
    there is one that may gain `worth` and that fits into the time. Then the fastest are timed as
    long as the others, and every family (quantizers, backend and precision hint) that has no trial
    in this run gets one: what other models taught orders plans, and rules none out.

    Attributes:
        worth: Expected gain, a share of the latency, below which a plan is not tried: so small, as
            what deviates has longer tails than a normal tells.
        near: Screened plans within this share of the best are timed in full before the finals.
    """

    worth: float = 0.0001
    near: float = 0.05

    def next(self, view: View) -> Proposal | SurveyRequest | None:
        """Return what to try now."""
        # One plan is tried however short the time is: without any there is no finalist.
        room = view.spare if len(view.trials) > 1 else math.inf
        if room <= 0:
            return self._propose_family(view, self.rank_candidates(view), room)
        for option in chain(list_screening_plans(view), list_mended_plans(view)):
            same = view.list_same_steps(option.plan)
            if not view.has_trial(option.plan) and not find_obstacle(option.plan, same):
                return _make_proposal(option, "screen" if option.stage == "screen" else "search")
        survey_candidates = rank_surveys(view)
        ranked = self.rank_candidates(view, survey_candidates)
        fit = (
            option
            for option in _postpone_settings(view, ranked, self.worth, room)
            if option.worth + option.mixed >= self.worth and option.expected.seconds <= room
        )
        first, survey = next(fit, None), next(iter(survey_candidates), None)
        if survey and survey.gain >= self.worth and _comes_first(survey, first, view.spare):
            return survey.request
        if first is not None:
            expectation = _describe_expectation(view, first.expected)
            mixes = first.mixed > first.worth
            return _make_proposal(first.candidate, "search", expectation + _AS_BASE * mixes)
        limit = (1 + self.near) * view.fastest
        for trial in select_leaders(view.trials, view.goal):
            near = trial.ratio is not None and trial.ratio.value <= limit
            fits = trial.seconds - trial.building <= view.spare
            if near and fits and not trial.has_reached("search"):
                why = "timed briefly, and close to the best"
                return Proposal(trial.plan, "search", why, neighbour_of=trial.neighbour_of)
        if (proposal := self._propose_family(view, ranked, room)) is not None:
            return proposal
        for trial in _list_doubtful(view):
            if trial.seconds - trial.building <= view.spare:
                why = "stopped early while the CPU was busy"
                return Proposal(trial.plan, "search", why, "full", neighbour_of=trial.neighbour_of)
        return None

    def _propose_family(
        self, view: View, ranked: Sequence[_RankedCandidate], room: float
    ) -> Proposal | None:
        """Return the first plan of a family.

        Where it may gain, it may take the time kept for finalists that are as fast as the first:
        they differ by little, and a family without a trial may not.
        """
        for option in _list_first_of_families(view, ranked):
            seconds = option.expected.seconds
            may_gain = option.worth + option.mixed >= self.worth
            if seconds <= _MUCH_LONGER * room or (may_gain and seconds <= view.spare_for_families):
                why = f"first plan of its kind; {_describe_expectation(view, option.expected)}"
                return _make_proposal(option.candidate, "search", why)
        return None

    def explain_untried(self, view: View) -> LeftOut:
        """Say of every plan without a trial why it has none."""
        baseline = view.trials[0].plan
        untried = [
            UntriedPlan(str(option.plan), why, label_plan(option.plan, baseline))
            for option in list_candidates(view)
            if (why := find_obstacle(option.plan, view.list_same_steps(option.plan)))
        ]
        ranked = self.rank_candidates(view, rank_surveys(view))
        families = _list_first_of_families(view, ranked)
        late = [option for option in ranked if option.worth >= self.worth or option in families]
        for option in ranked:
            plan, expected = option.candidate.plan, option.expected
            untried.append(
                UntriedPlan(
                    plan=str(plan),
                    why="no time left" if option in late else "too little to gain",
                    label=label_plan(plan, baseline),
                    speedup=_expect_speedup(expected),
                    chance=expected.keeps,
                    seconds=expected.seconds,
                )
            )
        notes = [
            f"out of time, not tried: {label_plan(option.candidate.plan, baseline)}: "
            f"{_describe_expectation(view, option.expected)}"
            for option in late[:1]
        ]
        if families:
            kinds = (plan_family(option.candidate.plan) for option in families)
            names = (f"{' + '.join(sorted(each)) or 'float'} on {hint}" for each, hint in kinds)
            notes.append(f"out of time; no plan was tried of: {', '.join(names)}")
        return LeftOut(tuple(notes), len(late), untried=tuple(untried))

    def rank_candidates(
        self, view: View, survey_candidates: Sequence[SurveyCandidate] = ()
    ) -> list[_RankedCandidate]:
        """Return the plans without a trial, by expected gain per second."""
        untried = [
            candidate
            for candidate in list_candidates(view)
            if not find_obstacle(candidate.plan, view.list_same_steps(candidate.plan))
        ]
        expectations = Expectations(view)
        expected = expectations.estimate_plans([candidate.plan for candidate in untried])
        mixed, worth = estimate_mixtures(view, expectations), _make_worth(view)
        bases = MixtureBases(view, expectations.durations, survey_candidates)
        ranked = [
            _RankedCandidate(candidate, expectation, worth(expectation))
            for candidate, expectation in mixed.items()
        ]
        for candidate, expectation in zip(untried, expected, strict=True):
            gain = bases.estimate_gain(candidate.plan, expectation)
            ranked.append(_RankedCandidate(candidate, expectation, worth(expectation), *gain))
        return sorted(ranked, key=lambda candidate: -candidate.rate)


def expect_outcomes(view: View, pending: Sequence[tuple[Proposal, Trial]]) -> View:
    """Return a view as if plans that are being timed had come out as expected.

    Args:
        pending: Each with what is known of its trial.
    """
    if not pending:
        return view
    expectations = Expectations(view)
    expected = expectations.estimate_plans([trial.plan for _, trial in pending])
    outcomes = [
        replace(
            trial,
            status=Status.SCREENED,
            ratio=Interval(*[math.exp(expectation.latency.mean)] * 3),
            effort=proposal.effort,
            seconds=trial.building + expectations.durations.running_s(trial.plan),
        )
        for (proposal, trial), expectation in zip(pending, expected, strict=True)
    ]
    read = sum(proposal.score and trial.plan.lossy for proposal, trial in pending)
    return replace(view, trials=[*view.trials, *outcomes], looked_at=view.looked_at + read)


def list_likely_recipes(view: View, proposal: Proposal) -> Iterator[Recipe]:
    """Yield the recipes of plans that may gain, as if the proposal had come out as expected.

    Those of the families that have no trial are among them. The most likely comes first.
    What the proposal itself needs is not: that is built here and now. Nothing is ranked before
    the first is asked for.
    """
    blank = Trial("", proposal.plan, "search", Status.SCREENED)
    view, policy = expect_outcomes(view, [(proposal, blank)]), Adaptive()
    ranked = policy.rank_candidates(view)
    families = _list_first_of_families(view, ranked)
    likely = [option for option in ranked if option.worth >= policy.worth or option in families]
    recipes = dict.fromkeys(option.candidate.plan.recipe for option in likely)
    yield from (recipe for recipe in recipes if recipe != proposal.plan.recipe)


def _postpone_settings(
    view: View, ranked: Sequence[_RankedCandidate], worth: float, room: float
) -> list[_RankedCandidate]:
    """Return the candidates, without settings while families that may win wait for a trial.

    A tenth of the time settings have in any case.
    """
    waiting = any(
        option.worth + option.mixed >= worth and option.expected.seconds <= room
        for option in _list_first_of_families(view, ranked)
    )
    if not waiting:
        return list(ranked)
    allowed_s = SETTINGS_SHARE * view.total - sum(
        trial.seconds for trial in view.trials if trial.stage == SETTINGS
    )
    return [
        option
        for option in ranked
        if option.candidate.stage != SETTINGS or option.expected.seconds <= allowed_s
    ]


def _list_first_of_families(
    view: View, ranked: Sequence[_RankedCandidate]
) -> list[_RankedCandidate]:
    """Return the first plan of each family that has no trial; whatever came of a trial counts."""
    tried = {plan_family(trial.plan) for trial in view.trials}
    firsts: dict[tuple[frozenset[str], str], _RankedCandidate] = {}
    for option in ranked:
        if plan_family(option.candidate.plan) not in tried:
            firsts.setdefault(plan_family(option.candidate.plan), option)
    return list(firsts.values())


def _list_doubtful(view: View) -> list[Trial]:
    """Return the trials that ended on disturbed runs alone, those first that seemed fastest."""
    doubtful = [
        trial
        for trial in view.trials
        if trial.part == "search"
        and trial.stopped
        and trial.ratio is not None
        and trial.measurement is not None
        and stats.count_unusable(trial.measurement.pairs)
        and not trial.has_reached("full")
    ]
    return sorted(doubtful, key=lambda trial: trial.ratio.value if trial.ratio else math.inf)


def _comes_first(survey: SurveyCandidate, plan: _RankedCandidate | None, spare: float) -> bool:
    """Whether a survey gains more per second than a plan, or more than it and fits no more after
    it."""
    if plan is None or survey.gain / survey.seconds > plan.rate:
        return True
    fits_later = survey.seconds <= spare - plan.expected.seconds
    return not fits_later and survey.gain > plan.worth + plan.mixed


def _make_worth(view: View) -> Callable[[Expectation], float]:
    """Return what says how much a plan is expected to gain: of the latency, or else of the bytes.

    Where size or memory is preferred a plan must not be slower; weights are most of both. Of what
    is as small the fastest is wanted.
    """
    fastest, best = (math.log(max(ratio, 1e-9)) for ratio in (view.fastest, view.to_beat))
    if view.goal.prefer == "speed":
        return lambda expectation: expectation.compute_expected_gain(fastest, best)
    fit, first = select_leaders(view.trials, view.goal), view.trials[0].size or 1
    least = math.log(min([1.0, *(trial.size / first for trial in fit if trial.size)]))
    quickest = math.log(fit[0].ratio.value) if fit and fit[0].ratio else 0.0

    def worth(expectation: Expectation) -> float:
        latency, size = expectation.latency, expectation.size
        smaller = latency.probability_below(0.0) * size.improvement_over(least)
        as_small = size.probability_below(least + _AS_SMALL)
        faster = latency.improvement_over(min(0.0, quickest))
        return expectation.keeps * (smaller + as_small * faster)

    return worth


def _make_proposal(candidate: Candidate, effort: Effort, expectation: str = "") -> Proposal:
    why = "; ".join(filter(None, [candidate.why, expectation]))
    return Proposal(
        candidate.plan, candidate.stage, why, effort, neighbour_of=candidate.neighbour_of
    )


def _describe_expectation(view: View, expectation: Expectation) -> str:
    """Return what is expected of a plan, in words."""
    share = f"{100 * math.exp(expectation.size.mean):.0f} % of the size, "
    size = share if view.goal.prefer != "speed" else ""
    speedup = _expect_speedup(expectation)
    return (
        f"{size}expected speed-up {speedup.value:.2g}x ({speedup.low:.2g}-{speedup.high:.2g}), "
        f"best so far {1 / max(view.fastest, 1e-9):.2g}x; {100 * expectation.keeps:.0f} % "
        f"chance of meeting the accuracy budget, about {expectation.seconds:.0f} s to try"
    )


def _expect_speedup(expectation: Expectation) -> Interval:
    """Return the speed-up that is expected of a plan, with 90 %."""
    mean, reach = expectation.latency.mean, 1.645 * expectation.latency.sd
    return Interval(*(math.exp(-log_ratio) for log_ratio in (mean, mean + reach, mean - reach)))
