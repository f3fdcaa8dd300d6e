"""What `tensorrt` asks of onnxruntime; what it does on a GPU is in tests/gpu."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.unit.backends.test_cuda import facts

from ortune.backends.cpu import Cpu
from ortune.backends.cuda import Cuda
from ortune.backends.tensorrt import Tensorrt
from ortune.core.capabilities import Capabilities
from ortune.core.errors import BackendMissing, BadSettings
from ortune.data.zoo import digit_cnn
from ortune.measurement.workloads.latency import Latency

MODEL = Path(digit_cnn.__file__).with_name("digit_cnn.onnx")


def test_the_graphs_own_precision_sets_no_flag() -> None:
    made = Tensorrt().provider_options("/cache")
    assert made["trt_fp16_enable"] == made["trt_bf16_enable"] == "0"
    assert "trt_int8_enable" not in made, "int8 comes by Q/DQ pairs"
    assert made["trt_engine_cache_path"] == "/cache"
    assert made["trt_timing_cache_path"].endswith("tensorrt-timings"), "all models' together"
    assert Tensorrt(precision="bf16").provider_options("")["trt_bf16_enable"] == "1"


def test_without_a_folder_nothing_is_kept() -> None:
    made = Tensorrt().provider_options("")
    assert made["trt_engine_cache_enable"] == "0"
    made = Tensorrt(timing_cache=False).provider_options("")
    assert made["trt_timing_cache_enable"] == "0" and "trt_timing_cache_path" not in made
    made = Tensorrt(cache=False).provider_options("/cache")
    assert made["trt_engine_cache_enable"] == "0" and "trt_engine_cache_path" not in made


def test_profiles_become_the_three_options() -> None:
    spelled = ("image:1x3x32x32..8x3x32x32..4x3x32x32", "mask:1x7..8x7")
    made = Tensorrt(profiles=spelled).provider_options("")
    assert made["trt_profile_min_shapes"] == "image:1x3x32x32,mask:1x7"
    assert made["trt_profile_max_shapes"] == "image:8x3x32x32,mask:8x7"
    assert made["trt_profile_opt_shapes"] == "image:4x3x32x32,mask:8x7"


def test_several_profiles_are_listed_in_order() -> None:
    spelled = ("x:1x4..2x4", "x:3x4..8x4")
    made = Tensorrt(profiles=spelled).provider_options("")
    assert made["trt_profile_min_shapes"] == "x:1x4,x:3x4"
    assert made["trt_profile_max_shapes"] == "x:2x4,x:8x4"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"profiles": ("image",)}, "image"),
        ({"profiles": ("x:2x4..1x4",)}, "x"),
        ({"cuda_graph": True, "io_binding": False}, "cuda_graph has no effect"),
        ({"config": ("trt_int8_enable=1",)}, "Q/DQ pairs"),
        ({"config": ("trt_engine_cache_path=/tmp",)}, "set cache"),
    ],
)
def test_wrong_settings_are_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(BadSettings, match=said):
        Tensorrt(**wrong)


def test_it_is_lossy_always_as_tf32_cannot_be_switched_off() -> None:
    assert Tensorrt().lossy and Tensorrt().runs_on == "gpu"
    assert Tensorrt().unverified == "never run on a GPU here"
    assert "int8" in Tensorrt().arithmetic and "int8" not in Cuda().arithmetic


def test_it_is_optimized_with_cuda_or_portably() -> None:
    here = Tensorrt(device=1).builds_with(Capabilities(state="works"))
    assert here == Cuda(device=1, level="basic")
    for state in ("no device", "not loadable", "not installed"):
        assert Tensorrt().builds_with(Capabilities(state=state)) == Cpu(level="basic")  # type: ignore[arg-type]


def test_fp16_is_tried_where_the_graph_is_float32() -> None:
    found = list(Tensorrt().variants(facts({"Conv": 1}, ("N",)), Latency(), Capabilities()))
    assert found == [Tensorrt(), Tensorrt(precision="fp16")]
    fixed = list(Tensorrt().variants(facts({"Conv": 1}), Latency(), Capabilities()))
    assert fixed[-1] == Tensorrt(cuda_graph=True)


def test_without_the_package_it_says_what_to_install() -> None:
    reason = Tensorrt().missing()
    assert (
        reason and "ortune doctor env add tensorrt" in reason and "tensorrt-cu13==10.16" in reason
    )
    assert Tensorrt().state(reason) == "not installed"
    with pytest.raises(BackendMissing, match="TensorrtExecutionProvider"):
        Tensorrt().open(MODEL).__enter__()
