"""The loop of a search: a policy proposes; what is accepted and claimed is decided here."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import takewhile

from ortune.core.acceptance import Outcome, select_winner
from ortune.core.backend import Backend
from ortune.core.errors import OrtuneError
from ortune.core.event import Event, Note, Sink, TimeLeft, TrialDone, Unconfirmed
from ortune.core.judgement import judge_by_step
from ortune.core.near_miss import find_near_miss
from ortune.core.plan_label import label_plan
from ortune.core.step import Recipe, Transform
from ortune.core.study import Contribution, Ending
from ortune.core.trial import BESIDE, Interval, Plan, Proposal, Status, Trial, count_spent_s
from ortune.core.wording import format_count, shorten_groups
from ortune.measurement.devices import find_lease
from ortune.measurement.machine import noise
from ortune.measurement.process import WorkerFailed
from ortune.search import closing_notes, fixed_shapes
from ortune.search.abandon import make_stopping_rule
from ortune.search.adaptive import expect_outcomes, list_likely_recipes
from ortune.search.compare import (
    has_proved_speedup,
    is_acceptable,
    is_beaten,
    is_estimated_faster,
    select_finalists,
    select_leaders,
)
from ortune.search.expectation.mixtures import MixtureSearch, longest_s
from ortune.search.experiment import measure
from ortune.search.experiment.at_once import TimingsAtOnce
from ortune.search.experiment.context import Context
from ortune.search.experiment.evaluate import Attempts
from ortune.search.experiment.ledger import is_finished, write_ending
from ortune.search.experiment.surveys import sum_unfinished_s
from ortune.search.mixed_precision.survey import MixtureOutcome, Survey, SurveyRequest
from ortune.search.policy import LeftOut, Policy, View
from ortune.search.recipe.space import Space
from ortune.search.reserve import Reserve


@dataclass(frozen=True)
class Aim:
    """When the search may stop, and what it accepts.

    Attributes:
        began: When the budget began to run, by `clock`.
        target_speedup: Stop at the first proved plan whose interval lies above it.
        afterwards: Seconds of the user's time that are kept for what follows the search.
    """

    seconds: float
    began: float
    target_speedup: float | None = None
    strict: bool = False
    clock: Callable[[], float] = time.monotonic
    afterwards: float = 0.0

    def remaining_s(self) -> float:
        """Return the seconds left of the time budget."""
        return self.seconds - (self.clock() - self.began)

    def total_remaining_s(self) -> float:
        """Return the same with what follows the search."""
        return self.remaining_s() + self.afterwards


FINALISTS = 3
"""Plans that are re-measured at the end; as many before it, where a target may end the search."""
_SET_UP = 0.25  # share of the time budget from which set-up does not count against it
_NARROW = 1.06
"""A finalist's upper end over its lower, below which more pairs tell nothing that is wanted."""
_OVERRUN = 0.1
"""Share of the time budget by which a finalist that is not told from the original may overrun."""
_TOLD = 200  # plans that an ending names as not tried, at most


def run_search(
    context: Context,
    explore: Callable[[Callable[[str], None]], Space],
    policy: Policy,
    aim: Aim,
    sink: Sink,
) -> None:
    """Search; everything learnt is in the run's ledger, the conclusion in its ending.

    Args:
        explore: Finds out which plans there are; it is given what tells the user.
    """
    with ExitStack() as stack:
        loop = _Loop(context, policy, aim, sink, stack)
        finished = "interrupted"
        try:
            finished = loop.run(explore)
        except WorkerFailed as error:
            raise OrtuneError(
                f"the original stopped running: {error.failure.reason}",
                fix=f"run the same command again; to run it alone: {error.failure.reproduce}",
            ) from None
        except KeyboardInterrupt:
            if not loop.trials:
                raise
            sink(Note("interrupted: what was found so far is kept", warning=True))
            loop.rejudge_finals()
            loop.judge_machine()
        ending = Ending(
            tuple(loop.history),
            finished,
            loop.readings,
            tuple(loop.attempts.notes),
            aim.strict,
            tuple(map(str, loop.judgement.advice)),
            loop.judgement.too_noisy,
            loop.left_out.count,
            loop.left_out.untried[:_TOLD],
        )
        write_ending(context.root, ending)


