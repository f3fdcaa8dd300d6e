"""Runs, bundles and files that version 0.1.0 wrote before the new layout are still read.

The script that made them needs that version; `git log -- tests/fixtures/make_before_rooms.py`
has it. What a later version writes is not what is tested here.
"""

from __future__ import annotations

import json
import re
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest

import ortune as ot
from ortune.cli import main as cli
from ortune.measurement.machine.machine import describe_machine, package_versions

HOME = Path(__file__).parents[1] / "fixtures" / "before_rooms"
MARK = "@ROOT@"
"""Stands for the folder in stored texts."""
EXPECTED = json.loads((HOME / "expected.json").read_text(encoding="utf-8"))["runs"]
KILLED = "throughput"
"""Its beginning is kept once more, as a kill left it."""
BUNDLES = {name: one for run in EXPECTED.values() for name, one in run["bundles"].items()}
TOLERANCE_DB = 40.0
"""What a bundle must keep on the machine that it was packed for; see `ortune.load`."""
FALLBACK = "its tuned model cannot run on"
DOCUMENTED = re.compile(
    rf"integer layers?|this CPU has no instructions for|golden sample's outputs"
    rf"|can be used here: it runs with|{FALLBACK}"
)
"""What `ot.load` may say of a bundle on another machine than it was packed on."""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy the fixtures to where their texts then say that they are."""
    made = tmp_path_factory.mktemp("before") / "rooms"
    shutil.copytree(HOME, made)
    for path in made.rglob("*"):
        if path.suffix in (".json", ".jsonl", ".toml") and path.is_file():
            content = path.read_bytes()
            path.write_bytes(content.replace(MARK.encode(), str(made).encode()))
    return made


@pytest.fixture(autouse=True)
def at_root(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run with an evaluate function is read where its module is."""
    monkeypatch.chdir(root)


@pytest.mark.parametrize("name", EXPECTED)
def test_a_run_says_what_it_said(root: Path, name: str) -> None:
    expected = EXPECTED[name]
    study = ot.read_study(root / "runs" / name)
    found = {
        "best": str(study.best.plan),
        "best_key": study.best.key,
        "baseline": str(study.baseline.plan),
        "budget": str(study.budget),
        "workload": str(study.job.workload),
        "finished": study.finished,
        "trials": [[t.key, t.part, str(t.status), str(t.plan)] for t in study.trials],
        "history": [[stage.name, stage.key] for stage in study.history],
        "samples": dict(study.samples),
        "notes": list(study.notes),
    }
    assert found == {key: expected[key] for key in found}
    assert study.speedup(study.best).value == pytest.approx(expected["speedup"], rel=1e-9)


@pytest.mark.parametrize("name", [*EXPECTED, "killed"])
def test_a_report_is_written(root: Path, tmp_path: Path, name: str) -> None:
    page = tmp_path / "report.html"
    assert cli.main(["report", str(root / "runs" / name), "-o", str(page)]) == 0
    text = page.read_text(encoding="utf-8")
    assert EXPECTED.get(name, EXPECTED[KILLED])["baseline"].split(" @ ")[1] in text
    assert ("Profile of classifier.onnx on cpu(threads=1)" in text) == (name == "labels")
    assert "A profile is left out" not in text


