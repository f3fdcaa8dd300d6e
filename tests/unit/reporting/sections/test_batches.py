"""The table by batch: who is best where, how sure that is, and which keeps a latency."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit import studies

from ortune.backends.cpu import Cpu
from ortune.core.section import Heading, Table, Text
from ortune.core.step import Recipe
from ortune.core.study import Ending, Header, Study
from ortune.core.trial import Block, Burst, Interval, Measurement, Pair, Plan, Trial
from ortune.measurement.workloads.arrivals import Arrivals
from ortune.reporting.sections.batches import (
    BatchesSection,
    describe_best_plans,
    select_row_within,
)
from ortune.search.batch_rows import at, read_search_batch, rows

FLOAT, INT8 = Plan(Recipe("clean"), Cpu(threads=1)), Plan(Recipe("int8"), Cpu(threads=1))


def timed(plan: Plan, value: float, ms: float, part: str = "final", entries: int = 100) -> Trial:
    """A trial whose runs all took as long, with an interval of 2 % to either side."""
    made = studies.trial(f"{plan.recipe.name}{'0' * 12}", plan, value)
    burst = Burst((int(ms * 1e6),) * entries, (0.0,) * entries)
    taken = Measurement((Pair((Block(burst, burst),)),), 1, 1, 90_000_000)
    ratio = Interval(value, value * 0.98, value * 1.02)
    return replace(made, part=part, ratio=ratio, measurement=taken)


ORIGINAL = replace(timed(FLOAT, 1.0, 2.0, "search"), key="ba5e" * 4, plan=studies.baseline().plan)
ORIGINAL = replace(ORIGINAL, ratio=Interval(1.0, 1.0, 1.0), size=5_400_000)


def study(*finals: Trial, max_latency: float | None = None, **batches: tuple[Trial, ...]) -> Study:
    """Batch 1 was searched; others are given as ``b4=(...)``, without the original."""
    header = Header(studies.job(names=()), studies.FACTS)
    ending = Ending(finished="done", max_latency=max_latency)
    more = {int(name[1:]): (ORIGINAL, *trials) for name, trials in batches.items()}
    return Study("run", header, (ORIGINAL, *finals), ending, more)


CROSSED = study(
    timed(FLOAT, 0.6, 1.0),
    b4=(timed(FLOAT, 0.7, 4.0), timed(INT8, 0.5, 2.0)),
    b16=(timed(INT8, 0.4, 9.0, "search"),),
)


def words(made: Study) -> str:
    return describe_best_plans(made, rows(made))


def test_it_is_empty_where_one_batch_was_timed() -> None:
    assert list(BatchesSection().blocks(study(timed(FLOAT, 0.6, 1.0)))) == []
    assert list(BatchesSection().blocks(study(timed(FLOAT, 0.6, 1.0), b4=()))) == []


def test_a_row_a_batch_with_what_is_known_of_its_best_plan() -> None:
    heading, said, table = BatchesSection().blocks(CROSSED)
    assert heading == Heading("Batch sizes")
    assert said == Text(
        "optimized graph up to batch 1, int8 from batch 4; measured once only at batch 16."
    )
    assert isinstance(table, Table)
    assert table.columns[3] == "vs. batch 1's best, 99 %"
    assert [(row[0], row[1], row[4], row[5], row[6], row[7]) for row in table.rows] == [
        ("1", "optimized graph · 1 thread", "1.000", "p90 1.000", "1,000", "re-measured"),
        ("4", "int8 · 1 thread", "2.000", "p90 2.000", "2,000", "re-measured"),
        ("16", "int8 · 1 thread", "9.000", "p90 9.000", "1,778", "measured once"),
    ]
    assert table.rows[0][2] == "1.67x [1.63, 1.70]"
    assert [row[3][:5] for row in table.rows] == ["-", "1.40x", "-"]
    assert table.marks == ("", "", "")


def test_one_plan_at_every_batch_is_said_so() -> None:
    made = study(timed(FLOAT, 0.6, 1.0), b4=(timed(FLOAT, 0.7, 4.0),))
    assert words(made) == "optimized graph at every batch that was timed."


def test_recipes_that_do_not_tell_plans_apart_are_named_in_full() -> None:
    other = replace(FLOAT, backend=Cpu(threads=2))
    made = study(timed(FLOAT, 0.6, 1.0), b4=(timed(other, 0.7, 4.0),))
    assert (
        words(made)
        == "optimized graph · 1 thread up to batch 1, optimized graph · 2 threads from batch 4."
    )


def test_a_change_inside_the_noise_is_called_that() -> None:
    made = study(timed(FLOAT, 0.6, 1.0), b4=(timed(FLOAT, 0.505, 4.0), timed(INT8, 0.495, 2.0)))
    assert words(made) == (
        "optimized graph up to batch 1, int8 from batch 4; "
        "tied with optimized graph · 1 thread (within noise) at batch 4."
    )


def test_what_was_confirmed_stands_before_what_only_looks_better() -> None:
    looks = timed(INT8, 0.3, 1.0, "search")
    made = study(timed(FLOAT, 0.6, 1.0), b4=(timed(FLOAT, 0.7, 4.0), looks))
    assert [(one.trial.plan, one.state) for one in rows(made)][1] == (FLOAT, "confirmed")


def test_where_every_plan_is_slower_the_original_is_best() -> None:
    made = study(timed(FLOAT, 0.6, 1.0), b4=(timed(FLOAT, 1.3, 4.0),))
    row = rows(made)[1]
    assert row.state == "original" and row.trial == ORIGINAL
    assert row.beside == pytest.approx(row.beside) and row.beside is not None
    assert row.beside.value == pytest.approx(1 / 1.3)
    assert (
        words(made)
        == "optimized graph up to batch 1, nothing faster than the original from batch 4."
    )
    none = study(b4=(timed(FLOAT, 1.3, 4.0),))
    assert words(none) == "nothing faster than the original at any batch that was timed."


@pytest.mark.parametrize(
    ("limit", "batch", "says"),
    [
        (0.0005, None, "No batch that was timed keeps 0.5 ms."),
        (0.001, 1, "batch 1, optimized graph · 1 thread: 1,000 samples/s, p90 1.000 ms."),
        (0.009, 4, "Within 9 ms: batch 4, int8 · 1 thread: 2,000 samples/s, p90 2.000 ms."),
    ],
)
def test_of_those_within_a_latency_the_one_of_most_samples_a_second_is_taken(
    limit: float, batch: int | None, says: str
) -> None:
    made = replace(CROSSED, ending=replace(CROSSED.ending, max_latency=limit))
    taken = select_row_within(rows(made), limit)
    assert (taken.batch if taken else None) == batch
    _, _, said, table = BatchesSection().blocks(made)
    assert isinstance(said, Text) and said.text.endswith(says)
    assert said.tone == ("plain" if batch else "warn")
    assert isinstance(table, Table)
    assert [row[0] for row, mark in zip(table.rows, table.marks, strict=True) if mark] == (
        [str(batch)] if batch else []
    )


def test_a_row_that_is_taken_says_that_it_is_unconfirmed() -> None:
    made = study(b4=(timed(INT8, 0.5, 2.0, "search"),), max_latency=0.003)
    texts = [b.text for b in BatchesSection().blocks(made) if isinstance(b, Text)]
    assert "batch 4, int8 · 1 thread (measured once): 2,000" in texts[1]


@pytest.mark.parametrize(("entries", "tail"), [(1000, "p99"), (100, "p90"), (99, "p50")])
def test_a_tail_has_ten_entries_beyond_it(entries: int, tail: str) -> None:
    made = study(timed(FLOAT, 0.6, 1.0, entries=entries), b4=(timed(INT8, 0.5, 2.0),))
    assert rows(made)[0].tail == tail


def test_a_workload_with_pauses_has_no_rate() -> None:
    job = replace(CROSSED.job, workload=Arrivals())
    paused = replace(CROSSED, header=replace(CROSSED.header, job=job))
    assert {one.per_second for one in rows(paused)} == {None}
    table = list(BatchesSection().blocks(paused))[-1]
    assert isinstance(table, Table) and {row[6] for row in table.rows} == {"-"}


def test_the_searchs_own_batch_is_the_workloads() -> None:
    job = replace(CROSSED.job, workload=replace(CROSSED.job.workload, batch=4))
    made = replace(CROSSED, header=replace(CROSSED.header, job=job))
    assert read_search_batch(CROSSED) == 1 and read_search_batch(made) == 4
    assert at(made, 4) is made
    assert at(made, 16).job.workload.batch == 16 and not at(made, 16).batches
