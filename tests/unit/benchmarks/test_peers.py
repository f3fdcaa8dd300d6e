"""The benchmark of peers: what a finished run is read as, and the table of its results."""

from __future__ import annotations

from typing import Any

import pytest
from benchmarks.peers.making import last_line, outcome
from benchmarks.peers.table import BEGIN, END, fill, standing, tables


def test_a_run_with_a_file_gives_the_facts_of_its_last_json_line() -> None:
    said = 'loading\n{"early": 1}\n100 %{"version": "1.2", "note": "x"}\n'
    assert outcome(0, said, "warning", True) == ({"version": "1.2", "note": "x"}, "")


def test_failures_are_told_apart() -> None:
    assert outcome(1, "", "Traceback\nValueError: no\n", True)[1] == "exit 1: ValueError: no"
    assert outcome(-11, "", "", False)[1] == "exit -11: no message"
    assert outcome(0, "done\n", "", False)[1] == "exit 0 without a file: done"
    assert outcome(None, "", "", False)[1].startswith("no file in")
    assert outcome(0, "done\n", "", True)[1] == "wrote a file and told nothing"


def test_messages_lose_colours_folders_and_frames() -> None:
    text = "\x1b[31mError: /some/where/deep/model.onnx is bad\x1b[0m\n    ^^^^~~~\n\n"
    assert last_line(text) == "Error: model.onnx is bad"
    assert last_line("and/or 1/2 stay") == "and/or 1/2 stay"


def _row(tool: str, value: float, **more: Any) -> dict[str, Any]:
    ratio = {"value": value, "low": value - 0.01, "high": value + 0.01}
    row = {"tool": tool, "recipe": "static", "ratio": ratio, "error": "", "backend": "cpu"}
    return row | {"size": 10_000_000, "scores": {"snr": 31.234}, "holds": ["snr>=30"]} | more


def _results(*rows: dict[str, Any]) -> dict[str, Any]:
    original = _row("", 1.0, recipe="original", size=40_000_000, holds=["snr>=30"])
    case = {
        "budgets": ["snr>=30"],
        "rows": [original, *rows],
        "self_check": {"ratio": {"value": 1.0, "low": 0.99, "high": 1.01}},
        "noise": {"runs that waited for a CPU": "2 %"},
        "judgement": {"too_noisy": False},
    }
    installed = {"install_s": 12.3, "bytes": 345e6, "error": ""}
    return {"tools": {"ort": installed}, "cases": {"toy": case}}


def test_the_table_has_the_fastest_first_and_failures_last() -> None:
    failed = {"tool": "quark", "recipe": "a|b", "error": "exit 1: why", "version": ""}
    results = _results(_row("nncf", 0.5), failed, _row("ort", 0.3, cpu_s=4.2, version="1.31.1"))
    lines = tables(results).splitlines()
    starts = [line.split(" | ")[0] for line in lines if " | 1.31.1 | " not in line]
    order = ["| onnxruntime's tools", "| NNCF", "| ", "| Quark"]
    assert [start for start in starts if start in order] == order
    row = next(line for line in lines if "0.300" in line and line.startswith("|"))
    assert "| 0.300 [0.290, 0.310] | 31.23 | 10.0 (25%) | 4 | yes |" in row
    assert any("a\\|b | exit 1: why" in line for line in lines)
    assert "| onnxruntime's tools | 1.31.1 | 12 s | 345 MB |" in lines


@pytest.mark.parametrize(
    ("own", "peer", "said"),
    [
        (0.3, 0.5, "ortune takes 0.60 of its time."),
        (0.5, 0.3, "ortune takes 1.67 of its time."),
        (0.5, 0.505, "ortune takes 0.99 of its time, inside the noise."),
    ],
)
def test_the_standing_says_who_wins(own: float, peer: float, said: str) -> None:
    case = _results(_row("ortune", own), _row("nncf", peer))["cases"]["toy"]
    assert standing(case).endswith(said)


def test_only_files_within_the_budget_on_the_cpu_provider_stand_for_a_peer() -> None:
    wrong = _row("ort", 0.1, holds=[])
    elsewhere = _row("nncf", 0.2, backend="openvino(threads=1)")
    case = _results(wrong, elsewhere, _row("ortune", 0.4))["cases"]["toy"]
    assert standing(case).endswith("no peer's file holds it.")


def test_the_page_is_filled_between_its_marks() -> None:
    page = fill(f"before\n{BEGIN}\nstale words\n{END}\nafter\n", _results())
    assert page.startswith(f"before\n{BEGIN}\n| tool")
    assert page.endswith(f"{END}\nafter\n")
    assert "stale words" not in page
    assert fill(page, _results()) == page
    with pytest.raises(ValueError, match="has no"):
        fill("nothing to fill", _results())
