"""The best plan at every batch that was timed, where it changes, and which keeps a latency."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import ClassVar

from ortune.core import wording as say
from ortune.core.section import Block, Heading, Section, Table, Text
from ortune.core.study import Study
from ortune.core.trial import Trial
from ortune.search.batch_rows import BatchRow, own_batch, rows


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
