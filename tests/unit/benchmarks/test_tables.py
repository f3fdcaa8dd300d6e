"""README and documentation hold the figures of the committed results, and no others."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from benchmarks.result_files import find_results
from benchmarks.speed.budgets import SHAPES
from benchmarks.tables import __main__ as tables
from benchmarks.tables.accuracy import lost
from benchmarks.tables.search import best_known, by_machine, found, unseen_readme
from benchmarks.tables.speed import aa_cells, aa_summary, main_job, own, rival, standing


@pytest.mark.parametrize("page", tables.PAGES, ids=lambda page: page.name)
def test_the_pages_hold_what_the_results_say(page: Path) -> None:
    text = page.read_text()
    fix = "run python -m benchmarks.tables"
    assert tables.filled(text, tables.RESULTS) == text, fix


def test_every_table_stands_on_a_page() -> None:
    assert {name for names in tables.every().values() for name in names} == set(tables.TABLES)


def test_a_figure_that_differs_is_written_anew(tmp_path: Path) -> None:
    begin, end = tables.marks("main job")
    page = f"before\n{begin}\nold\n{end}\nafter\n"
    assert "Not measured yet" in tables.filled(page, tmp_path)
    (tmp_path / "main_job.json").write_text(json.dumps(results()))
    found = tables.filled(page, tmp_path)
    assert found.startswith(f"before\n{begin}\n") and found.endswith(f"{end}\nafter\n")
    assert "old" not in found
    assert tables.filled(found, tmp_path) == found
    assert tables.filled(found.replace("0.400", "0.399"), tmp_path) == found


def test_a_table_without_an_end_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="end of main job"):
        tables.filled(tables.marks("main job")[0], tmp_path)


def row(name: str, value: float, backend: str = "cpu(threads=1)", **more: Any) -> dict[str, Any]:
    ratio = {"value": value, "low": value - 0.01, "high": value + 0.01}
    return {
        "name": name, "backend": backend, "ratio": ratio, "error": "", "holds": ["snr>=30"],
        **more,
    }  # fmt: skip


def results(*rows: dict[str, Any], too_noisy: tuple[bool, ...] = (False,)) -> dict[str, Any]:
    every = [
        row("original", 1.0),
        row("QDQ", 0.5),
        row("wrong", 0.1, holds=[]),
        row("broken", 0.1, error="it died"),
        row("openvino bf16", 0.41, backend="openvino(threads=1)"),
        row("ortune, all backends: int8", 0.4, backend="openvino(threads=1)"),
        row("ortune, cpu: int8", 0.45),
        *rows,
    ]
    blocks = {one["name"]: [[-0.9, -0.91]] * 5 for one in every}
    blocks["openvino bf16"] = [[-0.8, -0.81]] * 5
    attempts = [{"too_noisy": one, "blocks": blocks} for one in too_noisy]
    plans = {label: {"plan": f"int8 @ {label}"} for label in ("all backends", "cpu")}
    case = {
        "budget": "snr>=30", "cpu_budget": "snr>=30", "rows": every, "attempts": attempts,
        "searches": plans,
    }  # fmt: skip
    machine = {"cpu": "Some CPU", "instruction sets": "avx2 amx", "effective cpus": "2"}
    return {"machine": machine, "versions": {"onnxruntime": "1"}, "cases": {"resnet50": case}}


def test_the_rival_holds_the_budget_and_runs_where_it_may() -> None:
    case = results()["cases"]["resnet50"]
    assert [own(case, label)["ratio"]["value"] for label in ("all backends", "cpu")] == [0.4, 0.45]  # type: ignore[index]
    assert [rival(case, label)["name"] for label in ("all backends", "cpu")] == [  # type: ignore[index]
        "openvino bf16",
        "QDQ",
    ]


def test_the_standing_is_taken_turn_by_turn() -> None:
    found = standing(results()["cases"]["resnet50"], "all backends")
    assert found is not None
    assert found.value == pytest.approx(0.9048, abs=1e-3)
    assert found.low < found.value < found.high


def test_the_main_job_names_machine_budget_plan_and_noise() -> None:
    text = main_job(results(too_noisy=(True, True, True)))
    assert "Some CPU (amx), 2 CPUs; onnxruntime 1." in text
    assert (
        "| resnet50, all backends: `snr>=30` | `int8 @ all backends` | 0.400 [0.390, 0.410]"
        in text
    )
    assert "resnet50: 3 of 3 races were too noisy, the last one too." in text
    assert "too noisy" not in main_job(results())


def test_the_readme_counts_models_ahead_level_and_behind() -> None:
    whole = results(row("ortune, in 120s: int8", 0.4))
    (case,) = whole["cases"].values()
    case["searches"] = {"in 30s": {}, "in 120s": {}}
    behind = json.loads(json.dumps(case))
    behind["attempts"][-1]["blocks"]["openvino bf16"] = [[-1.0, -1.01]] * 5
    whole["cases"] = {
        "ahead, all": {**case, "machine": whole["machine"], "versions": whole["versions"]},
        "behind, all": {**behind, "machine": whole["machine"], "versions": whole["versions"]},
    }
    text = unseen_readme(whole)
    assert text.startswith("Of 2 models ortune is ahead on 1, level on 0, behind on 1. Some CPU")
    assert "| ahead | 0.40 | 0.41 | openvino bf16 | 0.905 [0." in text
    assert "| behind | 0.40 | 0.41 | openvino bf16 | 1.105 [1.1" in text
    assert "| geometric mean | 0.40 | 0.41 |" in text


def test_no_table_of_the_readme_is_of_code_long_gone() -> None:
    """Results that are older than 200 commits of `src` are measured anew, or leave the page."""
    readme = next(page for page in tables.PAGES if page.name == "README.md")
    sources = [tables.TABLES[name][0] for name in tables.names(readme.read_text())]
    assert sources
    count = ["git", "-C", str(readme.parent), "rev-list", "--count"]
    for path in (path for source in sources for path in find_results(source)):
        content = json.loads(path.read_text())
        measured = {case["commit"] for case in content.get("cases", {}).values()}
        for commit in measured or {content["commit"]}:
            asked = [*count, f"{commit.removesuffix('-dirty')}..HEAD", "--", "src"]
            done = subprocess.run(asked, capture_output=True, text=True)
            if done.returncode:
                pytest.skip("a copy without the history of this repository")
            assert int(done.stdout) <= 200, f"{path.name} is of {commit}"


def test_the_list_of_budgets_has_the_nine_shapes() -> None:
    assert list(SHAPES) == [
        "resnet50", "efficientnet-lite0", "unet", "dunet", "bert", "minilm", "gpt2", "gptkv",
        "lstm",
    ]  # fmt: skip
    for shape in SHAPES.values():
        if shape.source == "shapes":
            assert shape.budget == shape.cpu_budget == "snr(share=0)>=30"


def test_cells_of_equal_models_are_told_one_by_one() -> None:
    cell = {
        "model": "minilm", "threads": 2, "beside a neighbour": False, "claims": 0, "verdicts": 6,
        "resampled claims": 0.0125, "too noisy": 1, "half-width": 0.008, "sd of a pair": 0.005,
        "twins found in five pairs": 0.9, "seconds for 90%": 20.0, "seconds for 80%": 15.0,
        "seconds a pair": 4.0,
    }  # fmt: skip
    whole = results() | {
        "verdicts": 6, "claims between equals": 0, "called faster, called slower": [0, 0],
        "twins called faster": 0, "resampled share of claims": 0.0125, "largest of a cell": 0.0125,
        "quiet verdicts too noisy": 1, "quiet verdicts": 6, "cells": [cell],
    }  # fmt: skip
    assert "| minilm, 2 threads | 0.80 % | 0.50 % | 90 % |" in aa_cells(whole)
    assert "| quiet machine called too noisy for a verdict | 1 of 6 |" in aa_summary(whole)


def test_accuracy_lost_shows_the_first_and_the_best_file_of_each_tool() -> None:
    def row(tool: str, recipe: str, **found: Any) -> dict[str, Any]:
        return {"tool": tool, "recipe": recipe, **found}

    case = {
        "measure": "top-1",
        "score": 0.9,
        "rows": [
            row("ortune", "one", score=0.88, snr=20.0, size=0.5),
            row("ortune", "two", score=0.88, snr=25.0, size=0.3),
            row("other", "static", score=0.87, snr=19.0, size=0.25),
            row("other", "smooth", error="does not run: no kernel"),
        ],
    }
    about = {
        "machine": {"cpu": "C", "instruction sets": "", "effective cpus": 1},
        "versions": {"onnxruntime": "1"},
    }
    text = lost({**about, "cases": {"net": case, "lone": {**case, "rows": case["rows"][:2]}}})
    assert "| `two` | 0.8800 | 2.00 points | 25.0 | 30 % | not timed |" in text
    assert "| other | `static` | 0.8700 | 3.00 points | 19.0 | 25 % | not timed |" in text
    assert "does not run" not in text and text.count("| `one` | 0.8800 |") == 2


# What the tables of the search say, on results made by hand.


LABELS = ("all backends", "in 60 s", "a second time")
TIMES = {
    "original": 1.0, "QDQ": 0.5, "ortune, all backends: int8": 0.42, "ortune, in 60 s: int8": 0.6,
    "ortune, a second time: int8": 0.42, "ortune's table: int8": 0.4,
}  # fmt: skip


def case(machine: str = "Some CPU", **other: float) -> dict[str, Any]:
    times = {**TIMES, **other}
    rows = [
        {
            "name": name, "backend": "cpu(threads=1)", "error": "", "holds": ["snr>=30"],
            "ratio": {"value": time, "low": time - 0.01, "high": time + 0.01},
        }
        for name, time in times.items()
    ]  # fmt: skip
    # Blocks are log-ratios to the original: far enough apart that their noise does not matter.
    blocks = {name: [[time - 1, time - 1.001]] * 5 for name, time in times.items()}
    return {
        "budget": "snr>=30",
        "cpu_budget": "snr>=30",
        "machine": {"cpu": machine, "instruction sets": "avx2", "effective cpus": "2"},
        "versions": {"onnxruntime": "1"},
        "rows": rows,
        "attempts": [{"too_noisy": False, "blocks": blocks}],
        "searches": {label: {"plan": f"int8 {label}", "wall": 181.2} for label in LABELS},
    }


def test_the_best_known_is_nobodys_search() -> None:
    best = best_known(case())
    assert best is not None
    assert best["name"] == "ortune's table: int8"
    best = best_known(case(QDQ=0.3))
    assert best is not None
    assert best["name"] == "QDQ"


def test_what_breaks_the_budget_is_not_the_best() -> None:
    one = case(QDQ=0.3)
    one["rows"][1]["holds"] = []
    best = best_known(one)
    assert best is not None
    assert best["name"] == "ortune's table: int8"


def test_found_is_set_against_the_best_turn_by_turn() -> None:
    text = found({"cases": {"net": case()}})
    (line,) = [line for line in text.splitlines() if line.startswith("| net")]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[0] == "net: `snr>=30`" and cells[2] == "ortune's table: int8"
    whole, short = (float(cell.split()[0]) for cell in cells[3:5])
    assert (whole, short) == (pytest.approx(1.020, abs=2e-3), pytest.approx(1.221, abs=2e-3))
    assert cells[5] == "181, 181"
    assert "| geometric mean |  |  | 1.020 | 1.221 |  |" in text


def test_each_kind_of_cpu_has_a_table_of_its_own() -> None:
    results = {"cases": {"a": case(), "b": case("Another"), "c": case()}}
    assert [list(one["cases"]) for one in by_machine(results)] == [["a", "c"], ["b"]]
    text = found(results)
    assert text.index("Some CPU") < text.index("| c:") < text.index("Another") < text.index("| b:")
