"""The loop of a search: a policy proposes; what is accepted and claimed is decided here."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from statistics import fmean

from ortune.core.acceptance import Outcome, outcome, winner
from ortune.core.errors import OrtuneError
from ortune.core.event import Note, Sink
from ortune.core.step import Recipe, Transform
from ortune.core.study import Contribution, Ending
from ortune.core.trial import Plan, Proposal, Trial
from ortune.core.wording import count
from ortune.experiment import measure
from ortune.experiment.context import Context
from ortune.experiment.evaluate import Attempts
from ortune.experiment.ledger import write_ending
from ortune.measurement.machine import noise
from ortune.measurement.process import WorkerFailed
from ortune.measurement.timing import stats
from ortune.recipe.space import Space
from ortune.search.compare import apart, faster, quicker, reaches
from ortune.search.policy import Policy, View

FINALISTS = 3
"""Plans that are re-measured at the end; as many before it, where a target may end the search."""


LONGEST_S = 90
"""Seconds of a finalist at most that are worth asking for."""


@dataclass(frozen=True)
class Aim:
    """When the search may stop, and what it accepts.

    Attributes:
        seconds: Anytime budget.
        began: When the budget began to run, by `clock`.
        target_speedup: Stop at the first proved plan whose interval lies above it.
        strict: Accept only proved accuracy.
        clock: Tells the seconds; a test brings its own.
    """

    seconds: float
    began: float
    target_speedup: float | None = None
    strict: bool = False
    clock: Callable[[], float] = time.monotonic

    def left(self) -> float:
        """Return the seconds left of the time budget."""
        return self.seconds - (self.clock() - self.began)


def search(
    context: Context,
    explore: Callable[[Callable[[str], None]], Space],
    policy: Policy,
    aim: Aim,
    sink: Sink,
) -> None:
    """Search; everything learnt is in the run's ledger, the conclusion in its ending.

    Args:
        context: What is fixed.
        explore: Finds out which plans there are; it is given what tells the user.
        policy: Proposes them.
        aim: When to stop.
        sink: Receives progress events.
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
            loop.untried,
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
    untried: int = 0

    def __post_init__(self) -> None:
        # 4 seconds of a search of three minutes, 1 of a short one.
        seconds = min(4.0, max(1.0, self.aim.seconds / 45))
        self.attempts = Attempts(self.context, seconds, self.sink, self.stack)
        self.before = noise.snapshot()
        self.judgement = noise.Judgement(False, ())

    def run(self, explore: Callable[[Callable[[str], None]], Space]) -> str:
        """Try, confirm and explain; say how it ended."""
        self.attempts.baseline()
        finished = self._try(explore(self.attempts.note))
        if finished != "target":
            finished = self._confirm(finished)
        self.conclude()
        self._say_what_would_be_found()
        self._explain()
        self.judge_machine()
        return finished

    @property
    def trials(self) -> Sequence[Trial]:
        """All so far, the original first."""
        return self.attempts.ledger.trials

    # --- stages -----------------------------------------------------------------------------

    def _try(self, space: Space) -> str:
        """Try what the policy proposes until it has nothing more or the target is reached."""
        for trial in self._current():
            if self._on_target(trial):
                return "target"
        while (proposal := self.policy.next(view := self._view(space))) is not None:
            if view.tried(proposal.plan):
                raise AssertionError(f"{self.policy} proposes {proposal.plan} a second time")
            if self._on_target(self.attempts.one(proposal)):
                return "target"
        left_out = self.policy.left_out(view)
        self.untried = left_out.plans
        if left_out.late:
            # Told now only: the verdict counts it.
            left = f"{count(left_out.plans, 'plan')} {Outcome.UNTRIED}" if left_out.plans else ""
            self.sink(Note(f"time is up{': ' * bool(left)}{left}"))
        for text in left_out.notes:
            self.attempts.note(text)
        return "time" if left_out.late else "done"

    def _view(self, space: Space) -> View:
        return View(self.context.facts, space, self._current(), self.aim.left(), self.aim.seconds)

    def _current(self) -> list[Trial]:
        """Return this job's trials, the original first; where plugins were edited, none of old."""
        found = [t for t in self.trials if t.key == self.attempts.key(t.plan)]
        return sorted(found, key=lambda t: t.stage != "baseline")

    def _confirm(self, finished: str) -> str:
        """Re-measure the best in fresh pairs on held-out data, but not those already beaten."""
        chosen = [t for t in faster(self._current()) if not self._idle(t)][:FINALISTS]
        for index, trial in enumerate(chosen, 1):
            leader = self._winner()
            if leader is not None and self.aim.left() <= 0:
                left = sum(not self._judged(one) for one in chosen[index - 1 :])
                if not left:
                    break
                self.attempts.note(f"time is up, not re-measured: {count(left, 'finalist')}")
                return "time"
            if leader is None or not apart(leader, trial):
                self.attempts.final(trial, index, len(chosen))
        return finished

    def _judged(self, trial: Trial) -> bool:
        """Whether a plan was re-measured."""
        return self.attempts.ledger.find(trial.key, "final") is not None

    def _idle(self, trial: Trial) -> bool:
        """Whether a setting gained nothing over the plan around which it was tried."""
        around = self.attempts.ledger.find(trial.neighbour_of, "search")
        return around is not None and not quicker(trial, around)

    def _explain(self) -> None:
        """Measure what each kind of change brought on the way to the winner."""
        best = self._winner()
        first = self.trials[0]
        self.history.append(Contribution("baseline", first.key))
        if best is None:
            return
        base = self.context.job.baseline
        exact = tuple(s for s in best.plan.recipe.steps if isinstance(s, Transform))
        steps = [("graph", Plan(Recipe("clean", exact), base))] if exact else []
        if best.plan.recipe.lossy:
            steps.append(("quantization", Plan(best.plan.recipe, base)))
        for name, plan in steps:
            if self.attempts.key(plan) == best.key:
                continue
            proposal = Proposal(plan, "history", f"what {name} alone brings")
            trial = self.attempts.one(proposal, always_score=True)
            if trial.ratio is not None:
                self.history.append(Contribution(name, trial.key))
        last = "quantization" if best.plan.backend == base else "runtime"
        if not best.plan.recipe.lossy and best.plan.backend == base:
            last = "graph"
        self.history.append(Contribution(last, best.key))

    # --- judgement --------------------------------------------------------------------------

    def _on_target(self, trial: Trial) -> bool:
        """Re-measure a plan that seems to reach the target; true when it is proved."""
        wanted = self.aim.target_speedup
        if wanted is None or trial not in faster([self.trials[0], trial]):
            return False
        if trial.ratio is None or trial.ratio.value > 1 / wanted:
            return False
        full = sum(t.part == "final" for t in self.trials) >= FINALISTS
        if full and not self._judged(trial):
            return False
        return reaches(self.attempts.final(trial, 1, 1), wanted)

    def _winner(self) -> Trial | None:
        finals = (t for t in self.trials if t.part == "final")
        return winner(finals, strict=self.aim.strict)

    def conclude(self) -> None:
        """Judge every finalist again: those measured after it told how far pairs differ here."""
        for trial in self._finals():
            learnt = measure.learnt(self.trials, but=trial.key)
            found = measure.concluded(self.context, trial, learnt)
            if found != trial:
                self.attempts.ledger.append(found)

    def _say_what_would_be_found(self) -> None:
        """Where a finalist is not told from the original, say how long would tell 3 %."""
        finals = [t for t in self._finals() if t.measurement is not None]
        if not any(outcome(t) is Outcome.LEVEL for t in finals):
            return
        each = fmean(t.seconds for t in finals) / stats.PAIRS
        learnt = measure.learnt(self.trials)
        needed = stats.pairs_for(learnt)
        if needed is not None and needed <= stats.PAIRS:
            return
        had = f"{count(stats.PAIRS, 'pair')} of fresh processes, {stats.PAIRS * each:.0f} s"
        if needed is not None and needed * each <= LONGEST_S:
            text = f"to find a difference of 3 % a finalist needs {count(needed, 'pair')} here, "
            text += f"{needed * each:.0f} s; it had {had}"
        else:
            text = (
                f"this machine cannot tell a difference of 3 % within {LONGEST_S} s a finalist; "
            )
            text += f"{had}, find one of {100 * stats.found(learnt):.0f} %"
        self.attempts.note(text)

    def _finals(self) -> list[Trial]:
        return [trial for trial in self._current() if trial.part == "final"]

    def judge_machine(self) -> None:
        """Say how far the machine could be trusted since the search began."""
        pairs = [p for t in self.trials if t.measurement for p in t.measurement.pairs]
        finals = [t.measurement.pairs for t in self._finals() if t.measurement is not None]
        first = self.trials[0].measurement
        equal = None
        if first is not None:
            equal = stats.ratio(first.pairs, learnt=stats.Learnt.of(finals))
            self.readings["A/A ratio of the original to itself"] = str(equal)
        share = stats.disturbed(pairs)
        known = "not readable here" if share != share else f"{100 * share:.1f} %"
        self.readings["runs disturbed by neighbours"] = known
        record = noise.between(self.before, noise.snapshot())
        self.readings |= record.readings()
        reach = stats.half_width(measure.learnt(self.trials))
        self.readings["half-width of a claim by all pairs"] = f"{100 * reach:.1f} %"
        claimed = any(t.ratio is not None and t.ratio.clear for t in self._finals())
        self.judgement = noise.judge(record, share, equal, reach=reach, claimed=claimed)
