"""A profile's report: the time, the limits and the actions, in every writer."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from tests.unit.analysis.profiling.test_roofline import (
    CEILINGS,
    COPY,
    PRODUCT,
    SCALAR,
    SMALL,
    kernel,
)
from tests.unit.reporting.test_charts import HOSTILE
from tests.unit.reporting.test_reporting import parsed
from tests.unit.studies import study

from ortune.analysis.profiling import files
from ortune.core.errors import OrtuneError
from ortune.core.profile import Action, Kernel, Profile
from ortune.core.section import Bars, Lines, Table
from ortune.core.study import Study
from ortune.core.trial import Interval
from ortune.reporting import profile as subject
from ortune.reporting.beside import build_report_parts
from ortune.reporting.html import render_html
from ortune.reporting.markdown import render_markdown, render_markdown_parts
from ortune.reporting.profile import build_roofline_blocks
from ortune.reporting.python import profile as profile_page
from ortune.reporting.terminal import make_renderables

KERNELS = tuple(
    replace(one, name=f"k{place}", op_type=op, region="r", span_ns=one.time_ns)
    for place, (op, one) in enumerate(
        (("MatMul", PRODUCT), ("Add", COPY), ("Relu", SMALL), ("Neg", SCALAR))
    )
)
ACTIONS = (
    Action("quantize", HOSTILE, "why", ("k0",), 4.3e7, 3e7, steps=("simplify", "int8-dynamic")),
    Action("added", "3 casts", "no transform yet", ("k9",), 1e6),
)


def profile(*kernels: Kernel) -> Profile:
    chosen = kernels or KERNELS
    total = sum(one.time_ns for one in chosen)
    return Profile("m.onnx", "cpu", chosen, 9, total, total, ceilings=CEILINGS, notes=(HOSTILE,))


ACTING = replace(profile(), actions=ACTIONS)


def test_the_page_is_offline_and_escaped() -> None:
    tags = parsed(profile_page.render_profile(ACTING))
    assert not {"img"} & {tag for tag, _ in tags.found}
    assert any(HOSTILE in word for word in tags.words)
    assert any("simplify int8-dynamic" in word for word in tags.words)


def test_names_steer_neither_a_terminal_nor_a_reader(tmp_path: Path) -> None:
    """Names of nodes are a stranger's: no file that is read by people has their characters raw."""
    name = "red\x1b[31m\u202eback\x9b"
    kernels = [replace(one, name=name, op_type=name, sources=(name,)) for one in KERNELS]
    hostile = replace(profile(*kernels), model=f"{name}.onnx", notes=(name,))
    page = profile_page.render_profile(hostile)
    text = render_markdown_parts(subject.build_profile_parts(hostile))
    _, table, whole, _ = files.write_profile(hostile, tmp_path)
    for written in (page, text, table.read_text(), whole.read_text()):
        assert not set(written) & set("\x1b\u202e\x9b")
    assert all(r"red\x1b[31m\u202eback\x9b" in written for written in (page, table.read_text()))
    assert files.read_profile(tmp_path).kernels[0].name == name


def test_bars_by_operator_sum_to_the_time_of_the_kernels() -> None:
    many = tuple(replace(kernel(f"Op{n}", ns=1e6 * (n + 1)), region="r") for n in range(40))
    first = subject.build_profile_parts(profile(*many))[0]
    bars = next(block for block in first.blocks if isinstance(block, Bars))
    assert len(bars.bars) == 16 and bars.bars[-1].label == "25 more"
    assert sum(bar.parts[0] for bar in bars.bars) == pytest.approx(40 * 41 / 2)


def test_the_plot_has_a_roof_with_its_knee_and_every_kernel_that_computes() -> None:
    (plot,) = [b for b in build_roofline_blocks(profile()) if isinstance(b, Lines)]
    knee = plot.lines[0].points[1]
    assert knee == (pytest.approx(100e9 / 20e9), 100e9)
    assert {mark.tone for mark in plot.marks} == {"compute", "bandwidth", "cache", "overhead"}
    assert len(plot.marks) == 4


def test_kernels_with_most_to_gain_come_first() -> None:
    tables = [b for b in build_roofline_blocks(profile()) if isinstance(b, Table)]
    assert tables[-1].rows[0][0] == "MatMul"
    assert [row[2] for row in tables[-1].rows[:2]] == ["compute", "bandwidth"]


def test_without_ceilings_only_the_time_is_told() -> None:
    names = [
        part.name
        for part in subject.build_profile_parts(replace(profile(), ceilings=None, notes=()))
    ]
    assert names == ["time"]


def test_a_measured_action_is_told_as_measured_and_an_untried_one_as_such() -> None:
    tried = (replace(ACTIONS[0], measured=Interval(0.5, 0.4, 0.6)), ACTIONS[1])
    table = next(b for b in subject.build_action_blocks(tried) if isinstance(b, Table))
    assert "measured" in table.columns
    assert "0.5" in table.rows[0][3] and table.rows[1][3] == "not tried"
    plain = next(b for b in subject.build_action_blocks(ACTIONS) if isinstance(b, Table))
    assert "measured" not in plain.columns


