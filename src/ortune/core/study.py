"""A finished or half-finished search, rebuilt from its ledger at any time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ortune.core.acceptance import Outcome, accepted, faster, outcome, winner
from ortune.core.backend import Backend
from ortune.core.budget import Budget
from ortune.core.capabilities import HERE
from ortune.core.facts import Facts
from ortune.core.result import TableResult
from ortune.core.trial import Interval, Trial, Untried
from ortune.core.workload import Workload


@dataclass(frozen=True)
class Job:
    """What was requested: everything that makes two searches the same search.

    Attributes:
        model: Path as given. `model_digest` is what counts.
        model_digest: Of the file and its external data.
        data_digest: Of feeds, labels, groups and the split.
        budget: Derived or given.
        budget_rule: How it was derived; empty when given.
        baseline: The backend of the untouched model.
        on: The backends that were searched, as given.
        versions: Distribution -> version of what results depend on.
        machine: CPU model, instruction sets, effective CPUs.
        environment: Name of the environment that workers run in.
        ignored: Outputs that the budget does not read and nobody watches.
    """

    model: str
    model_digest: str
    data_digest: str
    budget: Budget
    budget_rule: str
    workload: Workload
    baseline: Backend
    versions: Mapping[str, str]
    machine: Mapping[str, str]
    on: str = ""
    environment: str = HERE
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True)
class Contribution:
    """One row of the history: what each kind of change brought, measured.

    Attributes:
        name: baseline, graph, quantization or runtime.
        key: The trial that stands for it.
    """

    name: str
    key: str


@dataclass(frozen=True)
class Header:
    """What a run was started with.

    Attributes:
        command: The command line that repeats it.
        models: Name -> absolute path of the original.
        parts: Part of the data -> sample indices.
        policy: In which order plans were tried, spelled.
        outlook: What the samples can prove, as it was said before the search.
    """

    job: Job
    facts: Facts
    command: str = ""
    models: Mapping[str, str] = field(default_factory=dict)
    parts: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    policy: str = "staged"
    outlook: str = ""


@dataclass(frozen=True)
class Ending:
    """What a run concluded.

    Attributes:
        history: What each kind of change brought, in order.
        finished: ``done``, ``time`` (it is used up), ``target`` (reached) or ``interrupted``.
        noise: Readings that say how far the machine could be trusted.
        notes: Notes of preparation and search that a report repeats.
        strict: Only proved accuracy is accepted.
        advice: What was wrong with the machine meanwhile, and what to change; the worst first.
        too_noisy: So much was wrong that a gain worth having would not have been seen.
        untried: How many plans were left out; `left_out` names the first of them, and why.
    """

    history: tuple[Contribution, ...] = ()
    finished: str = "interrupted"
    noise: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    strict: bool = False
    advice: tuple[str, ...] = ()
    too_noisy: bool = False
    untried: int = 0
    left_out: tuple[Untried, ...] = ()


@dataclass(frozen=True, repr=False)
class Study(TableResult):
    """Every trial and what follows from them.

    Attributes:
        root: The run's folder.
        header: What was requested.
        trials: The original first; plans that change nothing are left out.
        ending: What was concluded.
    """

    root: str
    header: Header
    trials: tuple[Trial, ...]
    ending: Ending = Ending()

    def summary(self) -> Mapping[str, object]:
        """Return the winner and how sure it is."""
        best = self.best
        return {
            "model": self.job.model,
            "best": best.plan,
            "speed-up": self.speedup(best),
            "accuracy": best.score.verdict if best.score else None,
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
        """What makes two searches the same search."""
        return self.header.job

    @property
    def facts(self) -> Facts:
        """Of the original."""
        return self.header.facts

    @property
    def command(self) -> str:
        """The command line that repeats it."""
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
        """How it ended; see `Ending`."""
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
        claimed = any(trial.ratio is not None and trial.ratio.clear for trial in self.final)
        return self.ending.too_noisy and not claimed

    @property
    def budget(self) -> Budget:
        """The budget of the job."""
        return self.job.budget

    @property
    def baseline(self) -> Trial:
        """The untouched model."""
        return self.trials[0]

    def find(self, key: str) -> Trial | None:
        """Return the last trial whose key starts with `key`: the final one where there are two."""
        return next((t for t in reversed(self.trials) if t.key.startswith(key)), None)

    @property
    def final(self) -> tuple[Trial, ...]:
        """Finalists, re-measured in fresh pairs on data that the search did not see."""
        return tuple(t for t in self.trials if t.part == "final")

    @property
    def best(self) -> Trial:
        """The fastest finalist whose 99 % interval excludes 1 and whose score holds, or baseline.

        Nothing that was measured once is handed out, however the search ended.
        """
        return winner(self.final, strict=self.strict) or self.baseline

    @property
    def unconfirmed(self) -> tuple[Trial, ...]:
        """Plans that looked faster than the best when time ended, and were not measured again."""
        if self.finished not in ("time", "interrupted"):
            return ()
        judged = {trial.key for trial in self.final}
        best = self.best.ratio.value if self.best.ratio else 1.0
        fit = [
            (t.ratio.value, t)
            for t in self.trials
            if t.key not in judged and self.accepts(t) and faster(t) and t.ratio
        ]
        return tuple(t for value, t in sorted(fit, key=lambda one: one[0]) if value < best)

    @property
    def counts(self) -> Mapping[Outcome, int]:
        """How many plans came to what, the original left out."""
        last = {t.key: t for t in self.trials if t.key != self.baseline.key}
        found = Counter(map(outcome, last.values()))
        found[Outcome.UNTRIED] += self.ending.untried
        return {kind: found[kind] for kind in Outcome}

    def confirmed(self, trial: Trial) -> bool:
        """Whether a trial is a finalist that is faster and accepted, or the original."""
        fit = trial.part == "final" and self.accepts(trial) and faster(trial)
        return fit or trial.key == self.baseline.key

    def accepts(self, trial: Trial) -> bool:
        """Say whether a trial's accuracy was verified as surely as requested."""
        return accepted(trial, strict=self.strict)

    def speedup(self, trial: Trial) -> Interval:
        """Return baseline latency over the trial's, with its 99 % interval; 1 for the baseline."""
        unmeasured = 1.0 if trial.key == self.baseline.key else float("nan")
        return trial.ratio.inverse() if trial.ratio else Interval(*[unmeasured] * 3)

    def predicted(self, trial: Trial) -> Interval | None:
        """Return where one new measurement of a trial's speed-up will fall with 95 %, if known."""
        return None if trial.predicted is None else trial.predicted.inverse()

    def front(self) -> tuple[Trial, ...]:
        """Return the trials that no other beats in both latency and score, fastest first."""
        sign = -1 if self.budget.metric.higher_is_better else 1
        points = [
            (t.ratio.value, sign * t.score.value, t)
            for t in {trial.key: trial for trial in self.trials}.values()
            if t.ratio and t.score and not t.error
        ]

        def beaten(slow: float, bad: float) -> bool:
            return any(a <= slow and b <= bad and (a, b) != (slow, bad) for a, b, _ in points)

        points.sort(key=lambda point: point[0])
        return tuple(trial for slow, bad, trial in points if not beaten(slow, bad))
