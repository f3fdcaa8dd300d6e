"""What a short A/A says of the machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from ortune.analysis.benchmark import bench
from ortune.analysis.benchmark.bench import Fitness, State
from ortune.backends.cpu import Cpu
from ortune.core.trial import Interval
from ortune.measurement.machine.noise import Advice

EQUAL = Interval(1.001, 0.98, 1.012)
BUSY = Advice("other processes used 1.0 of 2 CPUs during the run", "stop them")


@pytest.mark.parametrize(
    ("state", "line"),
    [
        ("fit", "fit to measure: a model differed from itself by 2.0 % at most"),
        ("disturbed", f"disturbed (a model differed from itself by 2.0 % at most): {BUSY}"),
        ("not fit", f"this machine is not fit to measure now: {BUSY}"),
    ],
)
def test_it_is_one_line_with_what_to_do(state: State, line: str) -> None:
    said = str(Fitness(state, EQUAL, () if state == "fit" else (BUSY,)))
    assert said.startswith("this machine is ") and said.endswith(line)


def test_a_model_is_timed_against_itself() -> None:
    model = Path(bench.__file__).parents[2] / "data" / "zoo" / "digit_cnn.onnx"
    found = bench.measure_fitness(model, Cpu(threads=1), 32)
    assert found.equal is not None and found.equal.low < 1.2 and found.equal.high > 0.8
    assert found.state != "not fit" or found.advice


def test_what_does_not_run_is_the_reason(tmp_path: Path) -> None:
    found = bench.measure_fitness(tmp_path / "none.onnx", Cpu(), 1)
    assert found.state == "not fit"
    assert "none.onnx" in str(found)
