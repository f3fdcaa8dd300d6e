"""What the runtime logs: harmless lines explained, the cause of a failure kept."""

from __future__ import annotations

import os

import pytest

from ortune.runtimes.onnxruntime import messages

FAILED = (
    "\x1b[1;31m2026-11-23 07:40:37.231127928 [E:onnxruntime:Default, provider_bridge_ort.cc:2458 "
    "operator()] /onnxruntime_src/onnxruntime/core/session/provider_bridge_ort.cc:2043 "
    "onnxruntime::Provider& onnxruntime::ProviderLibrary::Get() [ONNXRuntimeError] : 1 : FAIL : "
    "Failed to load library /x/libonnxruntime_providers_cuda.so with error: libcublasLt.so.13: "
    "cannot open shared object file: No such file or directory\n\x1b[m\n"
)
"""Recorded of onnxruntime-gpu 1.31.1 without CUDA's libraries."""
MEMCPY = (
    "2026-11-23 07:40:37.2 [W:onnxruntime:, transformer_memcpy.cc:111 ApplyImpl] 6 Memcpy nodes "
    "are added to the graph main_graph for CUDAExecutionProvider.\n"
)


def write(text: str) -> None:
    os.write(2, text.encode())


def test_the_cause_is_found_behind_harmless_lines(capfd: pytest.CaptureFixture[str]) -> None:
    with messages.captured() as log:
        write(MEMCPY + FAILED)
    assert log.reason.startswith("Failed to load library /x/libonnxruntime_providers_cuda.so")
    assert log.explained == [why for pattern, why in messages.HARMLESS if "Memcpy" in pattern]
    err = capfd.readouterr().err
    assert "libcublasLt.so.13" in err and "Memcpy" not in err


def test_what_is_verbose_passes(capfd: pytest.CaptureFixture[str]) -> None:
    with messages.captured(verbose=True) as log:
        write(MEMCPY)
    assert log.text == "" and "Memcpy" in capfd.readouterr().err


def test_stderr_is_given_back_after_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="broken"), messages.captured():
        raise ValueError("broken")
    write("after\n")
    assert capfd.readouterr().err == "after\n"


@pytest.mark.parametrize(
    "line",
    [
        "CUDA failure 2: out of memory",
        "TensorRT EP could not deserialize engine from cache",
        "[E] Error Code 4: API Usage Error (Network has dynamic or shape inputs)",
    ],
)
def test_errors_are_kept(line: str) -> None:
    assert messages.explained(line) == ""


def test_every_explanation_is_one_line() -> None:
    assert all(why and "\n" not in why and len(why) < 100 for _, why in messages.HARMLESS)