def test_the_other_writers_take_it() -> None:
    made = subject.build_profile_parts(ACTING)
    assert "| MatMul |" in render_markdown_parts(made)
    out = io.StringIO()
    for item in make_renderables(made):
        Console(file=out, width=80).print(item)
    assert max(map(len, out.getvalue().splitlines())) <= 80


def test_files(tmp_path: Path) -> None:
    path = profile_page.write_page(ACTING, tmp_path / "p.html")
    assert path.read_text(encoding="utf-8") == profile_page.render_profile(ACTING)
    with pytest.raises(OrtuneError, match="exists"):
        profile_page.write_page(ACTING, path)


def test_the_longest_kernels_come_first_with_their_sources() -> None:
    tables = [b for b in subject.build_profile_parts(profile())[0].blocks if isinstance(b, Table)]
    assert [row[1] for row in tables[-1].rows] == ["MatMul", "Add", "Relu", "Neg"]
    assert tables[-1].rows[0][0] == "MatMul"


def test_where_it_ran_is_told_where_there_were_two_places() -> None:
    assert "placement" not in [part.name for part in subject.build_profile_parts(profile())]
    two = (replace(KERNELS[0], provider="EP"), *KERNELS[1:])
    why = {"k1": "the provider claimed no Add"}
    made = replace(profile(*two), placement={"EP": 1, "cpu": 3}, fallbacks=why)
    (part,) = [part for part in subject.build_profile_parts(made) if part.name == "placement"]
    times, left = (block for block in part.blocks if isinstance(block, Table))
    assert [row[:3] for row in times.rows] == [("EP", "1", "1"), ("cpu", "3", "3")]
    assert left.rows == tuple(why.items())


def test_a_profile_of_nothing_is_a_page_too() -> None:
    empty = Profile("m.onnx", "cpu", (), 1, 1.0, 1.0, ceilings=CEILINGS)
    assert parsed(profile_page.render_profile(empty)).found
    for item in make_renderables(subject.build_profile_parts(empty)):
        Console(file=io.StringIO(), width=80).print(item)


def test_profiles_in_a_runs_folder_are_part_of_its_report(tmp_path: Path) -> None:
    made = study(tmp_path)
    assert "Profile of" not in render_html(made)
    folder = Path(made.root) / "winner"
    files.write_profile(ACTING, folder)
    assert files.read_profile(folder) == ACTING
    assert "Profile of m.onnx on cpu" in render_html(made)
    assert "## Profile of m.onnx on cpu" in render_markdown(made)
    ids = [said["id"] for _, said in parsed(render_html(made)).found if "id" in said]
    assert "profile-1" in ids and len(ids) == len(set(ids))
    assert "<summary><h2>What limits it</h2></summary>" in render_html(made)
    (folder / files.WHOLE).write_text("{}")
    assert "A profile is left out" in render_html(made)


def compared(study: Study) -> Bars | None:
    parts = {part.name: part for part in build_report_parts(study)}
    found = parts["operators"].blocks if "operators" in parts else ()
    return next((block for block in found if isinstance(block, Bars)), None)


def test_operators_of_original_and_winner_stand_side_by_side(tmp_path: Path) -> None:
    made = study(tmp_path)
    assert compared(made) is None
    root = Path(made.root)
    before = replace(profile(), model=made.models[""])
    files.write_profile(before, root / "one")
    alone = compared(made)
    assert alone is not None and alone.segments == ("original",)
    after = profile(replace(KERNELS[0], op_type="QMatMul", time_ns=1e6), KERNELS[1])
    artefact = f"{root.name}/{made.best.artefact}/toy.onnx"  # as given beside the run's folder
    files.write_profile(replace(after, model=artefact), root / "two")
    both = compared(made)
    assert both is not None and both.segments == ("original", "winner") and not both.stacked
    lengths = {bar.label: bar.parts for bar in both.bars}
    assert lengths["QMatMul"] == (0.0, pytest.approx(1.0))
    assert lengths["Add"][0] == lengths["Add"][1] > 0
    assert lengths["MatMul"][1] == 0.0
    order = [part.name for part in build_report_parts(made)]
    assert order.index("front") < order.index("operators") < order.index("ranking")


def test_without_profiles_the_shares_of_the_set_up_stand_there(tmp_path: Path) -> None:
    made = study(tmp_path)
    told = replace(made, header=replace(made.header, by_operator={"Relu": 0.25, "Add": 0.75}))
    bars = compared(told)
    assert bars is not None and bars.unit == "ms a run"
    assert [(bar.label, bar.parts) for bar in bars.bars] == [("Add", (0.75,)), ("Relu", (0.25,))]
    best = replace(made.trials[-1], by_operator={"Add": 1.0})
    both = compared(replace(told, trials=(*made.trials[:-1], best)))
    assert both is not None and both.segments == ("original", "winner")
    assert [bar.parts for bar in both.bars] == [(0.75, pytest.approx(0.52)), (0.25, 0.0)]
