"""A device whose CPU is emulated: an aarch64 root under qemu-user behind sshd, functional only.

``ORTUNE_AARCH64`` names its root folder, such as one of debootstrap; the kernel runs its programs
by binfmt_misc. ``ORTUNE_AARCH64_PYTHON`` is an interpreter in it with numpy and onnxruntime.
"""

from __future__ import annotations

import getpass
import json
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from ortune.cli.main import main
from ortune.core.acceptance import Outcome, classify_outcome
from ortune.data.zoo.digit_cnn import DigitCnn
from ortune.search.experiment.ledger import read_study

ROOT = os.environ.get("ORTUNE_AARCH64", "")
PYTHON = os.environ.get("ORTUNE_AARCH64_PYTHON", "python3")
SSHD = shutil.which("sshd") or "/usr/sbin/sshd"

pytestmark = pytest.mark.skipif(
    not ROOT or os.geteuid() != 0 or not Path(SSHD).exists(),
    reason="needs an aarch64 root (ORTUNE_AARCH64), sshd, and root to change into it",
)


@pytest.fixture(scope="module")
def executor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start an sshd whose every command runs in the root; give what --executor takes."""
    folder = tmp_path_factory.mktemp("ssh")
    for name in ("host", "key"):
        words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name]
        subprocess.run(words, check=True)
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    enter = folder / "enter"
    enter.write_text(f'#!/bin/sh\nexec chroot {ROOT} /bin/sh -c "cd; $SSH_ORIGINAL_COMMAND"\n')
    enter.chmod(0o755)
    (folder / "sshd_config").write_text(
        f"ListenAddress 127.0.0.1\nPort {port}\nHostKey {folder}/host\nUsePAM no\n"
        f"AuthorizedKeysFile {folder}/key.pub\nStrictModes no\nPermitRootLogin yes\n"
        f"PidFile none\nForceCommand {enter}\nMaxStartups 99\n"
    )
    (folder / "config").write_text(
        f"Host board\n HostName 127.0.0.1\n Port {port}\n User {getpass.getuser()}\n"
        f" IdentityFile {folder}/key\n IdentitiesOnly yes\n StrictHostKeyChecking no\n"
        f" UserKnownHostsFile {folder}/known\n"
    )
    (folder / "devices.toml").write_text(
        f'[board]\nhost = "board"\nconfig = "{folder}/config"\npython = "{PYTHON}"\n'
    )
    Path("/run/sshd").mkdir(exist_ok=True)
    words = [SSHD, "-D", "-f", str(folder / "sshd_config"), "-E", str(folder / "log")]
    with subprocess.Popen(words) as server:
        until = time.monotonic() + 10
        while time.monotonic() < until:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                time.sleep(0.1)
        yield f"ssh:{folder / 'devices.toml'}"
        server.terminate()


def write_search(folder: Path, on: str, seconds: str, samples: int = 100) -> list[str]:
    """Write a model and labelled samples; return the command that searches."""
    DigitCnn().write(folder)
    with np.load(folder / "data" / "digits.npz") as digits:
        np.savez(folder / "digits.npz", **{name: digits[name][:samples] for name in digits})
    words = ["optimize", str(folder / "model.onnx"), "--data", str(folder / "digits.npz")]
    return [*words, "--on", on, "--time", seconds, "-o", str(folder / "run")]


def test_doctor_says_that_it_is_emulated(
    executor: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "--executor", executor, "--json"]) == 0
    (device,) = json.loads(capsys.readouterr().out)["devices"]
    machine = device["offers"]["cpu"]["machine"]
    assert machine["system"] == "Linux aarch64" and machine["emulated by"] == "qemu-aarch64"


def test_a_search_ends_and_claims_no_speed_up(
    executor: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*write_search(tmp_path, "cpu", "60s"), "--executor", executor]
    assert main([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["machine"]["emulated by"] == "qemu-aarch64" and not told["improved"]
    assert all(trial["ratio"] is None for trial in told["trials"])
    spoken = [*told["notes"], *(t["proposed"] + t["why"] for t in told["trials"])]
    assert not [text for text in spoken if re.search(r"\d(\.\d+)?x ", text)]
    study = read_study(tmp_path / "run")
    assert study.finished in ("done", "time") and study.best is study.baseline
    outcomes = {classify_outcome(trial) for trial in study.final}
    assert Outcome.EMULATED in outcomes and Outcome.FASTER not in outcomes
    assert all(trial.emulated for trial in study.trials if trial.measurement)
    assert "imes are emulated (qemu-aarch64)" in (tmp_path / "run" / "report.html").read_text()
    assert main(["explain", str(tmp_path / "run")]) == 0
    assert "x as fast" not in capsys.readouterr().out


def test_one_search_says_what_is_best_here_and_nothing_of_an_emulated_machine(
    executor: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = write_search(tmp_path, "cpu(threads=1)", "30s", samples=300)
    assert main([*words, "--devices", executor, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    (there,) = told["machines"]
    assert (
        there["machine"]["emulated by"] == "qemu-aarch64" and "emulated by" not in told["machine"]
    )
    timed = [trial for trial in there["trials"] if trial["part"] == "final"]
    assert timed and all(trial["scores"] and trial["ratio"] is None for trial in timed)
    assert not there["improved"]
    assert "nothing is best: times are emulated" in (tmp_path / "run" / "report.html").read_text()
