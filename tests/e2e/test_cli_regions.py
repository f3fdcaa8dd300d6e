"""sensitivity and explain on the packaged model, and what they say of wrong arguments."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.unit import studies, surveys
from tests.unit.search.experiment.test_hostile_run import in_header

from ortune.cli.main import main
from ortune.data.zoo.digit_cnn import DigitCnn
from ortune.search.experiment.surveys import RegionJournal


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("digits")
    DigitCnn().write(folder)
    return folder


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "ortune" / "sensitivity"


def two_lines(capsys: pytest.CaptureFixture[str], verb: str, said: str) -> None:
    out, err = capsys.readouterr()
    assert out == ""
    lines = [line for line in err.splitlines() if line.startswith((f"ortune {verb}", "  fix"))]
    assert len(lines) == 2, err
    assert said in lines[0]
    assert "unexpected" not in err


def told(path: Path) -> dict[str, Any]:
    found = json.loads(path.read_text())
    assert isinstance(found, dict)
    return found


def test_regions_of_a_real_model(
    digits: Path, tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, data = str(digits / "model.onnx"), str(digits / "calibration")
    out, plot = tmp_path / "s.json", tmp_path / "plot.svg"
    words = ["sensitivity", model, "--data", data, "--metric", "snr", "--time", "20s"]
    words += ["--on", "cpu(threads=1)", "--step", "int8-static(head=true)"]
    assert main([*words, "--json", str(out), "--plot", str(plot)]) == 0
    found = told(out)
    layers = {node for region in found["regions"] for node in region["nodes"]}
    assert {"node_conv2d", "node_conv2d_1", "node_linear", "node_linear_1"} <= layers
    for region in found["regions"]:
        cost, gain = region["accuracy_cost"], region["time_gained"]
        assert region["error"] or cost["low"] <= cost["value"] <= cost["high"]
        assert region["error"] or gain["low"] <= gain["value"] <= gain["high"]
    assert sum(region["saved"] for region in found["regions"]) > 0.6 * 1.2e6
    assert found["whole_cost"] is not None
    assert "time saved" in capsys.readouterr().out
    assert (found["precision"], found["by"]) == ("int8-static(head=true)", "region")
    assert plot.read_text().startswith("<svg")
    applied = [
        "apply",
        model,
        "int8-static(head=true)",
        "--data",
        data,
        "-o",
        f"{tmp_path}/o.onnx",
    ]
    costs = sorted(region["accuracy_cost"]["value"] or 0.0 for region in found["regions"])
    median = str(max(0.0, costs[len(costs) // 2]))
    assert main([*applied, "--exclude-from", str(out), "--threshold", median]) == 0
    assert "excluded" in capsys.readouterr().out
    if found["finished"] == "done":
        assert [path.suffix for path in cache.iterdir()] == [".json"]
        assert main([*words, "--json", str(out)]) == 0
        again = told(out)
        assert again["kept"] is True
        assert again["regions"] == found["regions"]


def test_what_is_not_reached_is_named(
    digits: Path, tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, data = str(digits / "model.onnx"), str(digits / "calibration")
    out = tmp_path / "s.json"
    words = ["sensitivity", model, "--data", data, "--time", "0.01s", "--by", "op"]
    assert main([*words, "--on", "cpu(threads=1)", "--json", str(out)]) == 0
    found = told(out)
    assert found["finished"] == "time"
    assert set(found["not_reached"]) <= {"Conv", "Gemm"}
    assert found["not_reached"]
    assert "Not measured, out of time: " in capsys.readouterr().out
    assert not cache.exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "--data is missing"),
        (["--data", "gone"], "gone"),
        (["--metric", "nope"], "nope"),
        (["--by", "layer"], "layer"),
        (["--step", "int9"], "no step 'int9'"),
        (["--step", "simplify"], "none of its steps sets a precision"),
        (["--step", "int8-static(exclude=[gone])"], "gone"),
        (["--on", "nope"], "nope"),
        (["--plot", "plot.gif"], "plot.gif"),
        (["--plot", "gone/plot.svg"], "there is no folder"),
        (["--json", "gone/s.json"], "there is no folder"),
        (["--budget", "top1"], "cannot read budget"),
    ],
)
def test_wrong_arguments_are_two_lines(
    digits: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cache: Path,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    data = ["--data", str(digits / "calibration")] if words else []
    given = ["sensitivity", str(digits / "model.onnx"), *data, *words]
    assert main(given) == 2
    two_lines(capsys, "sensitivity", said)
    assert {path.name for path in tmp_path.iterdir()} <= {"cache"}
    assert not cache.exists()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    root = studies.write_run(surveys.study(tmp_path))
    RegionJournal(root).add(surveys.SURVEY)
    return root


def test_a_run_is_explained(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    assert main(["explain", str(run)]) == 0
    out = capsys.readouterr().out
    assert "left in float" in out
    assert "precision by region was not measured" not in out
    assert main(["explain", str(run), "--node", "fragile", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["node"]["winner"] == "float32"
    assert main(["explain", str(run), "--plan", "winner", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["plans"][0]["number"] == 2
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


def test_a_run_without_a_journal_is_explained(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / "regions.jsonl").unlink()
    assert main(["explain", str(run)]) == 0
    assert "precision by region was not measured in this run" in capsys.readouterr().out


def test_a_torn_last_line_is_left_out(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = run / "regions.jsonl"
    torn = path.read_text() + '{"survey": {"key'
    path.write_text(torn)
    assert main(["explain", str(run), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["surveys"]) == 1
    assert path.read_text() == torn


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--node", "gone"], "no node 'gone'"),
        (["--plan", "gone"], "no plan 'gone'"),
        (["--plan", "99"], "no plan '99'"),
        (["--node", "plain", "--plan", "1"], "cannot be combined"),
        (["--json", "gone/e.json"], "there is no folder"),
    ],
)
def test_what_is_not_there_is_two_lines(
    run: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert main(["explain", str(run), *words]) == 2
    two_lines(capsys, "explain", said)


def test_what_is_no_run_is_two_lines(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in (tmp_path, tmp_path / "gone", run / "header.json"):
        assert main(["explain", str(path)]) == 2
        two_lines(capsys, "explain", "no run in")
    bundle = Path(__file__).parents[1] / "fixtures/before_rooms/bundles/labels-winner.ortune"
    assert main(["explain", str(bundle)]) == 2
    two_lines(capsys, "explain", "is a bundle")


def test_a_run_of_a_newer_version_is_two_lines(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def newer(data: dict[str, Any]) -> None:
        data["job"]["versions"]["ortune"] = "99.0"
        data["job"]["workload"]["is"] = "workloads/dreaming"

    in_header(run, newer)
    assert main(["explain", str(run)]) == 2
    two_lines(capsys, "explain", "written by ortune 99.0")


@pytest.mark.parametrize("line", ["{]", "3", '{"survey": {}}', '{"dream": {}}', "[" * 100_000])
def test_a_line_of_the_journal_that_cannot_be_read_is_two_lines(
    run: Path, capsys: pytest.CaptureFixture[str], line: str
) -> None:
    with (run / "regions.jsonl").open("a") as file:
        file.write(f"{line}\n")
    assert main(["explain", str(run)]) == 2
    two_lines(capsys, "explain", "regions.jsonl")
