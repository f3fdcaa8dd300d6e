"""A runtime that really segfaults: onnxruntime 1.31.1 on recurrent layers in float16."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

import ortune as ot
from ortune.backends.cpu import Cpu
from ortune.data import stream
from ortune.measurement.job import MAIN, WorkerJob
from ortune.measurement.process import Worker, WorkerFailed

torch = pytest.importorskip("torch", reason="pip install torch==2.13.0")

pytestmark = [
    pytest.mark.skipif(
        version("onnxruntime") != "1.31.1", reason="the fault was seen in onnxruntime 1.31.1"
    ),
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recurrent model whose weights, constants, inputs and outputs are all float16."""
    path = tmp_path_factory.mktemp("half") / "recurrent.onnx"
    torch.manual_seed(0)
    torch.onnx.export(
        Recurrent().eval(),
        (torch.randn(1, 100, 128),),
        path,
        input_names=["x"],
        output_names=["y"],
        dynamic_axes={"x": {0: "b"}, "y": {0: "b"}},
        opset_version=17,
        dynamo=False,
    )
    model = onnx.load(path)
    attributes = [a for node in model.graph.node for a in node.attribute]
    for tensor in (*model.graph.initializer, *(a.t for a in attributes if a.HasField("t"))):
        if tensor.data_type == TensorProto.FLOAT:
            values = numpy_helper.to_array(tensor).astype(np.float16)
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = TensorProto.FLOAT16
    del model.graph.value_info[:]
    onnx.save(model, path)
    return path


class Recurrent(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.lstm = torch.nn.LSTM(128, 256, 2, batch_first=True, bidirectional=True)
        self.gru = torch.nn.GRU(512, 256, 1, batch_first=True)
        self.out = torch.nn.Linear(256, 500)

    def forward(self, x: object) -> object:
        hidden, _ = self.lstm(x)
        hidden, _ = self.gru(hidden)
        return self.out(hidden)


def test_the_worker_dies_and_the_caller_gets_a_value(half: Path, tmp_path: Path) -> None:
    feeds = tmp_path / "feeds.stream"
    stream.write_stream(feeds, [{"x": np.zeros((1, 100, 128), np.float16)}])
    job = WorkerJob({MAIN: half}, Cpu(threads=1), {MAIN: feeds}, tmp_path / "work")
    with Worker(job) as worker, pytest.raises(WorkerFailed, match="SIGSEGV") as caught:
        worker.ask("load")
        worker.ask("first")
    assert "ortune.measurement.worker" in caught.value.failure.reproduce


def test_bench_keeps_the_others_and_names_the_dead(half: Path) -> None:
    found = ot.bench(
        half, on="cpu(threads=1, level=basic),cpu(threads=1)", shapes={"x": (1, 100, 128)}, time=2
    )
    assert found.rows[0]["error"] is None
    assert "SIGSEGV" in found.rows[1]["error"]
    assert found.winner is None
