"""The search: an anytime loop over plans.

Phases: baseline, plans, rescues of what is fast and fails, runtime settings, finalists, history.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from ortune.backends.bucketed import Bucketed
from ortune.core.backend import Backend
from ortune.core.errors import OrtuneError
from ortune.core.event import Note, Sink
from ortune.core.step import AS_IS, Recipe, Transform
from ortune.core.study import Stage, accepted, winner
from ortune.core.trial import Plan, Trial
from ortune.experiment.context import Scene
from ortune.experiment.evaluate import Attempts
from ortune.experiment.ledger import Ending, write_ending
from ortune.measurement.machine import noise
from ortune.measurement.process import WorkerFailed
from ortune.measurement.timing import stats
from ortune.recipe.space import Target, plans, walk
from ortune.search.compare import apart, quicker, reaches, transferred
from ortune.search.padding import unpadded
from ortune.search.rescue import rescues, worth_saving

_FINALISTS = 3
_SEARCH_SHARE = 0.6
_RESCUE_SHARE = 0.65
_SETTINGS = (3, 12)
"""Runtime settings tried around a plan: in a short search, and from three minutes on."""
_RUNTIME_SHARE = 0.7
"""Of the time budget, counted from the start; the rest belongs to finalists and history."""
_PADDING_SHARE = 0.8


@dataclass(frozen=True)
class Aim:
    """When the search may stop, and what it accepts.

    Attributes:
        seconds: Anytime budget.
        began: When the budget began to run, by `clock`.
        target_speedup: Stop at the first proved plan whose interval lies above it.
        strict: Accept only proved accuracy.
        exact: Try exact plans only.
        clock: Tells the seconds; a test brings its own.
    """

    seconds: float
    began: float
    target_speedup: float | None = None
    strict: bool = False
    exact: bool = False
    clock: Callable[[], float] = time.monotonic


def search(scene: Scene, targets: Sequence[Target], aim: Aim, sink: Sink) -> None:
    """Run the phases; everything learnt is in the run's ledger, the conclusion in its ending."""
    with ExitStack() as stack:
        loop = _Loop(scene, targets, aim, sink, stack)
        finished = "interrupted"
        try:
            finished = loop.run()
        except WorkerFailed as error:
            raise OrtuneError(
                f"the original stopped running: {error.failure.reason}",
                fix=f"run the same command again; to see it alone: {error.failure.reproduce}",
            ) from None
        except KeyboardInterrupt:
            if not loop.trials:
                raise
            sink(Note("interrupted: what was found so far is kept", warning=True))
            loop.judge_machine()
        ending = Ending(
            tuple(loop.history),
            finished,
            loop.readings,
            tuple(loop.attempts.notes),
            aim.strict,
            tuple(map(str, loop.judgement.advice)),
            loop.judgement.too_noisy,
        )
        write_ending(scene.root, ending)


