"""What a worker dies of: its own fault, or what came from outside."""

import os
import signal
from pathlib import Path

import numpy as np
import onnx
import pytest
from ortune_toys.backends.hog import Hog
from tests.unit.measurement.test_process import job

from ortune.backends.reference import Reference
from ortune.core.errors import CutShort, Interruption
from ortune.core.hardware import memory
from ortune.data.stream import write_stream
from ortune.measurement.process import Worker, WorkerFailed


@pytest.fixture
def model(tmp_path: Path) -> Path:
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { y = Abs(x) }'
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    write_stream(tmp_path / "feeds.stream", [{"x": np.ones(2, np.float32)}])
    return tmp_path / "m.onnx"


@pytest.mark.parametrize(
    ("number", "wanted"),
    [
        (signal.SIGKILL, Interruption.KILLED),
        (signal.SIGTERM, Interruption.KILLED),
        (signal.SIGHUP, Interruption.KILLED),
        (signal.SIGSEGV, None),
        (signal.SIGABRT, None),
    ],
)
def test_a_signal_tells_who_ended_it(
    model: Path, number: signal.Signals, wanted: Interruption | None
) -> None:
    if signal.getsignal(number) is signal.SIG_IGN:
        pytest.skip(f"{number.name} is ignored here, as nohup has it, and by what is started")
    with Worker(job(model, Reference())) as worker:
        worker.ask("load")
        os.kill(worker.pid, number)
        with pytest.raises(WorkerFailed, match=number.name) as caught:
            worker.ask("load")
    assert caught.value.interruption is wanted
    assert ("from outside" in caught.value.failure.reason) is (wanted is not None)
    if wanted is None:
        caught.value.demand_verdict()
        return
    with pytest.raises(CutShort) as again:
        caught.value.demand_verdict()
    assert again.value.interruption is wanted


@pytest.mark.parametrize(("limit", "wanted"), [(200 << 20, None), (None, Interruption.MEMORY)])
def test_a_limit_that_nobody_asked_for_is_no_verdict(
    model: Path, monkeypatch: pytest.MonkeyPatch, limit: int | None, wanted: Interruption | None
) -> None:
    monkeypatch.setattr(memory, "count_allowed_bytes", lambda taken=0: 200 << 20)
    with (
        Worker(job(model, Hog()), memory_limit=limit) as worker,
        pytest.raises(WorkerFailed, match="memory limit of 200 MiB") as caught,
    ):
        worker.ask("load")
        worker.ask("first")
    assert caught.value.interruption is wanted
