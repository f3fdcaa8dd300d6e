"""The table of machines says which plan is best on each, and claims nothing of an emulated one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.unit import studies

from ortune.backends.cpu import Cpu
from ortune.core.section import Table, Text
from ortune.core.study import Ending, Study
from ortune.core.trial import Interval, Plan, Trial
from ortune.reporting.sections.machines import MachinesSection

FAST, SMALL = (
    studies.trial(key * 8, Plan(studies.CLEAN, Cpu(threads=n)), 0.5)
    for key, n in (("a", 1), ("b", 2))
)


def timed(trial: Trial, ratio: float, **more: object) -> Trial:
    interval = Interval(ratio, 0.98 * ratio, 1.02 * ratio)
    return replace(trial, part="final", ratio=interval, **more)  # type: ignore[arg-type]


def read(study: Study) -> tuple[list[str], Table]:
    blocks = list(MachinesSection().blocks(study))
    (table,) = (block for block in blocks if isinstance(block, Table))
    return [block.text for block in blocks if isinstance(block, Text)], table


def test_each_machine_has_its_winner_and_an_emulated_one_none(tmp_path: Path) -> None:
    made = replace(studies.study(tmp_path), ending=Ending(finished="done"))
    first = studies.baseline()
    here = replace(made, trials=(first, timed(FAST, 0.5), timed(SMALL, 0.8)))
    there = replace(made, trials=(first, timed(FAST, 1.3), timed(SMALL, 0.6)))
    job = replace(made.job, machine={"cpu": "ARMv8", "emulated by": "qemu-aarch64"})
    emulated = replace(
        made,
        header=replace(made.header, job=job),
        trials=(first, timed(FAST, 0.5, emulated="qemu-aarch64")),
    )
    texts, table = read(replace(here, machines={"pi5": there, "qemu": emulated}))
    assert table.columns == ("plan", "accuracy", "here", "pi5", "qemu")
    original, fast, small = table.rows
    assert [cell.partition(" [")[0] for cell in fast[2:4]] == ["2.00x", "0.77x"]
    assert fast[2].endswith(", best") and small[3].endswith(", best")
    assert fast[4].endswith("ms, emulated") and small[4] == "not timed"
    assert original[4].endswith(", emulated")
    assert "is best: 2.00x" in texts[0] and "is best: 1.67x" in texts[1]
    assert texts[2] == "On qemu (ARMv8) nothing is best: times are emulated (qemu-aarch64)."
    assert list(MachinesSection().blocks(made)) == []


def test_a_plan_that_is_scored_there_says_so(tmp_path: Path) -> None:
    made = studies.study(tmp_path)
    here = replace(made, trials=(studies.baseline(), timed(FAST, 0.5)))
    (score,) = FAST.scores
    other = timed(replace(FAST, scores=(replace(score, value=0.5),)), 0.5)
    there = replace(made, trials=(studies.baseline(), other))
    _, table = read(replace(here, machines={"pi5": there}))
    assert "scored there: 0.5" in table.rows[1][3] and "scored there" not in table.rows[1][2]
