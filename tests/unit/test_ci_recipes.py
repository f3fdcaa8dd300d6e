"""The shell steps of `examples/ci`, run as they are written, on a toy bundle."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from ortune.bundle.pack import pack
from ortune.core.trial import Interval
from tests.unit import studies

HOME = Path(__file__).parents[2] / "examples" / "ci"
EXPRESSION = re.compile(r"\$\{\{ *([\w.]+) *\}\}")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a bundle and two benchmarks, and `ortune` on the path."""
    program = tmp_path / "bin" / "ortune"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m ortune.cli.main "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    study = studies.study(tmp_path / "made")
    wide = Interval(1.0, 0.01, 100.0)
    trials = [replace(one, predicted=wide) for one in study.trials]
    pack(replace(study, trials=tuple(trials)), tmp_path / "toy.ortune")
    other = studies.write_model(tmp_path / "other.onnx", studies.TUNED.replace("{1,", "{9,"))
    studies.write_golden(study, study.best, other)
    pack(study, tmp_path / "wrong.ortune")
    for name, times in (("kept", 1.0), ("new", 1.0), ("slow", 2.0)):
        (tmp_path / f"{name}.json").write_text(json.dumps(saved(times)))
    return tmp_path


def saved(times: float) -> dict[str, Any]:
    """Return a saved run of five sets of eight quiet blocks."""
    blocks = [[int(times * (1_000_000 + 1000 * k))] * 12 for k in range(8)]
    row = {"model": "toy.onnx", "backend": "cpu", "turns": [blocks] * 5, "runs_each": [1] * 5}
    quiet = [[[0.0] * 12] * 8] * 5
    return {"rows": [{**row, "waited": quiet, "alike": True}], "machine": {"cpu": "A"}}


def act(place: Path, **inputs: str) -> tuple[int, str]:
    """Run the action's steps in order; return the last exit code and the job's summary."""
    action = yaml.safe_load((HOME / "action.yml").read_text())
    known = {f"inputs.{name}": one.get("default", "") for name, one in action["inputs"].items()}
    assert not {f"inputs.{name}" for name in inputs} - set(known)
    known |= {f"inputs.{name}": value for name, value in inputs.items()}
    summary = place / "summary.md"
    code = 0
    for step in action["runs"]["steps"]:
        assert step["shell"] == "bash"
        assert "${{" not in step["run"], "what is given reaches the shell as a variable"
        told = place / "output.txt"
        told.write_text("")
        given = {name: filled(text, known) for name, text in step.get("env", {}).items()}
        given |= {"GITHUB_OUTPUT": str(told), "GITHUB_STEP_SUMMARY": str(summary)}
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            env={**os.environ, **given, "RUNNER_TEMP": str(place / "temp")},
            cwd=place,
        )
        for line in told.read_text().splitlines():
            name, _, value = line.partition("=")
            known[f"steps.{step['id']}.outputs.{name}"] = value
        if code := done.returncode:
            break
    assert all(filled(one["value"], known) for one in action["outputs"].values())
    return code, summary.read_text() if summary.exists() else ""


def filled(text: str, known: Mapping[str, str]) -> str:
    """Put values in the place of expressions; a step that said nothing leaves none."""
    return EXPRESSION.sub(lambda found: known.get(found[1], ""), text)


def test_the_action_passes_what_is_as_it_was(place: Path) -> None:
    given = {"baseline": "kept.json", "candidate": "new.json"}
    code, summary = act(place, bundle="toy.ortune", time="0.3s", **given)
    assert code == 0
    assert "## ortune recheck\n\n**toy.ortune: as packed**" in summary
    assert "## ortune compare\n\n**no regression" in summary
    assert "| onnxruntime " in summary and "| row |" in summary


def test_the_action_shows_both_tables_when_something_changed(place: Path) -> None:
    given = {"baseline": "kept.json", "candidate": "slow.json"}
    code, summary = act(place, bundle="wrong.ortune", time="0", **given)
    assert code == 1
    assert "answers changed with onnxruntime" in summary and "1 of 1 row regressed" in summary


def test_the_action_does_only_what_it_is_asked(place: Path) -> None:
    assert act(place) == (0, "")
    code, summary = act(place, bundle="gone.ortune", time="0")
    assert code == 2 and summary == ""


def hook(name: str) -> list[str]:
    recipe = yaml.safe_load((HOME / "pre-commit-config.yaml").read_text())
    hooks = {one["id"]: one for one in recipe["repos"][0]["hooks"]}
    return shlex.split(hooks[name]["entry"])


def test_the_hooks_refuse_what_changed(place: Path) -> None:
    def run(*words: str) -> int:
        return subprocess.run(words, cwd=place, stdout=subprocess.DEVNULL).returncode

    run("git", "init", "-q")
    run(
        "git",
        "-c",
        "user.name=x",
        "-c",
        "user.email=x",
        "commit",
        "-q",
        "--allow-empty",
        "-m",
        "x",
    )
    recheck, compare = hook("ortune-recheck"), hook("ortune-compare")
    assert run(*recheck, "toy.ortune") == 0
    assert run(*recheck, "wrong.ortune", "toy.ortune") == 1
    assert (place / ".git/ortune/recheck-wrong.ortune.md").read_text().startswith("**wrong.ortune")
    assert run(*compare, "kept.json") == 0, "there is nothing that it replaces"
    run("git", "add", "kept.json")
    run("git", "-c", "user.name=x", "-c", "user.email=x", "commit", "-q", "-m", "x")
    assert run(*compare, "kept.json") == 0
    (place / "kept.json").write_text((place / "slow.json").read_text())
    assert run(*compare, "kept.json") == 1
    assert "regressed" in (place / ".git/ortune/compare-kept.md").read_text()
