"""The best plan of a study at every batch that was timed."""

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
        trial: Of the best plan at this batch, or of the original.
        state: ``confirmed`` in fresh pairs; ``unconfirmed``: measured once; ``original``.
        beside: Time of this plan over that of the plan that is best at the search's own batch,
            here; None where it is that plan, or that was not timed.
        tail: The highest percentile with ten entries beyond it.
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
    winners, beside = [t for t in here.trials if t.key == study.best.key], None
    if winners and trial.key != study.best.key:
        ratio = compare_latency(trial, winners[-1])
        beside = ratio if ratio.value == ratio.value else None
    ns = [] if trial.measurement is None else list(trial.measurement.latency_ns)
    tails = {f"p{p}": percentile(ns, p) for p in (50, 90, 99)}
    tail = [name for name, tail_ns in tails.items() if name == "p50" or tail_ns is not None][-1]
    counted = bool(ns) and study.job.workload.name() in _COUNTED
    return BatchRow(
        batch,
        trial,
        state,
        beside,
        tails["p50"],
        tail,
        tails[tail],
        batch * 1e9 / fmean(ns) if counted else None,
    )