@pytest.mark.parametrize("bundle", BUNDLES)
def test_a_run_packs_as_it_did(
    root: Path, tmp_path: Path, bundle: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The winner without naming it, other trials by their key."""
    run, _, which = bundle.removesuffix(".ortune").partition("-")
    path = tmp_path / bundle
    chosen = [] if which == "winner" else ["--trial", BUNDLES[bundle]["key"][:12], "--unconfirmed"]
    words = ["pack", str(root / "runs" / run), "-o", str(path), *chosen, "--json"]
    assert cli.main(words) == 0
    assert json.loads(capsys.readouterr().out)["plan"] == BUNDLES[bundle]["plan"]
    answers_as_packed(path, root / "bundles" / bundle)


@pytest.mark.parametrize("bundle", BUNDLES)
def test_a_bundle_answers_as_it_did(root: Path, bundle: str) -> None:
    answers_as_packed(root / "bundles" / bundle, root / "bundles" / bundle)


def answers_as_packed(path: Path, stored: Path) -> None:
    """Open a bundle and compare with the answers that were stored beside it.

    After a warning that belongs to another machine, answers may differ: only their form counts,
    and a fall-back's answers are those of the original.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        engine = ot.load(path)
    said = [str(one.message) for one in caught if issubclass(one.category, RuntimeWarning)]
    assert all(DOCUMENTED.search(text) for text in said), said
    assert bool(engine.fallback) == any(FALLBACK in text for text in said)
    kind = "plain" if engine.fallback else "out"
    with engine, np.load(stored.with_suffix(".npz")) as held:
        assert engine.models
        for model in engine.models:
            found = engine[model](**part(held, "in", model))
            expected = part(held, kind, model)
            assert found.keys() == expected.keys()
            for name, value in expected.items():
                assert found[name].shape == value.shape
                assert found[name].dtype == value.dtype
                assert np.isfinite(found[name]).all()
                if engine.fallback or not said:
                    assert noise_db(value, found[name]) <= -TOLERANCE_DB, name


def part(held: np.lib.npyio.NpzFile, kind: str, model: str) -> dict[str, np.ndarray]:
    start = f"{kind}|{model}|"
    return {name.removeprefix(start): held[name] for name in held.files if name.startswith(start)}


def noise_db(expected: np.ndarray, found: np.ndarray) -> float:
    signal = float((expected.astype(np.float64) ** 2).sum())
    noise = float(((expected.astype(np.float64) - found) ** 2).sum())
    return 10 * float(np.log10(noise / signal)) if noise else float("-inf")


def test_a_killed_run_shows_what_it_had(root: Path) -> None:
    study = ot.read_study(root / "runs/killed")
    kept = [[t.key, t.part, str(t.status), str(t.plan)] for t in study.trials]
    assert 1 < len(kept) < len(EXPECTED[KILLED]["trials"])
    assert kept == EXPECTED[KILLED]["trials"][: len(kept)]
    assert study.finished == "interrupted"


def test_another_machine_does_not_go_on_with_a_killed_run(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The fixtures' CPU is no machine's."""
    run = root / "runs/killed"
    before = (run / "ledger.jsonl").read_bytes()
    assert cli.main(["optimize", str(run / "ortune.toml"), "--quiet"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert re.search(r"holds the run of another job: other (versions and )?machine$", lines[0])
    assert lines[1].startswith("  fix: choose another -o folder")
    assert (run / "ledger.jsonl").read_bytes() == before


def test_the_same_machine_goes_on_with_a_killed_run(root: Path, tmp_path: Path) -> None:
    """The header is made one of this machine's; the trials that were there stay the first."""
    run = tmp_path / "killed"
    shutil.copytree(root / "runs/killed", run)
    header = json.loads((run / "header.json").read_text())
    header["job"] |= {"machine": describe_machine(), "versions": package_versions()}
    (run / "header.json").write_text(json.dumps(header))
    had = ot.read_study(run).trials
    words = ["optimize", str(run / "ortune.toml"), "-o", str(run), "--time", "1s", "--quiet"]
    assert cli.main([*words, "--json", str(tmp_path / "told.json")]) == 0
    study = ot.read_study(run)
    assert study.trials[: len(had)] == had
    assert len(study.trials) > len(had)
    assert study.finished in ("time", "done")


def test_saved_times_are_compared(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = str(root / "bench.json")
    assert cli.main(["compare", old, old, "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)["comparisons"]
    assert told


def test_saved_ranges_are_used(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, made = root / "classifier.onnx", tmp_path / "int8.onnx"
    words = ["int8-static", "--ranges-from", str(root / "ranges.json"), "-o", str(made)]
    assert cli.main(["apply", str(model), *words]) == 0
    assert "1 of 1 range from" in capsys.readouterr().err
    assert made.stat().st_size < model.stat().st_size
