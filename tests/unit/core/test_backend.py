"""What a backend says of itself before anything runs."""

from __future__ import annotations

import pytest

from ortune.backends.cpu import Cpu
from ortune.backends.openvino import Openvino
from ortune.core.capabilities import Capabilities, State
from ortune.core.hardware import verified


@pytest.mark.parametrize("backend", [Cpu(), Openvino()])
def test_what_runs_on_the_cpu_is_verified_and_optimizes_for_itself(backend: Cpu) -> None:
    assert (backend.runs_on, backend.unverified) == ("cpu", "")
    assert backend.builds_with(Capabilities()) is backend


@pytest.mark.parametrize(
    ("missing", "state"),
    [
        (None, "works"),
        ("pip install onnxruntime", "not installed"),
        ("libcuda.so.1 is not there", "not loadable"),
    ],
)
def test_what_is_missing_says_the_state(missing: str | None, state: State) -> None:
    assert Cpu().state(missing) == state


def test_what_no_results_show_is_unverified() -> None:
    assert verified.reason("CPUExecutionProvider", "cpu") == ""
    assert verified.reason("NobodysExecutionProvider", "gpu") == "never run on a GPU here"
    assert verified.reason("NobodysExecutionProvider", "npu") == "never run on an NPU here"
