"""The writers: offline, escaped, inside their width, and never over another file."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console
from tests.unit import studies
from tests.unit.reporting.sections.test_sections import study as study_fixture

from ortune.backends.cpu import Cpu
from ortune.core.errors import OrtuneError
from ortune.core.section import Table
from ortune.core.step import Recipe
from ortune.core.study import Contribution, Study
from ortune.core.trial import Plan
from ortune.reporting.beside import build_report_parts
from ortune.reporting.blocks import find_numeric_columns, gather_parts
from ortune.reporting.html import render_html, report
from ortune.reporting.markdown import render_markdown
from ortune.reporting.terminal import FittedTable, make_renderables

study = study_fixture
HOSTILE = "<img src=x onerror=alert(1)> \"quoted\" 'single' & | `tick` [bold]x[/bold]"


def hostile(study: Study) -> Study:
    """Put markup wherever a text comes from outside."""
    bad = studies.trial("bad0" * 4, Plan(Recipe(HOSTILE), Cpu()), 0.9, why=HOSTILE)
    bad = replace(bad, error=HOSTILE, reproduce=HOSTILE)
    good = studies.trial("bad1" * 4, Plan(Recipe(HOSTILE), Cpu()), 0.4)
    return studies.changed(
        study,
        trials=(*study.trials, bad, good),
        job=replace(study.job, model=f"{HOSTILE}.onnx", budget_rule=HOSTILE),
        noise={HOSTILE: HOSTILE},
        notes=(HOSTILE,),
        command=HOSTILE,
        history=(Contribution("baseline", study.baseline.key), Contribution(HOSTILE, good.key)),
    )


class Tags(HTMLParser):
    """Collects elements, attributes and the nesting."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in ("meta", "link", "input", "img"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def parsed(page: str) -> Tags:
    tags = Tags()
    tags.feed(page)
    assert not tags.open
    return tags


def lines(study: Study, width: int) -> list[str]:
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=False)
    for item in make_renderables(gather_parts(study, terminal=True)):
        console.print(item)
    return out.getvalue().splitlines()


def test_nothing_is_asked_of_the_network(study: Study) -> None:
    tags = parsed(render_html(study))
    assert not [tag for tag, _ in tags.found if tag in ("img", "iframe", "object")]
    links = [
        a for _, attributes in tags.found for a in attributes.items() if a[0] in ("src", "href")
    ]
    assert [link for link in links if not str(link[1]).startswith("#")] == [("href", "data:,")]
    style = re.search(r"<style>(.*?)</style>", render_html(study), re.DOTALL)
    assert style and "url(" not in style[1] and "@import" not in style[1]
    policy = [a["content"] for t, a in tags.found if t == "meta" and "http-equiv" in a]
    assert policy and str(policy[0]).startswith("default-src 'none'")


def test_html_is_escaped(study: Study) -> None:
    tags = parsed(render_html(hostile(study)))
    assert "img" not in {tag for tag, _ in tags.found}
    assert not any("onerror" in attributes for _, attributes in tags.found)
    assert sum(HOSTILE in word for word in tags.words) >= 8


@pytest.mark.parametrize("width", [40, 80, 100, 160])
def test_the_terminal_keeps_its_width(study: Study, width: int) -> None:
    long = studies.trial(
        "ff66" * 4,
        Plan(Recipe("clean+int8-static(observer=percentile(p=99.9))"), Cpu(disable=("A" * 30,))),
        0.7,
        why="won a little, " * 20,
    )
    shown = lines(replace(study, trials=(*study.trials, long)), width)
    wide = [line for line in shown if cell_len(line) > width and "python -m" not in line]
    assert not wide or width < 80
    assert "\x1b" not in "".join(shown)


def test_the_terminal_starts_with_the_answer_and_names_every_plan(study: Study) -> None:
    text = "\n".join(lines(study, 80))
    assert text.startswith("1.92x as fast as the original")
    for word in ("fp16 ", "misses the budget", "SIGSEGV", "run/workers/4/job.json"):
        assert word in text


def test_the_terminal_shows_markup_as_it_is(study: Study) -> None:
    assert "[bold]x[/bold]" in "\n".join(lines(hostile(study), 160))


