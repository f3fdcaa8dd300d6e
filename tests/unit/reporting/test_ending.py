"""The end of a search: what it says, in lines that fit, and as rows for a pipe."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.cells import cell_len
from tests.unit import studies
from tools import terminal

from ortune.backends.cpu import Cpu
from ortune.cli.terminal.output import print_items
from ortune.core.step import Recipe
from ortune.core.study import Study
from ortune.core.trial import Plan, Score, Verdict
from ortune.reporting.ending import StudyEnding, list_warnings


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    made = studies.study(tmp_path_factory.mktemp("ending"))
    return replace(made, root="run")


STYLES = re.compile(r"\x1b\[[0-9;]*m")


def styled(study: Study, columns: int | None, *, colour: bool) -> str:
    shown = StudyEnding(study, Path("run/report.html"))
    return terminal.capture(lambda: print_items(shown), columns, colour=colour)


def ending(study: Study, columns: int | None) -> str:
    return STYLES.sub("", styled(study, columns, colour=True))


def test_it_starts_with_the_speed_up_and_ends_with_commands(study: Study) -> None:
    lines = ending(study, 80).splitlines()
    assert len(lines) <= 17
    assert lines[0].startswith("  1.92x faster   1.000 -> 0.5200 ms   (99 %: 1.87-1.96x")
    assert lines[1].split() == ["cosine", "0.9995", "budget", "cosine>=0.999:", "proved"]
    assert lines[2].startswith("  file 5.4 -> 1.4 MB    memory ")
    assert any(re.match(r"  1  optimized graph .* winner$", line) for line in lines)
    assert "  Next    ortune pack run -o model.ortune   (use it)" in lines
    assert lines[-1] == "  Report  run/report.html"


@pytest.mark.parametrize("columns", [60, 80, 120, 200])
def test_rows_never_wrap(study: Study, columns: int) -> None:
    long = Plan(
        Recipe("int8-static(observer=percentile(p=99.9)) + clean"), Cpu(disable=("A" * 30,))
    )
    more = [studies.trial(f"{n}f" * 8, long, 0.5 + n / 50) for n in range(1, 8)]
    lines = ending(replace(study, trials=(*study.trials, *more)), columns).splitlines()
    assert max(map(cell_len, lines)) <= columns
    rows = [line for line in lines if re.match(r"  [123]  ", line)]
    assert len(rows) == 3 and all(line.count("x") for line in rows)


def test_without_colours_the_text_is_the_same(study: Study) -> None:
    colours = re.compile(r"\x1b\[[0-9;]*3[0-7][0-9;]*m")
    plain = styled(study, 80, colour=False)
    assert colours.search(styled(study, 80, colour=True)) and not colours.search(plain)
    assert STYLES.sub("", plain) == ending(study, 80)


def test_a_pipe_gets_rows_with_tabs(study: Study) -> None:
    rows = [line.split("\t") for line in ending(study, None).splitlines()]
    assert rows[0][:2] == ["1.92x faster", "1.000 -> 0.5200 ms"]
    (head,) = [place for place, row in enumerate(rows) if row[0] == "plan"]
    plans = rows[head + 1 : -1]
    assert len(plans) == len({trial.key for trial in study.trials})
    assert {len(row) for row in plans} == {len(rows[head])}
    assert rows[-1] == ["report", "run/report.html"]


def test_at_most_one_warning_is_shown_and_the_gravest_first(study: Study) -> None:
    assert list_warnings(study) == []
    shaky = studies.changed(study, doubt="labels look shuffled", too_noisy=True)
    assert list_warnings(shaky)[0] == "labels look shuffled."
    text = ending(shaky, 80)
    assert "!  labels look shuffled. (and 1 more: -v)" in text
    assert text.count("  !  ") == 1


def test_the_original_stays_with_the_reason(study: Study) -> None:
    lost = replace(study, trials=(study.baseline, *study.trials[2:-1]))
    lines = ending(lost, 80).splitlines()
    assert lines[0].startswith("  original stays   ")
    assert lines[3] == "  No plan within the accuracy budget was faster by more than the noise."
    undecided = Score("cosine", 0.9995, 1.0, 0.99, 1.0, 8, Verdict.UNDECIDED, 900, "bootstrap")
    faster = replace(study.trials[-1], scores=(undecided,))
    told = list_warnings(replace(lost, trials=(*lost.trials, faster)))
    assert any(text.startswith("Faster, but not handed out: optimized graph") for text in told)


def test_the_recorded_page_is_of_today() -> None:
    recorded = terminal.PAGE.read_text(encoding="utf-8")
    fix = "run: python -m tools.terminal"
    assert terminal.describe_answers() in recorded, fix
