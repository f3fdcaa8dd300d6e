"""The loop of a search: a policy proposes; what is accepted and claimed is decided here."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import takewhile

from ortune.core.acceptance import Outcome, winner
from ortune.core.backend import Backend
from ortune.core.errors import OrtuneError
from ortune.core.event import Note, Sink, TimeLeft, Unconfirmed
from ortune.core.step import Recipe, Transform
from ortune.core.study import Contribution, Ending
from ortune.core.trial import BESIDE, Plan, Proposal, Status, Trial
from ortune.core.wording import count
from ortune.measurement.machine import noise
from ortune.measurement.process import WorkerFailed
from ortune.search import conclusion, fixed_shapes
from ortune.search.abandon import against
from ortune.search.compare import finalists, in_turn, leaders, quicker, reaches, settled
from ortune.search.expectation.mixtures import Mixing, longest_s
from ortune.search.experiment import measure
from ortune.search.experiment.context import Context
from ortune.search.experiment.evaluate import Attempts
from ortune.search.experiment.ledger import ended, write_ending
from ortune.search.experiment.surveys import unfinished_s
from ortune.search.mixed_precision.survey import MixtureTried, Survey, SurveyRequest
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

    def left(self) -> float:
        """Return the seconds left of the time budget."""
        return self.seconds - (self.clock() - self.began)

    def all_left(self) -> float:
        """Return the same with what follows the search."""
        return self.left() + self.afterwards


FINALISTS = 3
"""Plans that are re-measured at the end; as many before it, where a target may end the search."""
_SET_UP = 0.25
"""Share of the time budget from which set-up does not count against it."""
_TOLD = 200  # plans that an ending names as not tried, at most


def search(
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
                fix=f"run the same command again; to see it alone: {error.failure.reproduce}",
            ) from None
        except KeyboardInterrupt:
            if not loop.trials:
                raise
            sink(Note("interrupted: what was found so far is kept", warning=True))
            loop.conclude()
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

    def __post_init__(self) -> None:
        # 4 seconds of a search of three minutes, 1 of a short one.
        seconds = min(4.0, max(1.0, self.aim.seconds / 45))
        self.attempts = Attempts(self.context, seconds, self.sink, self.stack)
        self.regions = RegionSearch(self.context, self.attempts)
        self.wanted = self.context.job.wanted
        self.before = noise.snapshot()
        self.judgement = noise.Judgement(False, ())

    def run(self, explore: Callable[[Callable[[str], None]], Space]) -> str:
        """Try, confirm and explain; say how it ended."""
        if not ended(self.context.root):  # killed or interrupted: it has the time that was left
            former = sum(trial.seconds for trial in self.trials) + self.regions.seconds
            if self.aim.target_speedup is None:  # else finals are measured on the way
                self.closing = closing(self.trials)
            self.aim = replace(self.aim, began=self.aim.began - former)
            self.sink(TimeLeft(self.aim.all_left()))
        self.attempts.baseline()
        self._count_set_up()
        space = explore(self.attempts.note)
        finished = self._try(space)
        if finished != "target":
            finished = self._confirm(finished)
        self.conclude()
        if text := conclusion.what_would_be_found(self.trials, self._finals()):
            self.attempts.note(text)
        base, costs_s = self.context.job.baseline, lambda: self._reserve().explained_s
        for one in explained(self.attempts, self._winner(), base, costs_s, self.aim.left):
            self.history.append(one)  # an interrupt leaves those measured so far
        fixed_shapes.tell(self.attempts, space, self._winner(), self.aim.left())
        self.judge_machine()
        return finished

    @property
    def trials(self) -> Sequence[Trial]:
        """All so far, the original first."""
        return self.attempts.ledger.trials

    def _count_set_up(self) -> None:
        """Where reading and scoring the original took long, say so and count from here."""
        again = not ended(self.context.root)
        former = sum(t.seconds for t in self.trials[1:]) + self.regions.seconds if again else 0.0
        taken = self.aim.seconds - self.aim.left() - former
        if taken > _SET_UP * self.aim.seconds:
            self.attempts.note(
                f"reading, and running and scoring the original, took {taken:.0f} s; "
                "--time counts from here"
            )
            self.aim = replace(self.aim, began=self.aim.began + taken)
            self.sink(TimeLeft(self.aim.all_left()))

    def _reserve(self, trials: Sequence[Trial] = ()) -> Reserve:
        parts = {i for part in self.context.parts.values() for i in part.indices}
        return Reserve(trials or self._current(), self.attempts.pair_seconds, len(parts))

    # --- stages -----------------------------------------------------------------------------

    def _try(self, space: Space) -> str:
        """Try what the policy proposes until it has nothing more or the target is reached."""
        if any(self._on_target(trial) for trial in self._current()):
            return "target"
        view = self._view(space)
        self.regions.settle(view)
        while (view.spare > 0 or len(view.trials) <= 1) and (
            proposal := self.policy.next(view)
        ) is not None:
            if isinstance(proposal, SurveyRequest):
                self.regions.survey(proposal, view)
                view = self._view(space)
                continue
            if view.tried(proposal.plan, proposal.effort):
                raise AssertionError(f"{self.policy} proposes {proposal.plan} a second time")
            stop = against(proposal.plan, view.trials, self.wanted, strict=self.aim.strict)
            trial = self.attempts.one(proposal, stop=stop, build_s=view.build_s)
            if self._on_target(trial):
                return "target"
            self._show_first(trial, view)
            view = self._view(space)
            self.regions.settle(view)
        self.left_out = found = self.policy.left_out(view)
        late = found.late or (view.spare <= 0 and self.policy.next(view) is not None)
        if late:
            # Told now only: the verdict counts it.
            left = f"{count(found.late, 'plan')} {Outcome.UNTRIED}" if found.late else ""
            self.sink(Note(f"the time for plans is up{': ' * bool(left)}{left}"))
        for text in found.notes:
            self.attempts.note(text)
        return "time" if late else "done"

    def _show_first(self, trial: Trial, before: View) -> None:
        """Show the first plan that may be faster and keeps the budget; a finalist is sure."""
        first = not leaders(before.trials, self.wanted)
        if first and trial in leaders([self.trials[0], trial], self.wanted):
            self.sink(Unconfirmed(trial))

    def _view(self, space: Space) -> View:
        known = self.context
        trials = [trial for trial in self._current() if trial not in self.closing]
        left = self.aim.left() + sum(trial.seconds for trial in self.closing)
        back = self._reserve(trials).kept_back(
            self._candidates(), FINALISTS, self.aim.seconds, left
        )
        return View(
            *(known.facts, space, trials, left, self.aim.seconds, known.budget),
            kept_back=back,
            by_operator=known.by_operator,
            paid=known.paid,
            wanted=self.wanted,
            surveys=self.regions.known,
            by_region=self.regions.possible,
        )

    def _current(self) -> list[Trial]:
        """Return this job's trials, the original first; where plugins were edited, none of old."""
        plans = (t for t in self.trials if t.stage != BESIDE)
        found = [t for t in plans if t.key == self.attempts.key(t.plan)]
        return sorted(found, key=lambda t: t.stage != "baseline")

    def _confirm(self, finished: str) -> str:
        """Re-measure the best in fresh pairs on held-out data, but not those already beaten.

        What scored as one that then left the budget comes last. Where no finalist keeps the
        budget, the fastest plan that changes no numbers is one too.
        """
        found = self._candidates()
        chosen, higher = found[:FINALISTS], self.context.budget.metric.higher_is_better
        for index, trial in enumerate(chosen, 1):
            reserve, leader = self._reserve(), self._winner()
            needed = reserve.final_s(trial) + reserve.closing_s
            if (index > 1 or leader is not None) and self.aim.left() < needed:
                late = sum(not self._judged(one) for one in chosen[index - 1 :])
                if not late:
                    break
                self.attempts.note(f"time is up, not re-measured: {count(late, 'finalist')}")
                return "time"
            if leader is None or not settled(leader, trial, self.wanted):
                self.attempts.final(trial, reserve.seconds_each(trial, self.aim.left()))
            if index < FINALISTS:
                left = in_turn(found, chosen[:index], self.trials, higher)
                chosen[index:] = left[: FINALISTS - index]
            elif index == FINALISTS and self._winner() is None:
                chosen += [t for t in found if not (t.plan.lossy or self._judged(t))][:1]
        return finished

    def _candidates(self) -> list[Trial]:
        return finalists([t for t in self._current() if not self._idle(t)], self.wanted)

    def _judged(self, trial: Trial) -> bool:
        """Whether a plan was re-measured."""
        return self.attempts.ledger.find(trial.key, "final") is not None

    def _idle(self, trial: Trial) -> bool:
        """Whether a setting gained nothing over the plan around which it was tried."""
        around = self.attempts.ledger.find(trial.neighbour_of, "search")
        gains = around is None or quicker(trial, around) or self.wanted.saves(trial, around)
        return not gains

    # --- judgement --------------------------------------------------------------------------

    def _on_target(self, trial: Trial) -> bool:
        """Re-measure a plan that seems to reach the target; true when it is proved."""
        wanted = self.aim.target_speedup
        if wanted is None or trial not in leaders([self.trials[0], trial], self.wanted):
            return False
        if trial.ratio is None or trial.ratio.value > 1 / wanted:
            return False
        full = sum(t.part == "final" for t in self.trials) >= FINALISTS
        if full and not self._judged(trial):
            return False
        return reaches(self.attempts.final(trial), wanted)

    def _winner(self) -> Trial | None:
        finals = (t for t in self.trials if t.part == "final")
        original = self.trials[0]
        return winner(finals, original, strict=self.aim.strict, wanted=self.wanted)

    def conclude(self) -> None:
        """Judge every finalist again: those measured after it told how far pairs differ here."""
        for trial in self._finals():
            learnt = measure.learnt(self.trials, but=trial.key)
            found = measure.concluded(self.context, trial, learnt)
            if found != trial:
                self.attempts.ledger.append(found)

    def _finals(self) -> list[Trial]:
        return [trial for trial in self._current() if trial.part == "final"]

    def judge_machine(self) -> None:
        """Say how far the machine could be trusted since the search began."""
        record = noise.between(self.before, noise.snapshot())
        found, self.judgement = conclusion.machine(self.trials, self._finals(), record)
        self.readings |= found


