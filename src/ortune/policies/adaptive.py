"""Whatever is expected to gain most per second, by all that this run has measured."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from ortune.core.trial import Proposal, Trial, Untried
from ortune.search.compare import leaders, to_beat
from ortune.search.expectation.candidates import Candidate, candidates, hopeless, screened
from ortune.search.expectation.expectations import Expectations, Expected
from ortune.search.policy import LeftOut, Policy, View


@dataclass(frozen=True)
class Adaptive(Policy):
    """Screen what needs no building, then try what is expected to gain most per second.

    Every plan's latency, chance to keep the budget and cost are expected from all trials so far
    (`search.expectation`), and the plan of the highest expected gain per second comes next, while
    there is one that may gain `worth` and that fits into the time. Before the finals the fastest
    are timed as long as the others.

    Attributes:
        worth: Expected gain, a share of the latency, below which a plan is not tried.
        near: Screened plans within this share of the best are timed in full before the finals.
    """

    worth: float = 0.002
    near: float = 0.05

    def next(self, view: View) -> Proposal | None:
        """Return what to try now."""
        if view.spare <= 0 and len(view.trials) > 1:
            return None
        for one in screened(view):
            if not view.tried(one.plan) and not hopeless(one.plan, view.trials):
                return _proposal(one, "screen")
        ranking = self._ranked(view)
        fitting = [(one, found) for one, found in ranking if found.seconds <= view.spare]
        if fitting and _worth(view, fitting[0][1]) >= self.worth:
            one, found = fitting[0]
            return _proposal(one, "search", _told(view, found))
        return self._again(view)

    def left_out(self, view: View) -> LeftOut:
        """Say of every plan without a trial why it has none."""
        notes = []
        untried = [Untried(str(one.plan), why) for one, why in self._hopeless(view)]
        late = False
        for one, found in self._ranked(view):
            worth = _worth(view, found) >= self.worth
            if worth and not late:
                notes.append(f"not tried for lack of time: {one.plan}, {_told(view, found)}")
            late |= worth
            lack = "no time left" if worth else "gains too little"
            untried.append(Untried(str(one.plan), f"{lack}: {_told(view, found)}"))
        return LeftOut(tuple(notes), late, untried=tuple(untried))

    def _hopeless(self, view: View) -> Iterator[tuple[Candidate, str]]:
        """Yield the plans that are not tried whatever they might gain, with the reason."""
        for one in candidates(view):
            if why := hopeless(one.plan, view.trials):
                yield one, why

    def _ranked(self, view: View) -> list[tuple[Candidate, Expected]]:
        """Return the plans without a trial, by expected gain per second."""
        found = [one for one in candidates(view) if not hopeless(one.plan, view.trials)]
        expected = Expectations(view).of([one.plan for one in found])
        ranked = zip(found, expected, strict=True)
        return sorted(ranked, key=lambda pair: -_worth(view, pair[1]) / pair[1].seconds)

    def _again(self, view: View) -> Proposal | None:
        """Time in full what was only screened and may be the best."""
        for trial in self._doubtful(view):
            if trial.seconds <= view.spare:
                why = "screened, and near the best"
                return Proposal(trial.plan, "search", why, neighbour_of=trial.neighbour_of)
        return None

    def _doubtful(self, view: View) -> Iterator[Trial]:
        fit = leaders(view.trials, view.wanted)
        limit = (1 + self.near) * math.exp(_best(view))
        for trial in fit:
            if not trial.taken("search") and trial.ratio and trial.ratio.value <= limit:
                yield trial


def _best(view: View) -> float:
    """Return the log-ratio above which no plan can win; 0 is the original's."""
    return math.log(max(to_beat(view.trials, view.wanted), 1e-9))


def _worth(view: View, found: Expected) -> float:
    """Return what a plan is expected to gain: of the latency, or else of the bytes.

    Where size or memory is preferred a plan must not be slower; weights are most of both.
    """
    if view.wanted.prefer == "speed":
        return found.worth(_best(view))
    first = view.trials[0].size or 1
    sizes = [trial.size / first for trial in leaders(view.trials, view.wanted) if trial.size]
    smaller = max(0.0, min([1.0, *sizes]) - found.size)
    return found.keeps * found.latency.below(0.0) * smaller


def _proposal(one: Candidate, effort: str, told: str = "") -> Proposal:
    why = "; ".join(filter(None, [one.why, told]))
    return Proposal(
        one.plan,
        one.stage,
        why,
        effort="screen" if effort == "screen" else "search",
        neighbour_of=one.neighbour_of,
    )


def _told(view: View, found: Expected) -> str:
    """Return what is expected of a plan, in words."""
    low, high = (found.latency.mean + z * found.latency.sd for z in (-1.645, 1.645))
    size = f"size {found.size:.2f}, " if view.wanted.prefer != "speed" else ""
    return (
        f"{size}expected ratio {math.exp(found.latency.mean):.2f} [{math.exp(low):.2f}, "
        f"{math.exp(high):.2f}], best so far {math.exp(_best(view)):.2f}; keeps the budget with "
        f"{100 * found.keeps:.0f} % and takes {found.seconds:.0f} s"
    )