@dataclass
class _Loop:
    """The state of a running search; the policy's is the ledger alone."""

    context: Context
    policy: Policy
    aim: Aim
    sink: Sink
    stack: ExitStack
    history: list[Contribution] = field(default_factory=list)
    readings: dict[str, str] = field(default_factory=dict)
    left_out: LeftOut = field(default_factory=LeftOut)
    closing: Sequence[Trial] = ()
    step: int = 0  # of the budget: the one that plans are tried and judged for now

    def __post_init__(self) -> None:
        # 4 seconds of a search of three minutes, 1 of a short one.
        seconds = min(4.0, max(1.0, self.aim.seconds / 45))
        self.attempts = Attempts(self.context, seconds, self._show_event, self.stack)
        self.regions = RegionSearch(self.context, self.attempts)
        self.goal = self.context.job.wanted
        self.before = noise.take_snapshot()
        self.judgement = noise.Judgement(False, ())

    def run(self, explore: Callable[[Callable[[str], None]], Space]) -> str:
        """Try, confirm and explain; say how it ended."""
        again = not is_finished(self.context.root)
        if again:  # killed or interrupted: it has the time that was left
            former = count_spent_s(self.trials) + self.regions.seconds
            if self.aim.target_speedup is None:  # else finals are measured on the way
                self.closing = list_closing_trials(self.trials)
            self.aim = replace(self.aim, began=self.aim.began - former)
            self.sink(TimeLeft(self.aim.total_remaining_s(), may_restart=True))
        self.attempts.measure_baseline()
        # Where reading and scoring the original took long, the time counts from here.
        former = count_spent_s(self.trials[1:]) + self.regions.seconds if again else 0.0
        setup_s = self.aim.seconds - self.aim.remaining_s() - former
        if setup_s > _SET_UP * self.aim.seconds:
            self.attempts.add_note(
                f"reading the data and scoring the original took {setup_s:.0f} s; "
                "--time counts from here"
            )
            self.aim = replace(self.aim, began=self.aim.began + setup_s)
        self.sink(TimeLeft(self.aim.total_remaining_s()))
        space = explore(self.attempts.add_note)
        finished = self._search_steps(space)
        if self.context.ahead is not None:
            builds = format_count(self.context.ahead.arrived, "build")
            self.attempts.add_note(f"{builds} came from other nodes of the cluster")
        self.rejudge_finals()
        for text in closing_notes.list_notes(
            self.trials, self._list_trials(), self._list_finals()
        ):
            self.attempts.add_note(text)
        base, costs_s = self.context.job.baseline, lambda: self._make_reserve().history_row_s
        for contribution in measure_contributions(
            self.attempts, self._find_winner(), base, costs_s, self.aim.remaining_s
        ):
            self.history.append(contribution)  # an interrupt leaves those measured so far
        fixed_shapes.note_fixed_shapes(
            self.attempts, space, self._find_winner(), self.aim.remaining_s()
        )
        self.judge_machine()
        return finished

    @property
    def trials(self) -> Sequence[Trial]:
        """All so far, the original first."""
        return self.attempts.ledger.trials

    def _make_reserve(self, trials: Sequence[Trial] = ()) -> Reserve:
        seconds = self.attempts.pair_seconds
        return Reserve(trials or self._list_trials(), seconds, self._count_samples())

    # --- stages -----------------------------------------------------------------------------

    def _search_steps(self, space: Space) -> str:
        """Try and confirm plans for each step of the budget; say how it ended.

        The strictest comes first, so that no trial is lost to another step: it is stopped by a
        plan that keeps the looser ones too. Each step has an equal part of the time, and what
        those before it have left.
        """
        steps = self.context.budget.steps
        ends: list[str] = []
        for place, budget in enumerate(steps):
            self.step = place
            if len(steps) > 1:
                shown = shorten_groups(str(budget))
                self.sink(Note(f"step {place + 1} of {len(steps)}: {shown}"))
            ends.append(self._try_plans(space))
            if ends[-1] == "target":
                break
            ends[-1] = self._confirm_finalists(ends[-1])
        # The report finds it too.
        best, baseline = self._find_winner() or self.trials[0], self.trials[0].plan
        missed = find_near_miss(self._list_trials(), best, self.context.budget, baseline)
        if missed is not None:
            self.sink(Note(f"{missed.text}; --budget '{missed.looser}' would allow it"))
        return next((end for end in ("target", "time") if end in ends), "done")

    def _try_plans(self, space: Space) -> str:
        """Try what the policy proposes until it has nothing more or the target is reached."""
        if any(self._is_on_target(trial) for trial in self._list_trials()):
            return "target"
        with TimingsAtOnce(self.attempts) as timings:
            view = self._make_view(space)
            self.regions.record_mixtures(view)
            while (trials := self._try_next(view, timings)) is not None:
                while trials and timings.pending and self.aim.target_speedup is not None:
                    trials += timings.collect()  # a final may follow, and is timed alone
                if any(map(self._is_on_target, trials)):
                    return "target"
                for trial in self._judge(trials):
                    self._show_first(trial, view)
                view = self._make_view(space)
                if trials:
                    self.regions.record_mixtures(view)
        return self._explain_end(view)

    def _try_next(self, view: View, timings: TimingsAtOnce) -> list[Trial] | None:
        """Try what the policy proposes now; return what has come in, None where all is done."""
        if timings.full:
            return timings.collect()
        expected = expect_outcomes(view, timings.pending)
        in_time = view.spare_for_families > 0 or len(view.trials) <= 1
        proposal = self.policy.next(expected) if in_time else None
        timed = [trial.plan for _, trial in timings.pending]
        if timed and (not isinstance(proposal, Proposal) or proposal.plan in timed):
            return timings.collect()
        if proposal is None:
            return None
        if isinstance(proposal, SurveyRequest):
            self.regions.measure_regions(proposal, view)
            return []
        if view.has_trial(proposal.plan, proposal.effort):
            raise AssertionError(f"{self.policy} proposes {proposal.plan} a second time")
        stop = make_stopping_rule(proposal.plan, view, strict=self.aim.strict)
        if self.context.ahead is not None:
            self.context.ahead.begin(list_likely_recipes(expected, proposal))
        readable = proposal.score and expected.may_score(proposal.plan)
        return timings.try_plan(replace(proposal, score=readable), stop, view.build_s)

    def _explain_end(self, view: View) -> str:
        """Say what stays untried, and how the search for plans ended."""
        omissions = self.policy.explain_untried(view)
        if self.context.job.emulated:  # what is expected of them rests on emulated times
            omissions = replace(omissions, notes=(), plans=omissions.count, untried=())
        self.left_out = omissions
        cut = view.spare_for_families <= 0 and self.policy.next(view) is not None
        late = omissions.late or cut
        if late:
            # Told now only: the verdict counts it.
            late_plans = f": {format_count(omissions.late, 'plan')} {Outcome.UNTRIED}"
            self.sink(Note(f"no time for more plans{late_plans * bool(omissions.late)}"))
        for text in omissions.notes:
            if text not in self.attempts.notes:  # an earlier step of the budget left it out too
                self.attempts.add_note(text)
        return "time" if late else "done"

    def _show_first(self, trial: Trial, before: View) -> None:
        """Show the first plan that may be faster and keeps the budget; a finalist is sure."""
        pair = [self.trials[0], trial]
        first = not trial.waited and not select_leaders(before.trials, self.goal)
        if first and trial in select_leaders(pair, self.goal):
            self.sink(Unconfirmed(trial))

    def _make_view(self, space: Space) -> View:
        context = self.context
        closing = {(trial.key, trial.part) for trial in self.closing}
        trials = [t for t in self._list_trials() if (t.key, t.part) not in closing]
        remaining_s = self._count_remaining_s() + sum(trial.seconds for trial in self.closing)
        reserve, finalists = self._make_reserve(trials), self._list_finalists()
        back, alone = (
            reserve.compute_reserve_s(finalists, count, self.aim.seconds, remaining_s)
            for count in (FINALISTS, 1)
        )
        return View(
            *(context.facts, space, trials, remaining_s, self.aim.seconds),
            budget=context.budget.steps[self.step],
            kept_back=back,
            for_rivals=back - alone,
            by_operator=context.by_operator,
            goal=self.goal,
            surveys=self.regions.surveys,
            by_region=self.regions.possible,
            former=self.attempts.ledger.former,
            samples=self._count_samples(),
            looked_at=self.attempts.ledger.count_looked_at(),
        )

    def _list_trials(self) -> list[Trial]:
        """Return this job's trials as the current step of the budget judges them.

        The original comes first; where plugins were edited, there are none of old.
        """
        plans = (t for t in self.trials if t.stage != BESIDE)
        current = [t for t in plans if t.key == self.attempts.trial_key(t.plan)]
        return sorted(self._judge(current), key=lambda t: t.stage != "baseline")

    def _judge(self, trials: Iterable[Trial]) -> list[Trial]:
        """Return trials as the current step of the budget judges them."""
        measure = self.context.job.workload.measure
        return [judge_by_step(t, self.context.budget, self.step, measure) for t in trials]

    def _show_event(self, event: Event) -> None:
        """Pass an event on; a trial as the current step of the budget judges it."""
        if isinstance(event, TrialDone):
            event = replace(event, trial=self._judge([event.trial])[0])
        self.sink(event)

    def _count_remaining_s(self) -> float:
        """Return the seconds that are left for the current step of the budget."""
        steps = len(self.context.budget.steps)
        return self.aim.remaining_s() - self.aim.seconds * (steps - 1 - self.step) / steps

    def _confirm_finalists(self, finished: str) -> str:
        """Re-measure the best in fresh pairs on held-out data, but not those already beaten.

        Held-out samples change no order. Where none is accepted, the fastest safe one comes last.
        """
        candidates = self._list_finalists()
        chosen = candidates[:FINALISTS]
        for index, trial in enumerate(chosen, 1):
            if index > FINALISTS and self._find_winner() is not None:
                break
            reserve, leader = self._make_reserve(), self._find_winner()
            needed = reserve.final_s(trial, 0.0) + reserve.closing_s
            if (index > 1 or leader is not None) and self._count_remaining_s() < needed:
                late = sum(not self._is_confirmed(finalist) for finalist in chosen[index - 1 :])
                if not late:
                    break
                self.attempts.add_note(
                    f"out of time: {format_count(late, 'finalist')} not re-measured"
                )
                return "time"
            if leader is None or not is_beaten(leader, trial, self.goal):
                self.attempts.measure_final(
                    trial,
                    reserve.seconds_each(trial, self._count_remaining_s()),
                    self._make_final_rule(trial, chosen[index:], candidates, reserve),
                )
            if index == FINALISTS and self._find_winner() is None:
                chosen += self._list_safe(candidates[FINALISTS:])
        return finished

    def _make_final_rule(
        self,
        trial: Trial,
        followers: Sequence[Trial],
        candidates: Sequence[Trial],
        reserve: Reserve,
    ) -> Callable[[Interval, bool], bool]:
        """Return what says whether a finalist's interval is all that is wanted of it.

        It is told from the original and from those that follow, and is narrow or leaves them too
        little time. Where its accuracy is not accepted, those that may win in its place come
        first. Where the time is over nothing is wanted any more, but of the first that may win an
        interval: it may overrun by what a final takes, as without one all of that is lost.
        """
        rivals = [rival for rival in followers if not self._is_confirmed(rival)]
        needed = sum(reserve.final_s(rival, 0.0) for rival in rivals) + reserve.closing_s
        safe = self._list_safe([other for other in candidates if other is not trial])
        heirs = rivals + [heir for heir in safe if heir not in rivals]
        inherited_s = sum(map(reserve.final_s, heirs)) + reserve.closing_s
        overrun_s = _OVERRUN * self.aim.seconds
        if self._find_winner() is None:
            overrun_s = max(overrun_s, min(reserve.final_s(trial), self.aim.seconds))

        def is_enough(ratio: Interval, accepted: bool) -> bool:
            remaining_s = self._count_remaining_s()
            if not accepted and remaining_s < inherited_s:
                return True
            if remaining_s < reserve.closing_s and (ratio.clear or remaining_s < -overrun_s):
                return True
            # Two are apart where the other's value lies outside: it needs no bounded interval.
            apart = ratio.clear and not any(
                rival.ratio is None or ratio.low <= rival.ratio.value <= ratio.high
                for rival in rivals
            )
            return apart and (ratio.high < _NARROW * ratio.low or remaining_s < needed)

        return is_enough

    def _list_safe(self, candidates: Sequence[Trial]) -> list[Trial]:
        """Return the fastest that may be accepted and the fastest that changes no numbers."""
        remaining = [trial for trial in candidates if not self._is_confirmed(trial)]
        close = self._find_acceptable(remaining)
        exact = next((trial for trial in remaining if not trial.plan.lossy), None)
        return [trial for trial in (close, exact if exact is not close else None) if trial]

    def _list_finalists(self) -> list[Trial]:
        """Return what may be re-measured: the fastest that may be accepted, then by speed."""
        fit = select_finalists([t for t in self._list_trials() if not self._is_idle(t)], self.goal)
        first = self._find_acceptable(fit)
        return sorted(fit, key=lambda trial: trial is not first)

    def _find_acceptable(self, trials: Sequence[Trial]) -> Trial | None:
        samples, plans = self._count_samples(), self.attempts.ledger.count_looked_at()
        return next((trial for trial in trials if is_acceptable(trial, samples, plans)), None)

    def _count_samples(self) -> int:
        return len({i for part in self.context.parts.values() for i in part.indices})

    def _is_confirmed(self, trial: Trial) -> bool:
        """Whether a plan was re-measured."""
        return self.attempts.ledger.find(trial.key, "final") is not None

    def _is_idle(self, trial: Trial) -> bool:
        """Whether a setting gained nothing over the plan around which it was tried."""
        around = self.attempts.ledger.find(trial.neighbour_of, "search")
        if around is None or is_estimated_faster(trial, around):
            return False
        return not self.goal.needs_less(trial, around)

    # --- judgement --------------------------------------------------------------------------

    def _is_on_target(self, trial: Trial) -> bool:
        """Re-measure a plan that seems to reach the target; true when it is proved."""
        speedup = self.aim.target_speedup
        if speedup is None or trial not in select_leaders([self.trials[0], trial], self.goal):
            return False
        if trial.ratio is None or trial.ratio.value > 1 / speedup:
            return False
        full = sum(t.part == "final" for t in self.trials) >= FINALISTS
        if full and not self._is_confirmed(trial):
            return False
        return has_proved_speedup(self.attempts.measure_final(trial), speedup)

    def _find_winner(self) -> Trial | None:
        finals = self._judge(t for t in self.trials if t.part == "final")
        original = self.trials[0]
        return select_winner(finals, original, strict=self.aim.strict, goal=self.goal)

    def rejudge_finals(self) -> None:
        """Judge every finalist again: others told since how far pairs differ here, and count."""
        self.step = 0  # trials are kept as the strictest step judges them
        plans = self.attempts.ledger.count_looked_at()
        for trial in self._list_finals():
            learnt = measure.pool_variance(self.trials, but=trial.key)
            judged = measure.judge_trial(self.context, trial, learnt, plans)
            if judged != trial:
                self.attempts.ledger.append(judged)

    def _list_finals(self) -> list[Trial]:
        return [trial for trial in self._list_trials() if trial.part == "final"]

    def judge_machine(self) -> None:
        """Say how far the machine could be trusted since the search began."""
        here = find_lease(self.context.job.environment) is None
        after = noise.take_snapshot() if here else self.before
        record = noise.compare_snapshots(self.before, after)
        readings, self.judgement = closing_notes.assess_machine(
            self.trials, self._list_finals(), record
        )
        self.readings |= readings


