"""A finished or half-finished search, rebuilt from its ledger at any time."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from ortune.core import acceptance
from ortune.core.acceptance import FASTEST, Goal, Outcome, is_faster
from ortune.core.backend import Backend
from ortune.core.budget import Budget
from ortune.core.capabilities import HERE
from ortune.core.facts import Facts
from ortune.core.hardware.cpus import EMULATED
from ortune.core.plan_label import label_plan
from ortune.core.result import TableResult
from ortune.core.self_agreement import SelfAgreement
from ortune.core.session import Tensors
from ortune.core.trial import BESIDE, Interval, Plan, Status, Trial, UntriedPlan
from ortune.core.workload import Workload

AT_WORK = "at work"


@dataclass(frozen=True)
class Job:
    """What was requested: everything that makes two searches the same search."""

    # Path as given. `model_digest` is what counts.
    model: str
    model_digest: str  # of the file and its external data
    data_digest: str  # of feeds, labels, groups and the split
    budget: Budget  # derived or given
    budget_rule: str  # how it was derived; empty when given
    workload: Workload
    baseline: Backend  # the backend of the untouched model
    versions: Mapping[str, str]  # distribution -> version of what results depend on
    machine: Mapping[str, str]  # CPU model, instruction sets, effective CPUs, emulator
    on: str = ""  # the backends that were searched, as given
    environment: str = HERE  # name of the environment that workers run in
    ignored: tuple[str, ...] = ()  # outputs that the budget does not read and nobody watches
    wanted: Goal = FASTEST  # by what the winner is chosen, and its bounds

    @property
    def emulated(self) -> str:
        """What emulates the CPU on which plans are timed; empty for a real one."""
        return self.machine.get(EMULATED, "")


@dataclass(frozen=True)
class Contribution:
    """One row of the history: what each kind of change brought, measured."""

    # baseline, graph, quantization or runtime; several where they were not measured apart.
    name: str
    key: str  # the trial that stands for it


@dataclass(frozen=True)
class Header:
    """What a run was started with."""

    formerly: ClassVar[Mapping[str, str]] = {"paid": ""}

    job: Job
    facts: Facts
    command: str = ""  # the command line that repeats it
    # Name -> absolute path of the original.
    models: Mapping[str, str] = field(default_factory=dict)
    # Part of the data -> sample indices.
    parts: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    # In which order plans were tried: runs of older versions may name another.
    policy: str = "adaptive"
    outlook: str = ""  # what the samples can prove, as it was said before the search
    # Operator -> its share of the original's time; empty where none was taken.
    by_operator: Mapping[str, float] = field(default_factory=dict)
    by_region: bool = True  # whether plans may differ in precision by region
    # The longest time that a search in this run was given, by which its parts have their sizes; 0
    # in runs of older versions.
    seconds: float = 0.0
    # What was said first of labels or of the original's own score; empty where nothing.
    doubt: str = ""
    # Whether the original agrees with itself, and what is left out so that it does.
    agreement: SelfAgreement = field(default_factory=SelfAgreement)


WORST = 8
"""Samples that lost most that are shown."""


@dataclass(frozen=True)
class SampleScores:
    """What the budget's metric says of each sample alone, of one plan and of the original."""

    metric: str  # its spelling
    samples: tuple[int, ...]  # indices into the run's samples
    base: tuple[float, ...]  # scores of the original; NaN where one sample has none
    scores: tuple[float, ...]  # scores of the plan
    # Signal-to-noise ratio of each sample's outputs against the original's, dB, held within -200
    # and 200; empty where it was not taken.
    snr_db: tuple[float, ...] = ()

    def list_worst(self, *, higher_is_better: bool) -> list[int]:
        """Return places in these tuples: what lost most first, then what moved most."""
        sign = 1 if higher_is_better else -1

        def measure(place: int) -> tuple[float, float]:
            change = sign * (self.scores[place] - self.base[place])
            snr = self.snr_db[place] if self.snr_db else 0.0
            return (-math.inf if math.isnan(change) else change, snr)

        return sorted(range(len(self.samples)), key=measure)[:WORST]

    def read_worst(
        self, inputs: Sequence[Tensors], *, higher_is_better: bool
    ) -> dict[int, Tensors]:
        """Return copies of the samples of `list_worst` by index, as far as they are there."""
        worst = [
            self.samples[place] for place in self.list_worst(higher_is_better=higher_is_better)
        ]
        return {
            index: {name: array.copy() for name, array in inputs[index].items()}
            for index in worst
            if index < len(inputs)
        }