def explained(
    attempts: Attempts,
    best: Trial | None,
    base: Backend,
    takes: Callable[[], float],
    left: Callable[[], float],
) -> Iterator[Contribution]:
    """Measure what each kind of change brought on the way to the winner, while there is time.

    Args:
        base: The original's backend.
        takes: Seconds that one needs, with what follows it, by now.
    """
    yield Contribution("baseline", attempts.ledger.trials[0].key)
    if best is None:
        return
    for name, plan in parts(best.plan, base):
        key = attempts.key(plan)
        if key == best.key:
            continue
        known = attempts.ledger.find(key, "search")
        timed = known is not None and known.taken("search") and not known.stopped
        if not timed and left() < takes():
            attempts.note(f"time is up: what {name} alone brings was not measured")
            continue
        proposal = Proposal(plan, "history", f"what {name} alone brings")
        trial = attempts.one(proposal, always_score=True)
        if trial.ratio is not None:
            yield Contribution(name, trial.key)
    yield Contribution(last(best.plan, base), best.key)


def parts(best: Plan, base: Backend) -> list[tuple[str, Plan]]:
    """Return name and plan of the changes that led to the best one, on the original's backend."""
    exact = tuple(step for step in best.recipe.steps if isinstance(step, Transform))
    found = [("graph", Plan(Recipe("clean", exact), base))] if exact else []
    if best.recipe.lossy:
        found.append(("quantization", Plan(best.recipe, base)))
    return found


