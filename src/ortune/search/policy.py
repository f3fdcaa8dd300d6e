"""What a search may try next: a policy proposes one plan from the records of all before."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from ortune.core.acceptance import FASTEST, Goal
from ortune.core.backend import Backend
from ortune.core.budget import Budget
from ortune.core.facts import Facts
from ortune.core.step import Step
from ortune.core.trial import Effort, Plan, Proposal, Trial, UntriedPlan
from ortune.search.compare import is_acceptable, to_beat
from ortune.search.mixed_precision.survey import Survey, SurveyRequest
from ortune.search.recipe.space import Space
from ortune.search.reserve import OVER

_BUILT_S = 10.0  # seconds that building may take in any case


@dataclass(frozen=True)
class View:
    """All that a policy may know, rebuilt from the ledger for every proposal.

    Attributes:
        trials: In order, the original first; failed and unchanged ones too.
        remaining_s: Seconds of the time budget that are left; negative when it is overrun.
        kept_back: Seconds of those left that finalists and what follows them will take.
        for_rivals: Of these, seconds for finalists about as fast as the first.
        by_operator: Operator -> its share of the original's time; empty where none was taken.
        goal: By what the winner is chosen, and its bounds: `search.compare.to_beat` says which
            latency still may win.
        by_region: Whether a survey may be asked for.
        former: Trials of earlier commands that are void: of what they took may be learnt.
        samples: How many there are to judge finalists by; None where any number can be had.
        looked_at: Plans whose accuracy was read so far.
    """

    facts: Facts
    space: Space
    trials: Sequence[Trial]
    remaining_s: float
    total: float
    budget: Budget | None = None
    kept_back: float = 0.0
    for_rivals: float = 0.0
    by_operator: Mapping[str, float] = field(default_factory=dict)
    goal: Goal = FASTEST
    surveys: Sequence[Survey] = ()
    by_region: bool = False
    former: Sequence[Trial] = ()
    samples: int | None = None
    looked_at: int = 1

    @property
    def spare(self) -> float:
        """Seconds left for plans; the rest is kept back for the finalists."""
        return self.remaining_s - self.kept_back

    @property
    def spare_for_families(self) -> float:
        """Seconds left for the first plan of a family: a second finalist as fast can wait."""
        return self.spare + self.for_rivals

    @property
    def build_s(self) -> float:
        """Seconds that building a plan may take: what is spare, and a little of the finalists'."""
        return max(_BUILT_S, self.spare_for_families + OVER * self.total)

    @cached_property
    def to_beat(self) -> float:
        """The latency ratio above which no plan can win: of the fastest that may be accepted."""
        return to_beat(self.acceptable, self.goal)

    @cached_property
    def fastest(self) -> float:
        """The latency ratio of the fastest that keeps the budget as far as was seen, at most 1."""
        return to_beat(self.trials, self.goal)

    @cached_property
    def acceptable(self) -> Sequence[Trial]:
        """The original, and trials of plans that so many samples may show to keep the budget."""
        return [self.trials[0], *filter(self.is_acceptable, self.trials[1:])]

    def is_acceptable(self, trial: Trial) -> bool:
        """Whether a plan is accepted if it loses as little on all samples as so far."""
        if self.samples is None:
            return True
        return is_acceptable(trial, self.samples, self.looked_at)

    def may_score(self, plan: Plan) -> bool:
        """Whether a plan's accuracy may be read.

        The more plans' accuracy was read, the more samples each needs to be accepted. Where one
        more would leave none of the quantized plans that may be accepted now, no other is read. A
        plan that has the steps and the precision of one that was read answers like it.
        """
        if not plan.lossy or not self._is_reading_spent:
            return True
        return any(
            trial.scores and _describe_arithmetic(trial.plan) == _describe_arithmetic(plan)
            for trial in self.list_same_steps(plan)
        )

    @cached_property
    def _is_reading_spent(self) -> bool:
        """Whether one more plan that is read leaves none that may be accepted now."""
        lossy = [t for t in self.acceptable if t.plan.lossy and t.part == "search"]
        if self.samples is None or not lossy:
            return False
        samples, plans = self.samples, self.looked_at + 1
        return not any(is_acceptable(trial, samples, plans) for trial in lossy)

    def find_trial(self, plan: Plan) -> Trial | None:
        """Return the search's trial of a plan, whatever its recipe is called."""
        return self._trials.get(plan.spelling)

    def has_trial(self, plan: Plan, effort: Effort = "screen") -> bool:
        """Whether a plan has a trial that was taken this far."""
        trial = self.find_trial(plan)
        return trial is not None and trial.has_reached(effort)

    def has_sound_trial(self, plan: Plan) -> bool:
        """Whether a plan has a trial, but a single block whose runs waited for a CPU."""
        trial = self.find_trial(plan)
        return trial is not None and not trial.is_disturbed_block

    def list_same_steps(self, plan: Plan) -> Sequence[Trial]:
        """Return the search's trials of a plan's steps, on whatever backend."""
        return self._trials_by_steps.get(plan.recipe.steps, ())

    @cached_property
    def _trials_by_steps(self) -> dict[tuple[Step, ...], list[Trial]]:
        by_steps: dict[tuple[Step, ...], list[Trial]] = {}
        for trial in self._trials.values():
            by_steps.setdefault(trial.plan.recipe.steps, []).append(trial)
        return by_steps

    @cached_property
    def _trials(self) -> dict[str, Trial]:
        return {t.plan.spelling: t for t in self.trials if t.part == "search"}


def _describe_arithmetic(plan: Plan) -> tuple[type[Backend], str]:
    return type(plan.backend), getattr(plan.backend, "precision", "")


@dataclass(frozen=True)
class LeftOut:
    """What a policy leaves untried for lack of time.

    Attributes:
        late: How many more time would have tried, at least 1 where that is not known.
        plans: How many plans, as far as they are known; at least those in `untried`.
    """

    notes: tuple[str, ...] = ()
    late: int = 0
    plans: int = 0
    untried: tuple[UntriedPlan, ...] = ()

    @property
    def count(self) -> int:
        """How many plans were left out."""
        return max(self.plans, len(self.untried))


class Policy(Protocol):
    """In which order plans are tried: `search.adaptive`, or what a test or a benchmark brings.

    A policy holds no state: what it knows is the view. It cannot weaken what is accepted or
    claimed: finalists, their fresh pairs and the budget are the search's.
    """

    def next(self, view: View) -> Proposal | SurveyRequest | None:
        """Return the plan to try now, one without a trial; None when nothing is worth the time.

        Or a plan whose regions are to be measured one at a time, once a plan: `View.surveys`
        holds what came of it.
        """

    def explain_untried(self, view: View) -> LeftOut:
        """Say what stays untried, asked when `next` has returned None."""
