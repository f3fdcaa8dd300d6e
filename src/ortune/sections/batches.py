"""The best plan at every batch that was timed, where it changes, and which keeps a latency."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from statistics import fmean
from typing import ClassVar

from ortune.core import wording as say
from ortune.core.acceptance import between
from ortune.core.section import Block, Heading, Section, Table, Text
from ortune.core.study import Study
from ortune.core.trial import Interval, Trial
from ortune.load_generation.lanes import percentile

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
        p50_ns: Median of a run.
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


@dataclass(frozen=True)
class BatchesSection(Section):
    """The table by batch, and in words what follows from it."""

    order: ClassVar[int] = 25
    terminal: ClassVar[bool] = True

    def blocks(self, study: Study) -> Iterable[Block]:
        """Yield one row a batch; nothing where one batch alone was timed."""
        found = rows(study)
        if len(found) < 2:
            return
        yield Heading("Batch sizes")
        yield Text(crossing(study, found))
        beside = f"over batch {own_batch(study)}'s plan, 99 %"
        limit = study.ending.max_latency
        taken = within(found, limit) if limit is not None else None
        if limit is not None:
            yield Text(_choice(study, taken, limit), "plain" if taken else "warn")
        yield Table(
            ("batch", "best plan", "time ratio, 99 %", beside, *_TIMES, "state"),
            tuple(_row(study, one) for one in found),
            tuple("win" if one == taken else "" for one in found),
        )


_TIMES = ("p50, ms", "tail, ms", "samples/s")


def own_batch(study: Study) -> int:
    """Return the batch that the search was made at."""
    return max(1, study.job.workload.batch)


def at(study: Study, batch: int) -> Study:
    """Return the study of the leading plans at a batch that was timed."""
    if batch == own_batch(study):
        return study
    job = replace(study.job, workload=replace(study.job.workload, batch=batch))
    header = replace(study.header, job=job)
    return replace(study, header=header, trials=study.batches[batch], batches={})


def rows(study: Study) -> list[BatchRow]:
    """Return a row for every batch at which a plan was timed, ascending."""
    timed = (batch for batch, trials in study.batches.items() if len(trials) > 1)
    return [_best(study, batch) for batch in sorted({own_batch(study), *timed})]


def within(found: Sequence[BatchRow], seconds: float) -> BatchRow | None:
    """Return the row of most samples a second whose runs keep a latency, or None."""
    fit = [one for one in found if one.within(seconds)]
    return max(fit, key=lambda one: one.per_second or 0.0, default=None)


def crossing(study: Study, found: Sequence[BatchRow]) -> str:
    """Say which plan is best from which batch on, and what of that is not sure."""
    # Name the plans by their recipes, or in full where recipes do not tell them apart.
    plans = {one.trial.plan for one in found}
    full = len({plan.recipe.name for plan in plans}) < len(plans)
    nothing = "nothing faster than the original"
    names = [
        nothing if one.state == "original" else _label(study, one.trial, full=full)
        for one in found
    ]
    runs = [
        (name, [one for _, one in some])
        for name, some in groupby(zip(names, found, strict=True), key=lambda pair: pair[0])
    ]
    if len(runs) == 1:
        every = "any" if found[0].state == "original" else "every"
        said = f"{names[0]} at {every} batch that was timed"
    else:
        told = [f"{runs[0][0]} up to batch {runs[0][1][-1].batch}"]
        told += [f"{name} from batch {some[0].batch}" for name, some in runs[1:]]
        said = ", ".join(told)
    doubts = [str(one.batch) for one in found if one.state == "unconfirmed"]
    close = [str(one.batch) for one in found if one.beside and not one.beside.clear]
    if doubts:
        said += f"; measured once, unconfirmed, at {', '.join(doubts)}"
    if close:
        first = _label(study, study.best)
        said += f"; not apart from {first} beyond the noise at {', '.join(close)}"
    return f"{said}."


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
        _compared(study, here, trial),
        percentile(ns, 50),
        tail,
        tail_ns,
        batch * 1e9 / fmean(ns) if counted else None,
    )


def _compared(study: Study, here: Study, trial: Trial) -> Interval | None:
    """Return the time of a plan over that of the search's winner, at a batch."""
    known = [t for t in here.trials if t.key == study.best.key]
    if not known or trial.key == study.best.key:
        return None
    found = between(trial, known[-1])
    return found if found.value == found.value else None


def _tail(ns: Sequence[int]) -> tuple[str, float | None]:
    for p in (99, 90):
        if (found := percentile(ns, p)) is not None:
            return f"p{p}", found
    return "p50", percentile(ns, 50)


def _label(study: Study, trial: Trial, *, full: bool = True) -> str:
    if trial.key == study.baseline.key:
        return "the original"
    return str(trial.plan) if full else trial.plan.recipe.name


def _choice(study: Study, taken: BatchRow | None, limit: float) -> str:
    if taken is None:
        return f"No batch that was timed keeps {1000 * limit:g} ms."
    times = f"{taken.tail} {say.milliseconds(taken.tail_ns)} ms"
    rate = f"{taken.per_second:,.0f} samples/s" if taken.per_second else "no rate"
    plan = _label(study, taken.trial)
    sure = " (measured once, unconfirmed)" if taken.state == "unconfirmed" else ""
    return f"Within {1000 * limit:g} ms: batch {taken.batch}, {plan}{sure}: {rate}, {times}."


def _row(study: Study, one: BatchRow) -> tuple[str, ...]:
    tail = f"{one.tail} {say.milliseconds(one.tail_ns)}" if one.tail_ns else say.NONE
    return (
        str(one.batch),
        _label(study, one.trial),
        say.NONE if one.state == "original" else say.ratio(one.trial),
        say.NONE if one.beside is None else str(one.beside),
        say.milliseconds(one.p50_ns),
        tail,
        f"{one.per_second:,.0f}" if one.per_second else say.NONE,
        one.state,
    )