def last(best: Plan, base: Backend) -> str:
    """Return the name of the last change, that to the best plan itself."""
    if best.backend != base:
        return "runtime"
    return "quantization" if best.recipe.lossy else "graph"


class RegionSearch:
    """What a search does by region; what it knows is in the run's journal."""

    def __init__(self, context: Context, attempts: Attempts) -> None:
        self._context, self._attempts = context, attempts

    @property
    def possible(self) -> bool:
        """Whether surveys are made: of one model, and where they are not switched off."""
        return self._context.by_region and len(self._context.models) <= 1

    @property
    def known(self) -> Sequence[Survey]:
        """All surveys so far, in order; none of plugins that were edited since."""
        key = self._attempts.key
        return [one for one in self._attempts.surveys.known if one.key == key(one.plan)]

    @property
    def seconds(self) -> float:
        """What they took, and what went into one that was killed."""
        every = self._attempts.surveys.known
        lost = unfinished_s(self._context.root, {one.key for one in every})
        return sum(survey.seconds for survey in self.known) + lost

    def survey(self, request: SurveyRequest, view: View) -> None:
        """Make a survey within the time that is not the finalists'.

        Raises:
            AssertionError: The policy asks for one a second time.
        """
        if any(one.plan.spelled == request.plan.spelled for one in self.known):
            raise AssertionError(f"{request.plan} is to be surveyed a second time")
        self._attempts.survey(request, min(request.seconds, longest_s(view)))

    def settle(self, view: View) -> None:
        """Write down what came of mixtures, once each, those of a run that was killed too."""
        written = {one.key for one in self._attempts.surveys.mixtures}
        for survey in view.surveys:
            known = Mixing.of(survey, view)
            for trial in known.mixtures if known is not None else ():
                if trial.key not in written:
                    assert known is not None
                    expected = known.expected(trial)
                    kept, why = _kept(trial, view)
                    self._attempts.surveys.add(
                        MixtureTried(
                            survey=known.survey.key,
                            key=trial.key,
                            plan=trial.plan,
                            left=expected.left,
                            regions=len(known.survey.regions),
                            expected_ratio=expected.ratio,
                            expected_lost=expected.lost,
                            ratio=trial.ratio,
                            lost=known.lost(trial),
                            kept=kept,
                            why=why,
                        )
                    )


def _kept(trial: Trial, view: View) -> tuple[bool, str]:
    """Say whether a mixture is the best so far, and why it is or is not."""
    if trial.status is Status.FAILS:
        return False, "it fails the budget"
    if trial.ratio is None or trial.status not in (Status.OK, Status.LEVEL, Status.SCREENED):
        return False, trial.why or str(trial.status)
    best = next(iter(leaders(view.trials, view.wanted)), None)
    if best is None or best.key == trial.key:
        return best is not None, "the best so far" if best else "it is no faster than the original"
    return False, f"{best.plan} is preferred"


def closing(trials: Sequence[Trial]) -> list[Trial]:
    """Return the finals and the history at the end of a ledger: a search that had come so far.

    Where it goes on, what these taught must not make it search anew.
    """
    ends = takewhile(lambda one: one.part == "final" or one.stage == "history", reversed(trials))
    return list(ends)
