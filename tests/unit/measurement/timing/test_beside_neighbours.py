"""Real workers that share one CPU with processes that never stop: no ratio of slices."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
import pytest

from ortune.backends.cpu import Cpu
from ortune.core.trial import Pair
from ortune.core.workload import Span
from ortune.data import stream
from ortune.measurement.machine.load import keep_cores_busy
from ortune.measurement.process import Worker, single_model_job
from ortune.measurement.timing import stats
from ortune.measurement.timing.pairs import Effort, time_pair
from ortune.measurement.timing.turns import request_burst, start_in_turn

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/schedstat").exists() or not hasattr(os, "sched_setaffinity"),
    reason="the kernel does not say who waited",
)

MODEL = """
<ir_version: 8, opset_import: ["": 17]>
toy (float[N,384] x, float[384,384] w) => (float[N,384] y) {
  a = MatMul(x, w) b = MatMul(a, w) y = MatMul(b, w)
}
"""
SIZES = (1280, 64)
"""Rows of the slow and of the fast model: one takes longer than a time slice, one fits into it."""


@pytest.fixture
def one_cpu() -> Iterator[None]:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def worker(folder: Path, rows: int) -> Iterator[Worker]:
    """A process that multiplies so many rows, ready."""
    here = folder / str(rows)
    here.mkdir()
    onnx.save(onnx.parser.parse_model(MODEL), here / "toy.onnx")
    feeds = {"x": np.ones((rows, 384), np.float32), "w": np.eye(384, dtype=np.float32)}
    stream.write_stream(here / "feeds.stream", iter([feeds]))
    job = single_model_job(
        here / "toy.onnx", Cpu(threads=1), here / "feeds.stream", here, "neighbours"
    )
    with start_in_turn(lambda: Worker(job)) as ((process, _),):
        yield process


def cpu_ns(process: Worker, runs: int) -> float:
    """The CPU time of a run, in which no neighbour's time is."""
    before = process.ask("usage")["cpu_ns"]
    process.ask("burst", at=0, runs=runs)
    return float(process.ask("usage")["cpu_ns"] - before) / runs


def test_beside_processes_that_never_stop_a_ratio_is_true_or_not_claimed(
    tmp_path: Path, one_cpu: None
) -> None:
    slower, faster = (worker(tmp_path, rows) for rows in SIZES)
    with keep_cores_busy(2), slower as slow, faster as fast:
        pair: Pair = time_pair(slow, fast, Effort(seconds=2.0, decide=False, burst=0.1))
        truth = cpu_ns(fast, 200) / cpu_ns(slow, 20)
    waited = [share for block in pair.blocks for share in block.baseline.waited]
    assert np.mean(np.array(waited) > stats.WAITED) > 0.5, "the longer runs waited"
    wall = [ns for block in pair.blocks for ns in block.baseline.latency_ns]
    fit = [ns for block in pair.blocks for ns in block.candidate.latency_ns]
    if np.median(fit) / np.median(wall) >= 0.7 * truth:
        pytest.skip("the scheduler let both kinds of runs wait alike: there is no trap here")
    found = stats.latency_ratio([pair] * stats.PAIRS)
    assert found.high > 0.9 * truth, "no faster than it is"
    assert found.value == pytest.approx(truth, rel=0.4), "what a search sorts by is near it"
    others = [block.baseline.neighbours for block in pair.blocks]
    assert all(used is not None for used in others) and np.mean(others) > 0.3  # type: ignore[arg-type]


def test_a_burst_says_what_others_used(tmp_path: Path, one_cpu: None) -> None:
    """Beside two that never stop this process has a third of the CPU."""
    with keep_cores_busy(2), worker(tmp_path, SIZES[1]) as process:
        bursts = [request_burst(process, Span(0, 400)) for _ in range(5)]
    used = [burst.neighbours for burst in bursts if burst.neighbours is not None]
    assert len(used) == 5 and 0.3 < np.mean(used) <= (os.cpu_count() or 1) + 0.05
