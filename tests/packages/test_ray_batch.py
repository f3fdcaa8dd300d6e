"""Batch inference on Ray: each row once and as here, whatever is killed on the way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from ortune.bundle.batch import BatchJob, run_batch
from ortune.data.zoo.digit_cnn import DigitCnn
from tests.unit import texts

Cluster = pytest.importorskip("ray.cluster_utils").Cluster

ROWS = 20_000
pytestmark = pytest.mark.usefixtures("ray_apart")


@dataclass(frozen=True)
class Digits:
    """A model with 20,000 rows in files of several sizes, and what is computed of them here."""

    model: Path
    data: Path
    expected: dict[str, bytes]

    def start(self, out: Path, executor: str = "ray") -> subprocess.Popen[str]:
        """Start the command on Ray."""
        words = ["run", str(self.model), "--data", str(self.data), "-o", str(out), "--json"]
        return subprocess.Popen(
            [sys.executable, "-m", "ortune.cli.main", *words, "--executor", executor],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def finish(self, process: subprocess.Popen[str], out: Path) -> dict[str, Any]:
        """Return what the command says, once every part is as it is computed here."""
        stdout, stderr = process.communicate(timeout=900)
        assert process.returncode == 0, stderr
        answer: dict[str, Any] = json.loads(stdout[stdout.index("{") :])
        assert answer["rows"] == ROWS
        assert read_parts(out) == self.expected
        return answer


def read_parts(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(out.glob("*part*"))}


def wait_for_parts(out: Path, count: int) -> None:
    until = time.monotonic() + 600
    while len(list(out.glob("part-*"))) < count:
        assert time.monotonic() < until, "no parts"
        time.sleep(0.02)


def find_workers(driver: int) -> list[psutil.Process]:
    below = psutil.Process(driver).children(recursive=True)
    return [child for child in below if "_Worker" in "".join(child.cmdline())]


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Digits:
    folder = tmp_path_factory.mktemp("digits")
    DigitCnn().write(folder)
    model = folder / "model.onnx"
    images = np.load(folder / "data" / "digits.npz")["image"]
    pixels = np.resize(images, (ROWS, *images.shape[1:]))
    pixels += np.arange(ROWS, dtype=np.float32)[:, None, None, None] * np.float32(1e-6)
    (folder / "rows").mkdir()
    for number, rows in enumerate(np.split(pixels, [1, 700, 5000, 5001, 12_345])):
        np.savez(folder / "rows" / f"{number}.npz", image=rows)
    run_batch(BatchJob(model, folder / "rows", folder / "here"))
    expected = read_parts(folder / "here")
    first = np.load(folder / "here" / "part-00000.npz")
    assert len(expected) == 200 and first["logits"].shape == (100, 10)
    return Digits(model, folder / "rows", expected)


def test_a_killed_worker_loses_no_row(digits: Digits, tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = digits.start(out)
    wait_for_parts(out, 40)
    workers = find_workers(process.pid)
    assert workers
    workers[0].kill()
    answer = digits.finish(process, out)
    assert (answer["resumed"], answer["computed_rows"]) == (0, ROWS)


def test_a_killed_driver_goes_on_where_it_was(digits: Digits, tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = digits.start(out)
    wait_for_parts(out, 60)
    below = psutil.Process(process.pid).children(recursive=True)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    psutil.wait_procs(below, timeout=60)
    before = {path.name: path.stat().st_mtime_ns for path in out.glob("part-*")}
    answer = digits.finish(digits.start(out), out)
    assert 60 <= answer["resumed"] == len(before) < 200
    assert answer["computed_rows"] == ROWS - 100 * len(before)
    assert all((out / name).stat().st_mtime_ns == at for name, at in before.items())


def test_a_lost_machine_loses_no_row(digits: Digits, tmp_path: Path) -> None:
    out = tmp_path / "out"
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        second = cluster.add_node(num_cpus=1)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("RAY_ADDRESS", cluster.address)
            process = digits.start(out)
        wait_for_parts(out, 60)
        cluster.remove_node(second, allow_graceful=False)
        digits.finish(process, out)
    finally:
        cluster.shutdown()


def test_texts_and_a_broken_row(tmp_path: Path) -> None:
    texts.write_reader(
        tmp_path / "f", "BertForSequenceClassification", id2label={"0": "a", "1": "b"}
    )
    lines = [json.dumps({"text": text}) for text in ("a cat sat", "a here") * 100]
    data, out = tmp_path / "data.jsonl", tmp_path / "out"
    data.write_text("\n".join([*lines[:190], json.dumps({"text": 3}), *lines[191:]]))
    digits = Digits(tmp_path / "f" / "onnx" / "model.onnx", data, {})
    _, stderr = (process := digits.start(out)).communicate(timeout=900)
    assert process.returncode == 2, stderr
    first, second = stderr.strip().splitlines()[-2:]
    assert "data.jsonl line 191: column 'text' holds no text" in first
    assert second.startswith("  fix: ")
    data.write_text("\n".join(lines))
    _, stderr = (process := digits.start(out)).communicate(timeout=900)
    assert process.returncode == 0, stderr
    logits = np.concatenate([np.load(part)["logits"] for part in sorted(out.glob("part-*"))])
    assert logits.argmax(1).tolist() == [0, 1] * 100
