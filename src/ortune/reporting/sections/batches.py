"""The best plan at every batch that was timed, where it changes, and which keeps a latency."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import ClassVar

from ortune.core import wording as say
from ortune.core.plan_label import ORIGINAL, label_recipe
from ortune.core.section import Block, Heading, Section, Table, Text
from ortune.core.study import Study
from ortune.core.trial import Trial
from ortune.search.batch_rows import BatchRow, read_search_batch, rows


@dataclass(frozen=True)
class BatchesSection(Section):
    """The table by batch, and in words what follows from it."""

    order: ClassVar[int] = 25
    terminal: ClassVar[bool] = True

    def blocks(self, study: Study) -> Iterable[Block]:
        batch_rows = rows(study)
        if len(batch_rows) < 2:
            return
        yield Heading("Batch sizes")
        yield Text(describe_best_plans(study, batch_rows))
        beside = f"vs. batch {read_search_batch(study)}'s best, 99 %"
        limit = study.ending.max_latency
        chosen_row = select_row_within(batch_rows, limit) if limit is not None else None
        if limit is not None:
            yield Text(
                _describe_choice(study, chosen_row, limit), "plain" if chosen_row else "warn"
            )
        yield Table(
            ("batch", "best plan", "speed-up, 99 %", beside, *_TIMES, "state"),
            tuple(_make_row(study, row) for row in batch_rows),
            tuple("win" if row == chosen_row else "" for row in batch_rows),
        )


_STATES = {"confirmed": "re-measured", "unconfirmed": "measured once"}
_TIMES = ("p50, ms", "tail, ms", "samples/s")


def select_row_within(batch_rows: Sequence[BatchRow], seconds: float) -> BatchRow | None:
    """Return the row of most samples a second whose runs keep a latency, or None."""
    fit = [row for row in batch_rows if row.within(seconds)]
    return max(fit, key=lambda row: row.per_second or 0.0, default=None)


def describe_best_plans(study: Study, batch_rows: Sequence[BatchRow]) -> str:
    """Say which plan is best from which batch on, and what of that is not sure."""
    # Name the plans by their recipes, or in full where recipes do not tell them apart.
    plans = {row.trial.plan for row in batch_rows}
    full = len({plan.recipe.name for plan in plans}) < len(plans)
    nothing = "nothing faster than the original"
    names = [
        nothing if row.state == "original" else _label_plan(study, row.trial, full=full)
        for row in batch_rows
    ]
    runs = [
        (name, [row for _, row in group])
        for name, group in groupby(zip(names, batch_rows, strict=True), key=lambda pair: pair[0])
    ]
    if len(runs) == 1:
        quantifier = "any" if batch_rows[0].state == "original" else "every"
        sentence = f"{names[0]} at {quantifier} batch that was timed"
    else:
        clauses = [f"{runs[0][0]} up to batch {runs[0][1][-1].batch}"]
        clauses += [f"{name} from batch {group[0].batch}" for name, group in runs[1:]]
        sentence = ", ".join(clauses)
    doubts = [str(row.batch) for row in batch_rows if row.state == "unconfirmed"]
    close = [str(row.batch) for row in batch_rows if row.beside and not row.beside.clear]
    if doubts:
        sentence += f"; measured once only at batch {', '.join(doubts)}"
    if close:
        first = _label_plan(study, study.best)
        sentence += f"; tied with {first} (within noise) at batch {', '.join(close)}"
    return f"{sentence}."


def _label_plan(study: Study, trial: Trial, *, full: bool = True) -> str:
    if trial.key == study.baseline.key:
        return "the original"
    label = study.label(trial.plan) if full else label_recipe(trial.plan)
    return "the original" if label == ORIGINAL else label


def _describe_choice(study: Study, chosen_row: BatchRow | None, limit: float) -> str:
    if chosen_row is None:
        return f"No batch that was timed keeps {1000 * limit:g} ms."
    times = f"{chosen_row.tail} {say.format_milliseconds(chosen_row.tail_ns)} ms"
    rate = f"{chosen_row.per_second:,.0f} samples/s" if chosen_row.per_second else "no rate"
    plan = _label_plan(study, chosen_row.trial)
    sure = " (measured once)" if chosen_row.state == "unconfirmed" else ""
    return f"Within {1000 * limit:g} ms: batch {chosen_row.batch}, {plan}{sure}: {rate}, {times}."


def _make_row(study: Study, row: BatchRow) -> tuple[str, ...]:
    tail = f"{row.tail} {say.format_milliseconds(row.tail_ns)}" if row.tail_ns else say.NONE
    return (
        str(row.batch),
        _label_plan(study, row.trial),
        say.NONE if row.state == "original" else say.describe_speedup(row.trial.shown_ratio),
        say.NONE if row.beside is None else say.describe_speedup(row.beside),
        say.format_milliseconds(row.p50_ns),
        tail,
        f"{row.per_second:,.0f}" if row.per_second else say.NONE,
        _STATES.get(row.state, row.state),
    )
