"""Processes side by side against one with as many instances; real sessions on the CPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.unit.studies import MODEL, write_model

from ortune.cli.main import main
from ortune.core.hardware.cpus import effective_cpus


@pytest.mark.parametrize("count", [1, 2])
def test_they_are_compared_as_throughput_and_as_latency(
    count: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if count > effective_cpus():
        pytest.skip(f"{count} processes on the CPU take {count} CPUs")
    model, out = write_model(tmp_path / "toy.onnx", MODEL), tmp_path / "out.json"
    words = ["--processes", str(count), "--on", "cpu(threads=1)", "--seconds", "0.2"]
    assert main(["bench", str(model), *words, "--sets", "1", "--json", str(out)]) == 0
    shown = capsys.readouterr().out
    assert ("2 processes, 1 instance each" if count == 2 else "1 process, 1 instance") in shown
    found = json.loads(out.read_text())
    together, apart, alone = found["side_by_side"]
    assert (together["processes"], together["instances"]) == (1, count)
    assert (apart["processes"], apart["instances"]) == (count, 1)
    assert (alone["processes"], alone["instances"]) == (1, 1)
    for one in (together, apart, alone):
        row = found["rows"][one["row"]]
        assert row["error"] is None and row["processes"] == one["processes"]
        assert one["per_second"] > 0 and one["run_p99_ns"] >= one["run_p50_ns"] > 0
    assert together["latency_ratio"] is None and together["time_ratio"]["value"] == 1
    assert apart["latency_ratio"]["low"] <= apart["latency_ratio"]["value"]
    assert main(["cost", str(out), "--price", "2/h"]) != 0
    assert "no latencies of single runs" in capsys.readouterr().err


def test_what_contradicts_processes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "toy.onnx", "--processes", "1", "--batches", "1,8"]) != 0
    assert "--processes says what is run, and so does --batches" in capsys.readouterr().err
    assert main(["bench", "toy.onnx", "--processes", "10000"]) != 0
    assert "--processes" in capsys.readouterr().err
