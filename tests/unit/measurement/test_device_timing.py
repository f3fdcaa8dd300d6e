"""Computing apart from copying: on buffers that are bound, here in the CPU's own memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import onnx

from ortune.backends.cpu import Cpu
from ortune.backends.runtimes.onnxruntime import device_session
from ortune.backends.runtimes.onnxruntime import session as ort
from ortune.core.session import DeviceTimed, Session
from ortune.data import stream
from ortune.measurement.job import MAIN, WorkerJob
from ortune.measurement.worker import tasks
from ortune.measurement.worker.workbench import Workbench

MODEL = """
<ir_version: 10, opset_import: ["" : 21]>
g (float[N, 64] x) => (float[N, 64] y) { y = Relu(x) }
"""


@contextmanager
def bench(folder: Path, *, bound: bool) -> Iterator[Workbench]:
    """A worker's state over two samples; its session has buffers, or none."""
    model, feeds = folder / "m.onnx", folder / "feeds"
    onnx.save(onnx.parser.parse_model(MODEL), model)
    rows = [{"x": np.full((rows, 64), -1, np.float32)} for rows in (1, 3)]
    stream.write_stream(feeds, iter(rows))
    with ExitStack() as stack:
        found = Workbench(WorkerJob({MAIN: model}, Cpu(), {MAIN: feeds}, folder), stack)
        made = ort.make_session_options(1, "basic", verbose=False)
        opening = device_session.open_device_session(
            model, made, [("CPUExecutionProvider", {})], device="cpu", io_binding=bound
        )
        session: Session = stack.enter_context(opening)
        assert isinstance(session, DeviceTimed) == bound
        found.sessions[MAIN] = session
        yield found


def test_every_round_is_staged_and_computed(tmp_path: Path) -> None:
    with bench(tmp_path, bound=True) as one:
        found = tasks.device(one, seconds=5)
    assert len(found["compute_ns"]) == 2 and min(found["compute_ns"]) > 0
    assert found["gpus"] == [], "a CPU is no GPU"


def test_what_lies_in_the_cpus_memory_is_not_timed_apart(tmp_path: Path) -> None:
    with bench(tmp_path, bound=False) as one:
        assert tasks.device(one) == {"compute_ns": [], "gpus": []}