@dataclass
class _Loop:
    """The state of a running search."""

    scene: Scene
    targets: Sequence[Target]
    aim: Aim
    sink: Sink
    stack: ExitStack
    history: list[Stage] = field(default_factory=list)
    readings: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # 4 seconds of a search of three minutes, 1 of a short one.
        seconds = min(4.0, max(1.0, self.aim.seconds / 45))
        self.attempts = Attempts(self.scene, seconds, self.sink, self.stack)
        self.before = noise.snapshot()
        self.judgement = noise.Judgement(False, ())
        self.planned: set[str] = set()
        self.cut: Bucketed | None = None
        """The original behind buckets, where the data are padded and padding can be cut."""
        self.idle: set[str] = set()
        """Runtime settings that gained nothing over the plan around which they were tried."""

    def run(self) -> str:
        """Run every phase and say how it ended."""
        self.attempts.baseline()
        finished = self._plans()
        if finished != "target":
            finished = self._rescue(finished)
        if finished != "target":
            finished = self._runtime(finished)
            if finished != "target":
                finished = self._unpadded(finished)
            finished = self._finals(finished)
        self._history()
        self.judge_machine()
        return finished

    @property
    def trials(self) -> Sequence[Trial]:
        """All so far, the original first."""
        return self.attempts.ledger.trials

    def left(self, share: float = 1.0) -> float:
        """Seconds left of a share of the time budget."""
        return self.aim.seconds * share - (self.aim.clock() - self.aim.began)

    # --- phases -----------------------------------------------------------------------------

    def _plans(self) -> str:
        """Try the plans, best bets first, until the share of the time is used up; one at least."""
        scene = self.scene
        found = plans(
            scene.facts, self.targets, scene.job.workload, scene.job.baseline, exact=self.aim.exact
        )
        if not self.aim.exact and not any(isinstance(t.backend, Bucketed) for t in self.targets):
            self.cut = unpadded(scene, self.attempts.note)
        if self.cut is not None:
            found.insert(0, Plan(AS_IS, self.cut))
        self.planned = {self.attempts.key(plan) for plan in found}
        for index, plan in enumerate(found, 1):
            if index > 1 and self.left(_SEARCH_SHARE) <= 0:
                left = len(found) - index + 1
                self.attempts.note(f"time is up: {left} of {len(found)} plans were not tried")
                return "time"
            trial = self.attempts.one(plan, "search", index, len(found))
            if trial is not None and self._on_target(trial):
                return "target"
        return "done"

    def _rescue(self, finished: str) -> str:
        """Spend the accuracy kit on plans that are faster than the best but fail the budget."""
        for failed in worth_saving(self.trials, next(iter(self._bare()), None)):
            for index, plan in enumerate(rescues(failed, self.scene.facts), 1):
                if self.left(_RESCUE_SHARE) <= 0:
                    self.attempts.note(f"time is up: {failed.plan.recipe.name} was not saved")
                    return finished
                self.planned.add(self.attempts.key(plan))
                trial = self.attempts.one(plan, "rescue", index, index)
                if trial is None or not self._accepted(trial):
                    continue
                if self._on_target(trial):
                    return "target"
                break
        return finished

    def _runtime(self, finished: str) -> str:
        """Descend over the best plan's runtime settings; the second best gets what they gained."""
        leaders = [t for t in self._bare() if t.key in self.planned][:2]
        gained: dict[type[Backend], tuple[Backend, Backend]] = {}
        for leader in leaders:
            kind = type(leader.plan.backend)
            if kind in gained:
                found, base = gained[kind]
                plan = transferred(found, base, leader.plan)
                if self.left(_RUNTIME_SHARE) <= 0:
                    return "time"
                trial = self.attempts.one(plan, "runtime", 1, 1) if plan != leader.plan else None
                if trial is not None and self._on_target(trial):
                    return "target"
                continue
            best, ended = self._descend(leader)
            if ended:
                return ended
            gained[kind] = (best.plan.backend, leader.plan.backend)
        return finished

    def _descend(self, best: Trial) -> tuple[Trial, str]:
        """Try settings around a plan one by one and keep what helps; say why it ended early."""
        kind = type(best.plan.backend)
        target = next((t for t in self.targets if type(t.backend) is kind), None)
        if target is None:
            return best, ""

        def present() -> Backend:
            return best.plan.backend

        few, many = _SETTINGS
        most = min(many, max(few, int(self.aim.seconds / 15)))
        for index, (_, backend) in enumerate(walk(present, target, self.scene.facts), 1):
            if self.aim.exact and backend.lossy:
                continue
            if index > most:
                break
            if self.left(_RUNTIME_SHARE) <= 0:
                return best, "time"
            plan = Plan(best.plan.recipe, backend)
            trial = self.attempts.one(plan, "runtime", index, most)
            if trial is not None and self._on_target(trial):
                return trial, "target"
            if trial is None:
                continue
            if self._accepted(trial) and quicker(trial, best):
                best = trial
            else:
                self.idle.add(trial.key)
        return best, ""

    def _unpadded(self, finished: str) -> str:
        """Put the best plan behind the buckets too."""
        best = next(iter(self._bare()), None)
        if self.cut is None or best is None:
            return finished
        if self.left(_PADDING_SHARE) <= 0:
            return "time"
        plan = Plan(best.plan.recipe, self.cut.around(best.plan.backend))
        self.planned.add(self.attempts.key(plan))
        trial = self.attempts.one(plan, "runtime", 1, 1)
        return "target" if trial is not None and self._on_target(trial) else finished

    def _finals(self, finished: str) -> str:
        """Re-measure the best in fresh pairs on held-out data, but not those already beaten."""
        idle = self.idle - self.planned
        chosen = [t for t in self._leaders() if t.key not in idle][:_FINALISTS]
        for index, trial in enumerate(chosen, 1):
            leader = self._winner()
            if leader is not None and self.left() <= 0:
                self.attempts.note(
                    f"time is up: {len(chosen) - index + 1} finalists were not re-measured"
                )
                return "time"
            if leader is None or not apart(leader, trial):
                self.attempts.final(trial, index, len(chosen))
        return finished

    def _history(self) -> None:
        """Measure what each kind of change brought on the way to the winner."""
        best = self._winner()
        first = self.trials[0]
        self.history.append(Stage("baseline", first.key))
        if best is None:
            return
        base = self.scene.job.baseline
        exact = tuple(s for s in best.plan.recipe.steps if isinstance(s, Transform))
        steps = [("graph", Plan(Recipe("clean", exact), base))] if exact else []
        if best.plan.recipe.lossy:
            steps.append(("quantization", Plan(best.plan.recipe, base)))
        for name, plan in steps:
            if self.attempts.key(plan) == best.key:
                continue
            trial = self.attempts.one(plan, "history", 1, 1, always_score=True)
            if trial is not None and trial.ratio is not None:
                self.history.append(Stage(name, trial.key))
        last = "quantization" if best.plan.backend == base else "runtime"
        if not best.plan.recipe.lossy and best.plan.backend == base:
            last = "graph"
        self.history.append(Stage(last, best.key))

    def _on_target(self, trial: Trial) -> bool:
        """Re-measure a plan that seems to reach the target; true when it is proved."""
        wanted = self.aim.target_speedup
        if wanted is None or not self._accepted(trial) or trial.ratio is None:
            return False
        if trial.ratio.value > 1 / wanted:
            return False
        return reaches(self.attempts.final(trial, 1, 1), wanted)

    # --- judgement --------------------------------------------------------------------------

    def _accepted(self, trial: Trial) -> bool:
        """Whether a plan is worth a finalist's place: proof may come with all samples."""
        return accepted(trial, strict=False)

    def _leaders(self) -> list[Trial]:
        """Return verified plans that may be faster than the original, fastest first."""
        first = self.trials[0]
        fit = [
            t
            for t in self.trials
            if t.phase == "search" and t.key != first.key and self._accepted(t)
        ]
        quick = [t for t in fit if t.ratio is not None and t.ratio.value < 1]
        return sorted(quick, key=lambda t: t.ratio.value if t.ratio else 1.0)

    def _bare(self) -> list[Trial]:
        """Return the leaders without those behind buckets: what may gain by them too."""
        found = self._leaders()
        if self.cut is None:
            return found
        return [t for t in found if not isinstance(t.plan.backend, Bucketed)]

    def _winner(self) -> Trial | None:
        finals = (t for t in self.trials if t.phase == "final")
        return winner(finals, strict=self.aim.strict)

    def judge_machine(self) -> None:
        """Say how far the machine could be trusted since the search began."""
        pairs = [p for t in self.trials if t.measurement for p in t.measurement.pairs]
        first = self.trials[0].measurement
        equal = stats.ratio(first.pairs) if first is not None else None
        if equal is not None:
            self.readings["A/A ratio of the original to itself"] = str(equal)
        share = stats.disturbed(pairs)
        known = "not readable here" if share != share else f"{100 * share:.1f} %"
        self.readings["runs disturbed by neighbours"] = known
        record = noise.between(self.before, noise.snapshot())
        self.readings |= record.readings()
        self.judgement = noise.judge(record, share, equal)
