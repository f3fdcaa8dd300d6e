"""A run's time by operator."""

from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import pytest

from ortune.backends.cpu import Cpu
from ortune.backends.reference import Reference
from ortune.core.backend import Backend
from ortune.core.errors import BackendMissing
from ortune.core.session import Executed, Recorded
from ortune.data import stream
from ortune.measurement.job import MAIN, WorkerJob
from ortune.measurement.process import Worker
from ortune.measurement.timing.operators import (
    find_main_source,
    operator_of_kernel,
    operator_shares,
    record_kernels,
)

MODEL = """
<ir_version: 8, opset_import: ["": 17]>
toy (float[64,64] x) => (float[64,64] y) {
  a = MatMul(x, x)
  b = Relu(a)
  c = MatMul(b, x)
  y = Sigmoid(c)
}
"""


@pytest.mark.parametrize(
    ("kernel", "found"),
    [
        ("Conv", "Conv"),
        ("FusedConv", "Conv"),
        ("NhwcFusedConv", "Conv"),
        ("FusedMatMul", "MatMul"),
        ("GroupConvolution", "Conv"),
        ("FullyConnected", "MatMul"),
        ("Fused", "Fused"),
        ("Attention", "Attention"),
    ],
)
def test_a_fused_kernel_is_its_operators(kernel: str, found: str) -> None:
    assert operator_of_kernel(kernel) == found


def test_shares_are_of_all_kernels_the_largest_first() -> None:
    nodes = (
        Executed("a", "Relu", calls=1, kernel_ns=1.0),
        Executed("b", "FusedConv", calls=1, kernel_ns=2.0),
        Executed("c", "Conv", calls=1, span_ns=5.0),
        Executed("d", "Never"),
    )
    assert operator_shares(Recorded(nodes, 1, 1.0, 1.0)) == {"Conv": 0.875, "Relu": 0.125}
    assert operator_shares(Recorded((), 1, 1.0, 1.0)) == {}


def job(folder: Path, backend: Backend) -> WorkerJob:
    onnx.save(onnx.parser.parse_model(MODEL), folder / "toy.onnx")
    stream.write_stream(folder / "x.stream", [{"x": np.ones((64, 64), np.float32)}])
    feeds = {MAIN: folder / "x.stream"}
    return WorkerJob({MAIN: folder / "toy.onnx"}, backend, feeds, folder / "worker")


def test_a_few_runs_say_where_the_time_goes(tmp_path: Path) -> None:
    with Worker(job(tmp_path, Cpu(threads=1))) as worker:
        worker.ask("load")
        times = {"load_ns": 1_000_000, "run_ns": 100_000}
        found = operator_shares(record_kernels(worker, tmp_path / "profile", seconds=1.0, **times))
    assert set(found) == {"MatMul", "Relu", "Sigmoid"}
    assert next(iter(found)) == "MatMul"
    assert sum(found.values()) == pytest.approx(1)
    assert not (tmp_path / "profile").exists()


def test_a_runtime_without_a_profiler_says_so(tmp_path: Path) -> None:
    with (
        Worker(job(tmp_path, Reference())) as worker,
        pytest.raises(BackendMissing, match="profile"),
    ):
        record_kernels(worker, tmp_path / "profile", seconds=1.0, load_ns=0, run_ns=0)
    assert not (tmp_path / "profile").exists()


@pytest.mark.parametrize(("load_ns", "run_ns"), [(600_000_000, 1), (0, 200_000_000)])
def test_what_would_take_too_long_is_not_begun(load_ns: int, run_ns: int, tmp_path: Path) -> None:
    nobody = cast(Any, None)
    with pytest.raises(BackendMissing, match="more than 1 s"):
        record_kernels(nobody, tmp_path, seconds=1.0, load_ns=load_ns, run_ns=run_ns)


def test_a_fused_kernels_time_stands_at_its_operator_or_else_at_its_name() -> None:
    op_types = {"conv": "Conv", "bn_1": "BatchNormalization", "bn_12": "Relu"}
    for kind, name, main in (
        ("FusedConv", "bn_12_fused", "conv"),
        ("Subgraph", "bn_12_fused", "bn_12"),
        ("Subgraph", "other", "conv"),
    ):
        assert find_main_source(Executed(name, kind), [*op_types], op_types) == main
