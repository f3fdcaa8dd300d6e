"""What the tables of the search say, on results made by hand."""

from typing import Any

import pytest
from benchmarks.tables.search import best_known, by_machine, found

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
    assert cells[:2] == ["net: `snr>=30`", "`int8 all backends`"]
    assert cells[3] == "ortune's table: int8"
    whole, short, second = (float(cell.split()[0]) for cell in cells[4:7])
    assert (whole, short, second) == (
        pytest.approx(1.020, abs=2e-3),
        pytest.approx(1.221, abs=2e-3),
        pytest.approx(1.000, abs=2e-3),
    )
    assert cells[7] == "181, 181"
    assert "| geometric mean |  |  |  | 1.020 | 1.221 |  |  |" in text


def test_each_kind_of_cpu_has_a_table_of_its_own() -> None:
    results = {"cases": {"a": case(), "b": case("Another"), "c": case()}}
    assert [list(one["cases"]) for one in by_machine(results)] == [["a", "c"], ["b"]]
    text = found(results)
    assert text.index("Some CPU") < text.index("| c:") < text.index("Another") < text.index("| b:")
