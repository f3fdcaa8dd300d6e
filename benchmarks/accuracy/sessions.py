"""A model on a plain onnxruntime session, for scores that call it themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnxruntime
from numpy.typing import NDArray
from tests.real.task import Run


def open_plain_session(model: Path) -> Run:
    """Return ``run(**inputs)`` of a file on the CPU provider with two threads."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    outputs = [output.name for output in session.get_outputs()]
    inputs = {node_input.name for node_input in session.get_inputs()}

    def run(**feeds: Any) -> dict[str, NDArray[Any]]:
        accepted = {name: value for name, value in feeds.items() if name in inputs}
        return dict(zip(outputs, session.run(None, accepted), strict=True))

    return run
