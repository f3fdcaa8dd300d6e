"""The best plan of a study at every batch that was timed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from ortune.core.acceptance import compare_latency
from ortune.core.study import Study
from ortune.core.trial import Interval, Trial
from ortune.measurement.arrivals.lanes import percentile

_COUNTED = ("latency", "throughput")
"""Workloads whose entries are the time of a run without a pause between."""


@dataclass(frozen=True)
class BatchRow:
    """Which plan is best at a batch.

    Attributes:
        batch: Samples a run.
        trial: Of the best plan at this batch, or of the original.
        state: ``confirmed`` in fresh pairs; ``unconfirmed``: measured once; ``original``.
        beside: Time of this plan over that of the plan that is best at the search's own batch,
            here; None where it is that plan, or that was not timed.
        tail: The highest percentile with ten entries beyond it.
        tail_ns: Nanoseconds.
        per_second: Samples a second; None where the workload pauses.
    """

    batch: int
    trial: Trial
    state: str
    beside: Interval | None
    p50_ns: float | None
    tail: str
    tail_ns: float | None
    per_second: float | None

    def within(self, seconds: float) -> bool:
        """Whether the tail of a run keeps a latency."""
        return self.tail_ns is not None and self.tail_ns <= seconds * 1e9


def read_search_batch(study: Study) -> int:
    """Return the batch that the search was made at."""
    return max(1, study.job.workload.batch)


def at(study: Study, batch: int) -> Study:
    """Return the study of the leading plans at a batch that was timed."""
    if batch == read_search_batch(study):
        return study
    job = replace(study.job, workload=replace(study.job.workload, batch=batch))
    header = replace(study.header, job=job)
    return replace(study, header=header, trials=study.batches[batch], batches={})


def rows(study: Study) -> list[BatchRow]:
    """Return a row for every batch at which a plan was timed, ascending."""
    timed = (batch for batch, trials in study.batches.items() if len(trials) > 1)
    return [_best(study, batch) for batch in sorted({read_search_batch(study), *timed})]


def _best(study: Study, batch: int) -> BatchRow:
    here = at(study, batch)
    trial, state = here.best, "confirmed"
    if trial.key == here.baseline.key:
        trial, state = next(((t, "unconfirmed") for t in here.promising), (trial, "original"))
    ns = [] if trial.measurement is None else list(trial.measurement.latency_ns)
    tail, tail_ns = _tail(ns)
    counted = bool(ns) and study.job.workload.name() in _COUNTED
    return BatchRow(
        batch,
        trial,
        state,
        _compare_to_winner(study, here, trial),
        percentile(ns, 50),
        tail,
        tail_ns,
        batch * 1e9 / fmean(ns) if counted else None,
    )


def _compare_to_winner(study: Study, here: Study, trial: Trial) -> Interval | None:
    """Return the time of a plan over that of the search's winner, at a batch."""
    winner_trials = [t for t in here.trials if t.key == study.best.key]
    if not winner_trials or trial.key == study.best.key:
        return None
    ratio = compare_latency(trial, winner_trials[-1])
    return ratio if ratio.value == ratio.value else None


def _tail(ns: Sequence[int]) -> tuple[str, float | None]:
    for p in (99, 90):
        if (tail_ns := percentile(ns, p)) is not None:
            return f"p{p}", tail_ns
    return "p50", percentile(ns, 50)
