"""One search on this machine and a device: one table, one proof; ``ssh`` runs its command here."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from ortune.cli.main import main
from ortune.data.zoo.digit_cnn import DigitCnn
from ortune.search.experiment.ledger import read_study

SSH = """#!/bin/sh
while [ "$1" != -- ]; do shift; done
[ "$2" = gone ] && exit 255
exec sh -c "$3"
"""


def test_finalists_are_timed_on_other_machines_and_scored_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "bin" / "ssh"
    program.parent.mkdir()
    program.write_text(SSH)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    inventory = tmp_path / "devices.toml"
    inventory.write_text(
        f'[board]\nhost = "board"\npython = "{sys.executable}"\nfolder = "{tmp_path / "there"}"\n'
        f'[gone]\nhost = "gone"\n'
    )
    DigitCnn().write(tmp_path)
    with np.load(tmp_path / "data" / "digits.npz") as digits:
        np.savez(tmp_path / "digits.npz", **{name: digits[name][:300] for name in digits})
    words = ["optimize", str(tmp_path / "model.onnx"), "--data", str(tmp_path / "digits.npz")]
    words += ["--on", "cpu(threads=1)", "--time", "30s", "--devices", f"ssh:{inventory}"]
    words += ["--workload", "latency(batch=8)", "-o", str(tmp_path / "run")]
    assert main([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    (there,) = told["machines"]
    finals = {t["key"]: t for t in told["trials"] if t["part"] == "final" and t["scores"]}
    assert there["name"] == "board" and there["machine"] == told["machine"]
    assert any("on gone:" in note for note in told["notes"])
    timed = {trial["key"]: trial for trial in there["trials"] if trial["part"] == "final"}
    assert timed and timed.keys() <= finals.keys()
    for key, trial in timed.items():
        assert trial["ratio"] is not None and trial["artefact"] == finals[key]["artefact"]
        assert trial["scores"][0]["value"] == finals[key]["scores"][0]["value"], "scored once"
    assert there["best"] in {there["trials"][0]["key"], *timed}
    study = read_study(tmp_path / "run")
    assert study.machines["board"].best.key == there["best"]
    page = (tmp_path / "run" / "report.html").read_text()
    assert "Machines" in page and "built once and scored once" in page
    ledger = tmp_path / "run" / "machines" / "board" / "ledger.jsonl"
    before = ledger.read_bytes()
    assert main([*words, "--json"]) == 0
    assert ledger.read_bytes().startswith(before), "what was timed is not timed again"