def test_a_table_that_fits_keeps_its_rows_and_a_wide_one_hangs_its_last_column() -> None:
    why = "because of a reason that takes more than one line to tell in full detail"
    grid = FittedTable(
        Table(("plan", "ratio", "why"), (("a" * 30, "0.5", why), ("b", "12.25", "no")))
    )

    def shown(width: int) -> list[str]:
        out = io.StringIO()
        Console(file=out, width=width).print(grid)
        return out.getvalue().splitlines()

    assert len(shown(120)) == 4
    assert shown(120)[2].endswith(why)
    narrow = shown(50)
    assert narrow[0].split() == ["plan", "ratio"]
    assert narrow[2] == "a" * 30 + "    0.5"
    assert narrow[3].startswith("    because") and narrow[5].split() == ["b", "12.25"]


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
@pytest.mark.parametrize("text", ["模型 " * 30, "x" * 30, "", "a b " * 40, "/a/b.0/MatMul_1 " * 9])
def test_cells_fit_and_their_words_are_whole(text: str, width: int) -> None:
    out = io.StringIO()
    table = Table(("one", "two", "three"), ((text, text, "x"), ("a", "", text)))
    Console(file=out, width=width).print(FittedTable(table))
    assert max(map(cell_len, out.getvalue().splitlines())) <= width
    found = out.getvalue().replace(";", " ").split()
    assert set(text.split()) <= set(found)


def test_a_row_too_wide_for_the_terminal_is_its_name_with_the_other_columns_below() -> None:
    name = "/model/encoder/layers.11/attention/MatMul"
    table = Table(("node", "operator", "ms"), ((name, "MatMul", "1.25"), ("b", "Add", "12.5")))
    out = io.StringIO()
    Console(file=out, width=44).print(FittedTable(table))
    assert out.getvalue().splitlines() == [
        "node",
        "    operator    ms",
        "─" * 44,
        name,
        "    MatMul    1.25",
        "b",
        "    Add       12.5",
    ]
    assert [*FittedTable(table).list_rows()] == [table.columns, *table.rows]


def test_only_numbers_are_set_to_the_right() -> None:
    rows = (("1.92x", "", "4 edits", "a"), ("-", "", "-1", "2"))
    assert find_numeric_columns(Table(("a", "b", "c", "d"), rows)) == (True, False, True, False)


def test_files(study: Study, tmp_path: Path) -> None:
    page = report(study, tmp_path / "r.html")
    assert page.read_text(encoding="utf-8") == render_html(study)
    with pytest.raises(OrtuneError, match="exists"):
        report(study, page)
    report(hostile(study), page, force=True)
    assert page.read_text(encoding="utf-8") == render_html(hostile(study))
    assert report(study, tmp_path / "r.md").read_text(encoding="utf-8") == render_markdown(study)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r.html", "r.md"]


def test_places_that_are_refused(study: Study, tmp_path: Path) -> None:
    with pytest.raises(OrtuneError, match=r"r\.pdf"):
        report(study, tmp_path / "r.pdf")
    with pytest.raises(OrtuneError, match="there is no folder"):
        report(study, tmp_path / "none" / "r.html")
    original = tmp_path / "model.html"
    original.write_text("a model")
    made = studies.changed(study, models={"": str(original)})
    with pytest.raises(OrtuneError, match="never overwritten"):
        report(made, original, force=True)
    assert original.read_text() == "a model"


def test_markdown_tables_are_not_broken_by_their_text(study: Study) -> None:
    rows = [line for line in render_markdown(hostile(study)).splitlines() if line.startswith("|")]
    assert rows
    for row in rows:
        bars = row.replace("\\|", "").count("|")
        assert bars in (3, 4, 5, 6, 7, 8), row
    assert "<img" not in render_markdown(hostile(study)).replace("\\<img", "").replace(
        "    <img", ""
    )


def test_what_stands_alone_takes_the_whole_width(tmp_path: Path) -> None:
    made = studies.study(tmp_path)
    both = {part.name: part.columns for part in build_report_parts(made)}
    assert (both["front"], both["next-steps"]) == (7, 5)
    unscored = replace(made, trials=tuple(replace(one, scores=()) for one in made.trials))
    alone = {part.name: part.columns for part in build_report_parts(unscored)}
    assert "front" not in alone and alone["next-steps"] == 12
