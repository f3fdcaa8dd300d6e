"""What `cuda` asks of onnxruntime; what it does on a GPU is in tests/gpu."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnxruntime
import pytest

from ortune.backends.bucketed import Bucketed
from ortune.backends.cuda import Cuda
from ortune.backends.runtimes.onnxruntime import plug_in
from ortune.backends.tensorrt import Tensorrt
from ortune.core.capabilities import Capabilities
from ortune.core.errors import BackendMissing, BadSettings
from ortune.core.facts import Facts, TensorSpec
from ortune.data.zoo import digit_cnn
from ortune.measurement.workloads.latency import Latency

MODEL = Path(digit_cnn.__file__).with_name("digit_cnn.onnx")
LOGGED = (
    "2026-11-23 07:40:37.2 [E:onnxruntime:Default, provider_bridge_ort.cc:2458 operator()] "
    "/onnxruntime_src/provider_bridge_ort.cc:2043 onnxruntime::Provider& Get() [ONNXRuntimeError] "
    ": 1 : FAIL : Failed to load library libonnxruntime_providers_cuda.so with error: "
    "libcublasLt.so.13: cannot open shared object file: No such file or directory\n"
)
"""Recorded of onnxruntime-gpu 1.31.1 without CUDA's libraries."""


class ScriptedSession(onnxruntime.InferenceSession):
    """Stands for onnxruntime-gpu's without a GPU: as recorded, it logs and goes on on the CPU."""

    def __init__(self, path: str, options: Any, **how: Any) -> None:
        assert how["enable_fallback"] == 0
        os.write(2, LOGGED.encode())
        super().__init__(path, options, providers=["CPUExecutionProvider"])


class ScriptedPlaced(ScriptedSession):
    """Stands for a session whose provider starts and takes no node."""

    def get_providers(self) -> list[str]:
        return [plug_in.CUDA, *super().get_providers()]


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A package that has the provider; `InferenceSession` is one of the scripted ones."""
    listed = [plug_in.CUDA, "CPUExecutionProvider"]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: listed)
    monkeypatch.setattr(onnxruntime, "InferenceSession", ScriptedSession)
    return monkeypatch


def probed(answer: plug_in.ProbedProvider) -> Any:
    return lambda provider, index=0: answer


def facts(ops: Mapping[str, int], dynamic: tuple[str, ...] = ()) -> Facts:
    size = dynamic[0] if dynamic else 1
    given = (TensorSpec("x", "float32", (size, 3)),)
    return Facts(ops, sum(ops.values()), 0, 0, {"float32": 4}, 21, 10, given, (), dynamic)


def test_every_option_that_matters_is_written_out() -> None:
    made = Cuda(device=1, memory_limit=512, search="heuristic").provider_options()
    assert made == {
        "device_id": "1",
        "gpu_mem_limit": str(512 << 20),
        "arena_extend_strategy": "kNextPowerOfTwo",
        "cudnn_conv_algo_search": "HEURISTIC",
        "use_tf32": "0",
        "enable_cuda_graph": "0",
        "prefer_nhwc": "0",
        "fuse_conv_bias": "0",
    }


def test_tf32_is_off_unless_asked_and_lossy() -> None:
    assert not Cuda().lossy and Cuda(tf32=True).lossy and Cuda(config=("sdpa_kernel=1",)).lossy
    assert Cuda(tf32=True).provider_options()["use_tf32"] == "1"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"cuda_graph": True, "io_binding": False}, "cuda_graph has no effect"),
        ({"config": ("use_tf32=1",)}, "'use_tf32' has a field of its own"),
        ({"config": ("user_compute_stream=12",)}, "has a field of its own"),
        ({"config": ("nonsense",)}, "cannot read the setting"),
    ],
)
def test_settings_that_contradict_are_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(BadSettings, match=said):
        Cuda(**wrong)


def test_it_runs_on_a_gpu_and_was_seen_to() -> None:
    assert (Cuda().runs_on, Cuda().unverified) == ("gpu", "")
    behind = Bucketed(inner=Tensorrt(), mask="mask", lengths=(8,))
    assert (behind.runs_on, behind.unverified) == ("gpu", "never run on a GPU here")


def test_without_the_package_it_says_what_to_install() -> None:
    reason = Cuda().missing()
    assert (
        reason
        and "ortune doctor env add cuda" in reason
        and "onnxruntime-gpu[cuda,cudnn]" in reason
    )
    assert Cuda().state(reason) == "not installed"
    with (
        pytest.raises(BackendMissing, match="CUDAExecutionProvider") as caught,
        Cuda().open(MODEL),
    ):
        pass
    assert len(str(caught.value).splitlines()) == 2


def test_a_silent_fallback_is_an_error_that_names_the_provider_and_the_cause(
    scripted: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    answer = plug_in.ProbedProvider("not loadable", "libcublasLt.so.13", "pip install it")
    scripted.setattr(plug_in, "probe_provider", probed(answer))
    for act in (lambda: Cuda().open(MODEL).__enter__(), lambda: Cuda().takes(MODEL)):
        with pytest.raises(BackendMissing) as caught:
            act()
        what, fix = str(caught.value).splitlines()
        assert what.startswith("CUDAExecutionProvider does not start (not loadable): Failed to")
        assert "libcublasLt.so.13" in what and "pip install it" in fix
    assert "libcublasLt" not in capfd.readouterr().err, "the error says it"


def test_a_provider_that_takes_nothing_is_an_error(
    scripted: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    scripted.setattr(onnxruntime, "InferenceSession", ScriptedPlaced)
    scripted.setattr(plug_in, "probe_provider", probed(plug_in.ProbedProvider("works")))
    with pytest.raises(BackendMissing, match=r"CUDAExecutionProvider took none of \d+ nodes"):
        Cuda().open(MODEL).__enter__()
    with pytest.raises(BackendMissing, match="took none"):
        Cuda().record(MODEL, tmp_path).__enter__()


def test_searches_follow_the_shapes() -> None:
    conv = {"Conv": 2}
    fixed = list(Cuda().variants(facts(conv), Latency(), Capabilities()))
    assert fixed == [Cuda(), Cuda(cuda_graph=True)]
    open_sizes = list(Cuda().variants(facts(conv, ("N",)), Latency(), Capabilities()))
    assert [one.search for one in open_sizes] == ["heuristic", "default"]
    assert not any(one.cuda_graph for one in open_sizes)
    plain = list(Cuda().variants(facts({"MatMul": 1}, ("N",)), Latency(), Capabilities()))
    assert plain == [Cuda()]


def test_what_is_tried_one_by_one_differs_in_one_setting() -> None:
    found = Cuda().coordinates(facts({"Conv": 1}), Capabilities())
    assert set(found) == {"prefer_nhwc", "fuse_conv_bias", "tf32", "level", "arena_growth"}
    for name, values in found.items():
        default = getattr(Cuda(), name)
        assert all(replace(one, **{name: default}) == Cuda() != one for one in values)
