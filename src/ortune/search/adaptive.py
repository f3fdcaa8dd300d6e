"""Whatever is expected to gain most per second, by all that this run has measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ortune.core.trial import Effort, Proposal, Untried
from ortune.search.compare import leaders
from ortune.search.expectation.candidates import Candidate, candidates, hopeless, screened
from ortune.search.expectation.expectations import Expectations, Expected
from ortune.search.expectation.mixtures import Bases, WantedSurvey, expected_mixtures, surveys
from ortune.search.mixed_precision.survey import SurveyRequest
from ortune.search.policy import LeftOut, View

_AS_BASE = "; where it fails, its regions may be mixed"
_AS_SMALL = 0.01
"""Files whose sizes differ by less, in the logarithm, are as small."""


@dataclass(frozen=True)
class _Ranked:
    """A plan without a trial, what is expected of it, and what that is worth.

    Attributes:
        mixed: What mixtures of its regions may gain where it fails, after `more` seconds.
    """

    one: Candidate
    expected: Expected
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
    there is one that may gain `worth` and that fits into the time. Before the finals the fastest
    are timed as long as the others.

    Attributes:
        worth: Expected gain, a share of the latency, below which a plan is not tried: so small, as
            what deviates has longer tails than a normal tells.
        near: Screened plans within this share of the best are timed in full before the finals.
    """

    worth: float = 0.0001
    near: float = 0.05

    def next(self, view: View) -> Proposal | SurveyRequest | None:
        """Return what to try now."""
        if view.spare <= 0 and len(view.trials) > 1:
            return None
        for one in screened(view):
            if not view.tried(one.plan) and not hopeless(one.plan, view.alike(one.plan)):
                return _proposal(one, "screen")
        # One plan is tried however short the time is: without any there is no finalist.
        room, wanted = view.spare if len(view.trials) > 1 else math.inf, surveys(view)
        fit = (
            one
            for one in self._ranked(view, wanted)
            if one.worth + one.mixed >= self.worth and one.expected.seconds <= room
        )
        first, survey = next(fit, None), next(iter(wanted), None)
        if survey and survey.gain >= self.worth and _comes_first(survey, first, view.spare):
            return survey.request
        if first is not None:
            told = _told(view, first.expected)
            mixes = first.mixed > first.worth
            return _proposal(first.one, "search", told + _AS_BASE * mixes)
        limit = (1 + self.near) * math.exp(_best(view))
        for trial in leaders(view.trials, view.wanted):
            near = trial.ratio is not None and trial.ratio.value <= limit
            if near and not trial.taken("search") and trial.seconds - trial.building <= view.spare:
                why = "screened, and near the best"
                return Proposal(trial.plan, "search", why, neighbour_of=trial.neighbour_of)
        return None

    def left_out(self, view: View) -> LeftOut:
        """Say of every plan without a trial why it has none."""
        untried = [
            Untried(str(one.plan), why)
            for one in candidates(view)
            if (why := hopeless(one.plan, view.alike(one.plan)))
        ]
        ranked = self._ranked(view, surveys(view))
        late = [one for one in ranked if one.worth >= self.worth]
        for one in ranked:
            lack = "no time left" if one.worth >= self.worth else "gains too little"
            untried.append(Untried(str(one.one.plan), f"{lack}: {_told(view, one.expected)}"))
        notes = [
            f"not tried for lack of time: {one.one.plan}, {_told(view, one.expected)}"
            for one in late[:1]
        ]
        return LeftOut(tuple(notes), len(late), untried=tuple(untried))

    def _ranked(self, view: View, wanted: Sequence[WantedSurvey]) -> list[_Ranked]:
        """Return the plans without a trial, by expected gain per second."""
        found = [one for one in candidates(view) if not hopeless(one.plan, view.alike(one.plan))]
        known = Expectations(view)
        expected = known.of([one.plan for one in found])
        mixed, worth = expected_mixtures(view, known), _worth(view)
        bases = Bases(view, known.durations, wanted)
        ranked = [_Ranked(one, of, worth(of)) for one, of in mixed.items()]
        for one, of in zip(found, expected, strict=True):
            ranked.append(_Ranked(one, of, worth(of), *bases.of(one.plan, of)))
        return sorted(ranked, key=lambda one: -one.rate)


def _comes_first(survey: WantedSurvey, plan: _Ranked | None, spare: float) -> bool:
    """Whether a survey gains more per second than a plan, or more than it and fits no more after
    it."""
    if plan is None or survey.gain / survey.seconds > plan.rate:
        return True
    fits_later = survey.seconds <= spare - plan.expected.seconds
    return not fits_later and survey.gain > plan.worth + plan.mixed


def _best(view: View) -> float:
    """Return the log-ratio above which no plan can win; 0 is the original's."""
    return math.log(max(view.to_beat, 1e-9))


def _worth(view: View) -> Callable[[Expected], float]:
    """Return what says how much a plan is expected to gain: of the latency, or else of the bytes.

    Where size or memory is preferred a plan must not be slower; weights are most of both. Of what
    is as small the fastest is wanted.
    """
    best = _best(view)
    if view.wanted.prefer == "speed":
        return lambda found: found.worth(best)
    fit, first = leaders(view.trials, view.wanted), view.trials[0].size or 1
    least = math.log(min([1.0, *(trial.size / first for trial in fit if trial.size)]))
    fastest = math.log(fit[0].ratio.value) if fit and fit[0].ratio else 0.0

    def worth(found: Expected) -> float:
        smaller = found.latency.below(0.0) * found.size.gain(least)
        as_small = found.size.below(least + _AS_SMALL)
        return found.keeps * (smaller + as_small * found.latency.gain(min(0.0, fastest)))

    return worth


def _proposal(one: Candidate, effort: Effort, told: str = "") -> Proposal:
    why = "; ".join(filter(None, [one.why, told]))
    return Proposal(one.plan, one.stage, why, effort, neighbour_of=one.neighbour_of)


def _told(view: View, found: Expected) -> str:
    """Return what is expected of a plan, in words."""
    low, high = (found.latency.mean + z * found.latency.sd for z in (-1.645, 1.645))
    size = f"size {math.exp(found.size.mean):.2f}, " if view.wanted.prefer != "speed" else ""
    return (
        f"{size}expected ratio {math.exp(found.latency.mean):.2f} [{math.exp(low):.2f}, "
        f"{math.exp(high):.2f}], best so far {math.exp(_best(view)):.2f}; keeps the budget with "
        f"{100 * found.keeps:.0f} % and takes {found.seconds:.0f} s"
    )
