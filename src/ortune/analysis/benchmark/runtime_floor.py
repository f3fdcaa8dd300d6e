"""What a runtime takes before it holds a model: the floor under memory and load time."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ortune.core.backend import Backend
from ortune.core.capabilities import HERE
from ortune.data import stream
from ortune.measurement.process import Worker, WorkerFailed, lone
from ortune.measurement.timing.turns import ready

_TEXT = """
<ir_version: 8, opset_import: ["": 13]>
one (float[1,4] x) => (float[1,4] y) { y = Add(x, x) }
"""


def floor(backend: Backend, root: Path, environment: str = HERE) -> Mapping[str, int | None]:
    """Open a one-node model in a fresh process; return its ``rss`` in bytes and ``load_ns``.

    Both are None where the backend does not take such a model.
    """
    import onnx

    root.mkdir(parents=True, exist_ok=True)
    model, feeds = root / "one.onnx", root / "one.stream"
    onnx.save(onnx.parser.parse_model(_TEXT), model)
    stream.write(feeds, [{"x": np.zeros((1, 4), np.float32)}])
    try:
        engines = root / "engines"
        job = lone(model, backend, feeds, root, "floor", environment=environment, engines=engines)
        with Worker(job, timeout_s=60) as worker:
            started = ready(worker)
            return {"rss": worker.ask("footprint")["rss"], "load_ns": started.load_ns}
    except WorkerFailed:
        return {"rss": None, "load_ns": None}