def measure_contributions(
    attempts: Attempts,
    best: Trial | None,
    base: Backend,
    takes: Callable[[], float],
    remaining_s: Callable[[], float],
) -> Iterator[Contribution]:
    """Measure what each kind of change brought on the way to the winner, while there is time.

    Args:
        base: The original's backend.
        takes: Seconds that one needs, with what follows it, by now.
    """
    yield Contribution("baseline", attempts.ledger.trials[0].key)
    if best is None:
        return
    for name, plan in list_changes(best.plan, base):
        key = attempts.trial_key(plan)
        if key == best.key:
            continue
        recorded = attempts.ledger.find(key, "search")
        timed = recorded is not None and recorded.has_reached("search") and not recorded.stopped
        if not timed and remaining_s() < takes():
            attempts.add_note(f"out of time: the speed-up by {name} alone was not measured")
            continue
        proposal = Proposal(plan, "history", f"the speed-up by {name} alone")
        trial = attempts.try_plan(proposal, always_score=True)
        if trial.ratio is not None:
            yield Contribution(name, trial.key)
    lossy = "quantization" if best.plan.recipe.lossy else "graph"
    yield Contribution("runtime" if best.plan.backend != base else lossy, best.key)


def list_changes(best: Plan, base: Backend) -> list[tuple[str, Plan]]:
    """Return name and plan of the changes that led to the best one, on the original's backend."""
    exact = tuple(step for step in best.recipe.steps if isinstance(step, Transform))
    changes = [("graph", Plan(Recipe("clean", exact), base))] if exact else []
    if best.recipe.lossy:
        changes.append(("quantization", Plan(best.recipe, base)))
    return changes


