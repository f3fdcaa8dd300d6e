"""A finished or half-finished search, rebuilt from its ledger at any time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ortune.core.backend import Backend
from ortune.core.budget import Budget
from ortune.core.facts import Facts
from ortune.core.trial import Interval, Status, Trial, Verdict
from ortune.core.workload import Workload

_EQUAL = 1.01


@dataclass(frozen=True)
class Job:
    """What was asked: everything that makes two searches the same search.

    Attributes:
        model: Path as given. `model_digest` is what counts.
        model_digest: Of the file and its external data.
        data_digest: Of feeds, labels, groups and the split.
        budget: Derived or given.
        budget_rule: How it was derived; empty when given.
        baseline: The backend of the untouched model.
        on: The backends that were searched, as asked.
        versions: Distribution -> version of what results depend on.
        machine: CPU model, instruction sets, effective CPUs.
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


@dataclass(frozen=True)
class Stage:
    """One row of the history: what each kind of change brought, measured.

    Attributes:
        name: baseline, graph, quantization or runtime.
        key: The trial that stands for it.
    """

    name: str
    key: str


@dataclass(frozen=True)
class Study:
    """Every trial and what follows from them.

    Attributes:
        root: The run's folder.
        finished: ``done``, ``time`` (budget used up), ``target`` (target speed-up reached) or
            ``interrupted``.
        noise: Readings that say how far the machine could be trusted.
        advice: What was wrong with the machine meanwhile, and what to change; the worst first.
        too_noisy: So much was wrong that the verdict does not count.
        command: The command line that repeats it.
        samples: Part of the data -> number of samples.
        notes: What was said while preparing, worth repeating in a report.
        models: Name -> absolute path of the original.
        strict: Only proved accuracy is accepted.
    """

    root: str
    job: Job
    facts: Facts
    trials: tuple[Trial, ...]
    history: tuple[Stage, ...] = ()
    finished: str = "done"
    noise: Mapping[str, str] = field(default_factory=dict)
    command: str = ""
    samples: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    models: Mapping[str, str] = field(default_factory=dict)
    strict: bool = False
    advice: tuple[str, ...] = ()
    too_noisy: bool = False

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
        found = [trial for trial in self.trials if trial.key.startswith(key)]
        return found[-1] if found else None

    @property
    def final(self) -> tuple[Trial, ...]:
        """Finalists, re-measured in fresh pairs on data that the search did not see."""
        return tuple(t for t in self.trials if t.part == "final")

    @property
    def best(self) -> Trial:
        """The fastest finalist whose 99 % interval excludes 1 and whose score holds, or baseline.

        A search that was cut off before it had finalists offers its verified trials instead.
        """
        found = winner(self.final, strict=self.strict)
        if found is None and self.finished != "done":
            judged = {trial.key for trial in self.final}
            rest = [trial for trial in self.trials if trial.key not in judged]
            found = winner(rest, strict=self.strict)
        return found or self.baseline

    def accepts(self, trial: Trial) -> bool:
        """Say whether a trial's accuracy was verified as surely as was asked."""
        return accepted(trial, strict=self.strict)

    def speedup(self, trial: Trial) -> Interval:
        """Return baseline latency over the trial's, with its 99 % interval; 1 for the baseline."""
        if trial.ratio is None:
            nothing = 1.0 if trial.key == self.baseline.key else float("nan")
            return Interval(nothing, nothing, nothing)
        return trial.ratio.inverse()

    def predicted(self, trial: Trial) -> Interval | None:
        """Return where one new measurement of a trial's speed-up will fall with 95 %, if known."""
        return None if trial.predicted is None else trial.predicted.inverse()

    def front(self) -> tuple[Trial, ...]:
        """Return the trials that no other beats in both latency and score, fastest first."""
        latest = {t.key: t for t in self.trials if t.ratio and t.score and not t.error}
        return tuple(
            sorted(
                (
                    t
                    for t in latest.values()
                    if not any(self._beats(o, t) for o in latest.values())
                ),
                key=lambda t: t.ratio.value if t.ratio else 1.0,
            )
        )

    def _beats(self, one: Trial, two: Trial) -> bool:
        if one is two or not (one.ratio and two.ratio and one.score and two.score):
            return False
        sign = 1 if self.budget.metric.higher_is_better else -1
        better = (
            one.ratio.value < two.ratio.value,
            sign * (one.score.value - two.score.value) > 0,
        )
        worse = (one.ratio.value > two.ratio.value, sign * (one.score.value - two.score.value) < 0)
        return any(better) and not any(worse)


def accepted(trial: Trial, *, strict: bool) -> bool:
    """Say whether a trial ran and kept the budget; `strict` wants that proved."""
    if trial.status is not Status.OK or trial.score is None:
        return False
    return trial.score.verdict is Verdict.PROVED or not strict


def winner(trials: Iterable[Trial], *, strict: bool) -> Trial | None:
    """Return the fastest accepted trial whose interval excludes 1, or None.

    Among those within 1 % of the fastest the simplest counts: exact before lossy, then the fewest
    steps, then the fewest settings.
    """
    fit = [t for t in trials if accepted(t, strict=strict) and t.ratio and t.ratio.high < 1]
    best = min((t.ratio.value for t in fit if t.ratio), default=0.0)
    near = [t for t in fit if t.ratio and t.ratio.value <= best * _EQUAL]
    return min(
        near,
        key=lambda t: (
            t.plan.lossy,
            len(t.plan.recipe.steps),
            t.plan.settings,
            t.ratio.value if t.ratio else 1.0,
        ),
        default=None,
    )
