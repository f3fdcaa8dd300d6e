"""By what a winner was chosen is said, and why what breaks a bound is not handed out."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit import studies

from ortune.backends.cpu import Cpu
from ortune.core.acceptance import Goal
from ortune.core.section import Table, Text
from ortune.core.study import Ending, Header, Study
from ortune.core.trial import Interval, Plan, Trial
from ortune.reporting.sections.ranking import RankingSection
from ortune.reporting.sections.verdict import VerdictSection, describe_answer

MB = 1_000_000


def study(wanted: Goal, *finals: Trial) -> Study:
    header = Header(replace(studies.job(names=()), wanted=wanted), studies.FACTS)
    return Study("run", header, (studies.baseline(), *finals), Ending(finished="done"))


def final(key: str, value: float, size: int) -> Trial:
    """A finalist; the original has 5.4 MB."""
    made = studies.trial(key * 4, Plan(studies.CLEAN, Cpu(threads=1)), value)
    ratio = Interval(value, value - 0.02, value + 0.02)
    return replace(made, part="final", ratio=ratio, size=size)


LEVEL, QUICK = final("1111", 1.0, 2 * MB), final("2222", 0.5, 5 * MB)


def texts(study: Study) -> dict[str, str]:
    return {b.text: b.tone for b in VerdictSection().blocks(study) if isinstance(b, Text)}


def why(study: Study, trial: Trial) -> str:
    (table,) = (b for b in RankingSection().blocks(study) if isinstance(b, Table))
    ranked = {row[1] + row[4]: row[-1] for row in table.rows}
    size = f"{(trial.size or 0) / MB:.3g}"
    return ranked[f"{study.speedup(trial).value:.2f}x{size}"]


def test_the_smallest_is_named_by_its_size_first() -> None:
    made = study(Goal("size"), LEVEL, QUICK)
    assert describe_answer(made).startswith(
        "size 2 of 5.4 MB, 1.00x as fast as the original (99 %"
    )
    said = "Chosen by: the least size of the plans that are no slower (--prefer size)."
    assert texts(made)[said] == "plain"
    assert why(made, QUICK) == "finalist: needs more size than the winner"
    assert why(made, LEVEL).startswith("the winner: ")


def test_of_memory_the_peak_is_named() -> None:
    assert LEVEL.measurement is not None
    lean = replace(LEVEL, measurement=replace(LEVEL.measurement, peak_rss=50 * MB))
    assert describe_answer(study(Goal("memory"), lean)).startswith(
        "memory 50 of 90 MB, 1.00x as fast"
    )


def test_speed_alone_is_not_explained() -> None:
    made = study(Goal(), LEVEL, QUICK)
    assert describe_answer(made).startswith("2.00x as fast")
    assert not any("Chosen by" in text for text in texts(made))


def test_a_bound_is_said_and_what_breaks_it_tells_so_in_its_row() -> None:
    made = study(Goal(max_size=3 << 20), final("3333", 0.8, 3 * MB), QUICK)
    assert describe_answer(made).startswith("1.25x as fast")
    assert "Chosen by: the fastest plan (--max-size 3 MiB)." in texts(made)
    assert why(made, QUICK) == "finalist: 4.768 MiB is above --max-size 3 MiB"


def test_where_nothing_keeps_a_bound_it_is_said_that_the_original_does_not_either() -> None:
    made = study(Goal(max_size=1 << 20), QUICK)
    assert describe_answer(made) == (
        "the original stays, but misses a limit: 5.15 MiB is above --max-size 1 MiB"
    )
    warned = [text for text, tone in texts(made).items() if tone == "warn"]
    assert warned == [
        describe_answer(made),
        "No plan meets this limit and the accuracy budget without being slower.",
    ]


@pytest.mark.parametrize("prefer", ["size", "memory"])
def test_where_nothing_needs_less_the_original_stays(prefer: str) -> None:
    made = study(Goal("size" if prefer == "size" else "memory"), final("4444", 1.5, MB))
    said = f"no plan with less {prefer} was within the accuracy budget and no slower"
    assert describe_answer(made) == f"the original stays: {said}"


def test_a_faster_plan_that_needs_more_is_said_to_lose_to_the_original() -> None:
    larger = final("5555", 0.5, 9 * MB)
    made = study(Goal("size"), larger)
    assert made.best == made.baseline
    assert why(made, larger) == "finalist: needs more size than the original"