class RegionSearch:
    """What a search does by region; what it knows is in the run's journal."""

    def __init__(self, context: Context, attempts: Attempts) -> None:
        self._context, self._attempts = context, attempts

    @property
    def possible(self) -> bool:
        """Whether surveys are made: of one model, and where they are not switched off."""
        return self._context.by_region and len(self._context.models) <= 1

    @property
    def surveys(self) -> Sequence[Survey]:
        """All surveys so far, in order; none of plugins that were edited since."""
        key, surveys = self._attempts.trial_key, self._attempts.journal.surveys
        return [survey for survey in surveys if survey.key == key(survey.plan)]

    @property
    def seconds(self) -> float:
        """What they took, and what went into one that was killed."""
        surveys = self._attempts.journal.surveys
        lost = sum_unfinished_s(self._context.root, {entry.key for entry in surveys})
        return sum(survey.seconds for survey in self.surveys) + lost

    def measure_regions(self, request: SurveyRequest, view: View) -> None:
        """Make a survey within the time that is not the finalists'."""
        if any(survey.plan.spelling == request.plan.spelling for survey in self.surveys):
            raise AssertionError(f"{request.plan} is to be surveyed a second time")
        self._attempts.survey_regions(request, min(request.seconds, longest_s(view)))

    def record_mixtures(self, view: View) -> None:
        """Write down what came of mixtures, once each, those of a run that was killed too."""
        written = {record.key for record in self._attempts.journal.mixtures}
        for survey in view.surveys:
            mixing = MixtureSearch.from_survey(survey, view)
            for trial in mixing.mixtures if mixing is not None else ():
                if trial.key not in written:
                    assert mixing is not None
                    expected = mixing.replay_expectation(trial)
                    kept, why = _judge_mixture(trial, view)
                    self._attempts.journal.add(
                        MixtureOutcome(
                            survey=mixing.survey.key,
                            key=trial.key,
                            plan=trial.plan,
                            left=expected.float_regions,
                            regions=len(mixing.survey.regions),
                            expected_ratio=expected.ratio,
                            expected_lost=expected.budget_utilization,
                            ratio=trial.ratio,
                            lost=mixing.budget_utilization(trial),
                            kept=kept,
                            why=why,
                        )
                    )


def _judge_mixture(trial: Trial, view: View) -> tuple[bool, str]:
    """Say whether a mixture is the best so far, and why it is or is not."""
    if trial.status is Status.FAILS:
        return False, "outside the accuracy budget"
    if trial.ratio is None or trial.status not in (Status.OK, Status.LEVEL, Status.SCREENED):
        return False, trial.why or str(trial.status)
    best = next(iter(select_leaders(view.trials, view.goal)), None)
    if best is None or best.key == trial.key:
        return best is not None, "the best so far" if best else "no faster than the original"
    return False, f"{label_plan(best.plan, view.trials[0].plan)} is better"


def list_closing_trials(trials: Sequence[Trial]) -> list[Trial]:
    """Return the finals and the history at the end of a ledger: a search that had come so far.

    Where it goes on, what these taught must not make it search anew.
    """
    return list(takewhile(lambda t: t.part == "final" or t.stage == "history", reversed(trials)))
