"""The main job by the command line: demo, resume, report, pack, run, interruption."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from ortune.cli.demo import NEXT
from ortune.cli.main import main
from ortune.core.plugins import codec
from ortune.core.trial import Status, Trial

CPU = "cpu(threads=1)"
"""Two threads that wait for each other take twice the time of a machine that runs two tests."""


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a short demo on one backend."""
    folder = tmp_path_factory.mktemp("demo") / "demo"
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        assert main(["demo", "-o", str(folder), "--time", "5s", "--on", CPU]) == 0, err.getvalue()
    assert str(folder / "report.html") in out.getvalue()
    assert str(folder / "digit-cnn.ortune") in out.getvalue()
    assert "[1, " in err.getvalue()
    assert err.getvalue().startswith("searching for ")
    assert all(f"  {line}\n" in out.getvalue() for line in NEXT)
    return folder


def answer(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found = json.loads(capsys.readouterr().out)
    assert isinstance(found, dict)
    return found


def test_the_demo_leaves_everything(demo: Path) -> None:
    for name in ("model.onnx", "data/digits.npz", "run/ledger.jsonl", "run/ortune.toml"):
        assert (demo / name).is_file(), name
    assert "<html" in (demo / "report.html").read_text(encoding="utf-8")


def test_the_demo_again_measures_nothing_twice(
    demo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (demo / "run" / "ledger.jsonl").read_text().splitlines()
    args = ["demo", "-o", str(demo), "--time", "1s", "--on", CPU, "--json"]
    assert main(args) == 0
    found = answer(capsys)
    after = (demo / "run" / "ledger.jsonl").read_text().splitlines()
    assert after[: len(before)] == before
    made: dict[tuple[str, str], Trial] = {}
    for line in after:
        trial = codec.decode(Trial, json.loads(line))
        former = made.get((trial.key, trial.part))
        # A finalist is concluded again by what the others told, and timed again if it had to wait.
        assert former is None or former.is_disturbed or former.measurement == trial.measurement
        made[trial.key, trial.part] = trial
    shown = [trial.key for trial in made.values() if trial.status is not Status.UNCHANGED]
    assert [trial["key"] for trial in found["trials"]] == shown
    assert found["bundle"] == str(demo / "digit-cnn.ortune")


def test_another_demo_does_not_mix(demo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--model", "no-such", "-o", str(demo)]) == 2
    assert "no-such" in capsys.readouterr().err
    (demo.parent / "mine").mkdir()
    (demo.parent / "mine" / "notes.txt").write_text("kept")
    assert main(["demo", "-o", str(demo.parent / "mine")]) == 2
    assert "holds no demo" in capsys.readouterr().err
    assert (demo.parent / "mine" / "notes.txt").read_text() == "kept"


def test_the_settings_file_repeats_the_run(
    demo: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "run"
    args = ["optimize", str(demo / "run" / "ortune.toml"), "-o", str(out), "--time", "1s"]
    assert main([*args, "--json"]) == 0
    found = answer(capsys)
    assert found["run"] == str(out)
    assert found["budget"] == "top1>=base-0.01"
    assert (out / "report.html").is_file()


def test_report_and_pack_by_hand(
    demo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, page, bundle = str(demo / "run"), tmp_path / "r.html", tmp_path / "m.ortune"
    assert main(["report", run, "-o", str(page), "--json"]) == 0
    assert answer(capsys)["report"] == str(page)
    assert main(["report", run, "-o", str(page)]) == 2
    assert "--force" in capsys.readouterr().err
    assert main(["pack", run, "-o", str(bundle), "--json"]) == 0
    assert answer(capsys)["bytes"] == bundle.stat().st_size
    assert main(["pack", run, "-o", str(bundle)]) == 2
    assert main(["pack", run, "-o", str(tmp_path / "x.ortune"), "--plan", "zzz"]) == 2
    assert not (tmp_path / "x.ortune").exists()


def test_the_bundle_runs(demo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle = str(demo / "digit-cnn.ortune")
    assert main(["run", bundle, str(demo / "data"), "--json"]) == 0
    assert answer(capsys)["samples"] == 2000
    assert main(["run", bundle, str(demo / "data"), "--on", "cpu", "--json"]) == 0
    assert answer(capsys)["backend"].startswith("cpu")
    assert main(["run", bundle, str(demo / "data"), "--on", "gpu"]) == 2
    assert "no backend 'gpu'" in capsys.readouterr().err


def test_a_folder_without_a_run_is_two_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for verb in ("report", "pack"):
        assert main([verb, str(tmp_path), "-o", str(tmp_path / "x.html")]) == 2
        assert f"ortune {verb}: no run in" in capsys.readouterr().err