@dataclass(frozen=True)
class Ending:
    """What a run concluded."""

    history: tuple[Contribution, ...] = ()  # what each kind of change brought, in order
    # ``done``, ``time`` (it is used up), ``target`` (reached), ``interrupted``, or ``at work``
    # where it is read while its search goes on.
    finished: str = "interrupted"
    # Readings that say how far the machine could be trusted.
    noise: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()  # notes of preparation and search that a report repeats
    strict: bool = False  # only proved accuracy is accepted
    # What was wrong with the machine meanwhile, and what to change; the worst first.
    advice: tuple[str, ...] = ()
    too_noisy: bool = False  # so much was wrong that a gain worth having would not have been seen
    untried: int = 0  # how many plans were left out; `left_out` names the first of them, and why
    left_out: tuple[UntriedPlan, ...] = ()
    max_latency: float | None = None  # seconds that a run may take, of which the batch is chosen


@dataclass(frozen=True, repr=False)
class Study(TableResult, shown_by="ortune.reporting.python.notebook"):
    """All trials of a search, and the results that follow from them.

    Attributes:
        trials: The original first; plans that change nothing are left out.
        batches: Batch -> trials of the leading plans at that batch, the original first.
        machines: Name -> the finalists and the original on another machine, built here; what was
            scored here is scored there where answers differ alone.
        step: The step of the budget by which its trials are judged, 0 for the strictest.
    """

    root: str
    header: Header
    trials: tuple[Trial, ...]
    ending: Ending = Ending()
    batches: Mapping[int, tuple[Trial, ...]] = field(default_factory=dict)
    machines: Mapping[str, Study] = field(default_factory=dict)
    step: int = 0

    def summary(self) -> Mapping[str, object]:
        """Return the winner and how sure it is."""
        best = self.best
        verdict = best.score.verdict if best.score and best.key != self.baseline.key else None
        return {
            "model": self.job.model,
            "best": self.label(best.plan),
            "speed-up": self.speedup(best),
            "accuracy": verdict,
            "budget": self.budget,
            "plans": len({trial.key for trial in self.trials}),
            "finished": f"{self.finished}, too noisy" if self.too_noisy else self.finished,
            "run": self.root,
        }

    def records(self) -> Sequence[Mapping[str, object]]:
        """Return a row a trial."""
        return [
            {
                "plan": str(trial.plan),
                "part": trial.part,
                "stage": trial.stage,
                "status": str(trial.status),
                "ratio": trial.ratio.value if trial.ratio else None,
                "low": trial.ratio.low if trial.ratio else None,
                "high": trial.ratio.high if trial.ratio else None,
                "score": trial.score.value if trial.score else None,
                "size": trial.size,
                "why": trial.why,
            }
            for trial in self.trials
        ]

    @property
    def job(self) -> Job:
        """What two runs must share to be the same search."""
        return self.header.job

    @property
    def command(self) -> str:
        """The command line that repeats the search."""
        return self.header.command

    @property
    def models(self) -> Mapping[str, str]:
        """Name -> absolute path of the original."""
        return self.header.models

    @property
    def samples(self) -> Mapping[str, int]:
        """Part of the data -> number of samples."""
        return {name: len(part) for name, part in self.header.parts.items()}

    @property
    def finished(self) -> str:
        """How the search ended; see `Ending`."""
        return self.ending.finished

    @property
    def history(self) -> tuple[Contribution, ...]:
        """What each kind of change brought, in order."""
        return self.ending.history

    @property
    def noise(self) -> Mapping[str, str]:
        """Readings that say how far the machine could be trusted."""
        return self.ending.noise

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes of preparation and search."""
        return self.ending.notes

    @property
    def advice(self) -> tuple[str, ...]:
        """What was wrong with the machine meanwhile, and what to change."""
        return self.ending.advice

    @property
    def strict(self) -> bool:
        """Whether only proved accuracy is accepted."""
        return self.ending.strict

    @property
    def too_noisy(self) -> bool:
        """Whether the machine was too noisy for a verdict: never where a finalist has one."""
        return self.ending.too_noisy and not any(t.ratio and t.ratio.clear for t in self.final)

    @property
    def budget(self) -> Budget:
        """The budget of the job; where it has steps, the one that trials are judged by."""
        return self.job.budget.steps[self.step]

    @property
    def baseline(self) -> Trial:
        """The untouched model."""
        return self.trials[0]

    def label(self, plan: Plan) -> str:
        """Write a plan for people, by what differs from the baseline."""
        return label_plan(plan, self.baseline.plan)

    def find(self, key: str) -> Trial | None:
        """Return the last trial whose key starts with `key`: the final one where there are two."""
        return next((t for t in reversed(self.trials) if t.key.startswith(key)), None)

    @property
    def final(self) -> tuple[Trial, ...]:
        """Finalists, re-measured in fresh pairs on data that the search did not see."""
        return tuple(t for t in self.trials if t.part == "final")

    @property
    def best(self) -> Trial:
        """The best accepted finalist by the search's goal; the baseline where there is none.

        Nothing that was measured once is handed out, however the search ended.
        """
        first, goal, strict = self.baseline, self.job.wanted, self.strict
        return acceptance.select_winner(self.final, first, strict=strict, goal=goal) or first

    @property
    def promising(self) -> tuple[Trial, ...]:
        """Plans that look better than the best and were not measured again, best first."""
        goal, judged = self.job.wanted, {trial.key for trial in self.final}
        first, strict = self.baseline, self.strict
        candidates = (t for t in self.trials if t.key not in judged and t.stage != BESIDE)
        fit = [
            t for t in candidates if acceptance.looks_eligible(t, first, strict=strict, goal=goal)
        ]
        return tuple(
            t for near in goal.group_trials(fit) for t in near if goal.is_ahead(t, self.best)
        )

    @property
    def undecided(self) -> tuple[Trial, ...]:
        """Finalists that would beat the best, but of which too few samples tell whether their
        accuracy is within the budget; best first."""
        goal, best = self.job.wanted, self.best
        fit = [
            t
            for t in self.final
            if t.status is Status.OK and t.score and not self.accepts(t)
            if is_faster(t) and not t.is_disturbed and goal.keeps_bounds(t)
        ]
        return tuple(t for near in goal.group_trials(fit) for t in near if goal.is_ahead(t, best))

    @property
    def unconfirmed(self) -> tuple[Trial, ...]:
        """Promising plans that were not re-measured: the search ran out of time or was stopped."""
        return self.promising if self.finished in ("time", "interrupted") else ()

    @property
    def cut_short(self) -> tuple[Trial, ...]:
        """Plans, also at a batch, without a result because something from outside ended their run.

        The same command tries them again.
        """
        rows = (self.trials, *self.batches.values())
        last = [trial for row in rows for trial in {t.key: t for t in row}.values()]
        return tuple(t for t in last if t.interruption is not None and t.stage != BESIDE)

    @property
    def counts(self) -> Mapping[Outcome, int]:
        """Number of plans by outcome, without the original."""
        last = {t.key: t for t in self.trials if t.stage != BESIDE and t.key != self.trials[0].key}
        outcomes = Counter(map(acceptance.classify_outcome, last.values()))
        outcomes[Outcome.UNTRIED] += self.ending.untried
        return {kind: outcomes[kind] for kind in Outcome}

    def is_confirmed(self, trial: Trial) -> bool:
        """Whether a trial is an accepted finalist that is faster or wanted, or the original."""
        first, strict, goal = self.baseline, self.strict, self.job.wanted
        fit = acceptance.is_eligible(trial, first, strict=strict, goal=goal)
        good = (self.accepts(trial) and is_faster(trial)) or fit
        return (trial.part == "final" and good) or trial.key == first.key

    def accepts(self, trial: Trial) -> bool:
        """Say whether a trial's accuracy was verified as surely as requested."""
        return acceptance.is_accepted(trial, strict=self.strict)

    def speedup(self, trial: Trial) -> Interval:
        """Return baseline latency over the trial's, with its 99 % interval; 1 for the baseline.

        NaN where nothing is known: it was not timed, or its runs waited for a CPU.
        """
        unmeasured = 1.0 if trial.key == self.baseline.key else float("nan")
        return trial.shown_ratio.inverse() if trial.shown_ratio else Interval(*[unmeasured] * 3)

    def predict_speedup(self, trial: Trial) -> Interval | None:
        """Return where one new measurement of a trial's speed-up will fall with 95 %, if known."""
        return None if trial.predicted is None else trial.predicted.inverse()

    def front(self) -> tuple[Trial, ...]:
        """Return the trials that trade latency for score beyond chance, fastest first."""
        return acceptance.find_pareto_front(
            (t for t in self.trials if t.stage != BESIDE), self.budget
        )
