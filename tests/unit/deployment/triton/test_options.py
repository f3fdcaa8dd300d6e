"""What a person asks of a server is checked before anything is written."""

from __future__ import annotations

from typing import Any

import pytest

from ortune.core.errors import BadSettings
from ortune.deployment.triton.accelerators import ACCELERATORS, options
from ortune.deployment.triton.options import ServerOptions
from ortune.deployment.triton.releases import RELEASES, Carried, carried


def test_a_release_carries_what_its_build_pins() -> None:
    assert RELEASES["26.05"].onnxruntime == "1.24.4"
    assert carried("26.05", "", "") == RELEASES["26.05"]
    assert carried("31.01", "1.40.0", "") == Carried("1.40.0", "")
    assert carried("26.05", "", "2026.1.0").openvino == "2026.1.0"


def test_what_is_not_known_is_refused_by_name() -> None:
    with pytest.raises(BadSettings, match=r"release 31\.01 of Triton is not known") as error:
        carried("31.01", "", "")
    assert 'onnxruntime="VERSION"' in error.value.fix
    with pytest.raises(BadSettings, match=r"which openvino Triton 31\.01 carries"):
        carried("31.01", "1.40.0", "").demand("openvino", "31.01")


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"instances": 0}, "needs an instance"),
        ({"instances": "2@gpu0,0@gpu1"}, "cannot be read"),
        ({"instances": "2@gpu0", "gpus": (1,)}, "names devices, and so does gpus"),
        ({"instances": "1@npu0"}, "Triton has no 'npu0'"),
        ({"instances": "2@cpu", "accelerator": "cuda"}, "is for GPUs"),
        ({"accelerator": "tensorrt"}, "is for GPUs"),
        ({"delay_us": 5}, "about batches"),
        ({"queue": 5}, "about batches"),
        ({"batch": 8, "preferred": (4, 16)}, "preferred batch of 16"),
        ({"batch": 8, "preferred": (0,)}, "preferred batch of 0"),
        ({"accelerator_options": ("a=1",)}, "none is given"),
    ],
)
def test_contradictions_are_refused(fields: dict[str, Any], what: str) -> None:
    with pytest.raises(BadSettings, match=what):
        ServerOptions("26.05", **fields)


@pytest.mark.parametrize(
    ("accelerator", "text", "what"),
    [
        ("tensorrt", "precision_mode=FP8", "'FP8' is no value"),
        ("tensorrt", "precision=FP16", "no option 'precision'"),
        ("tensorrt", "precision_mode", "no option 'precision_mode'"),
        ("tensorrt", "max_workspace_size_bytes=-1", "is no value"),
        ("tensorrt", "trt_engine_cache_path=a\nb", "is no value"),
        ("tensorrt", "trt_profile_min_shapes=1x3", "is no value"),
        ("cuda", "use_tf32=yes", "is no value"),
        ("cuda", "device_id=1", "no option 'device_id'"),
    ],
)
def test_an_option_that_triton_would_swallow_is_refused(
    accelerator: str, text: str, what: str
) -> None:
    with pytest.raises(BadSettings, match=what):
        options(accelerator, [text])


def test_options_by_name() -> None:
    given = [
        "precision_mode=FP16",
        "trt_engine_cache_enable=1",
        "trt_profile_min_shapes=x:1x3,y:2",
    ]
    assert options("tensorrt", given) == dict(text.split("=") for text in given)
    with pytest.raises(BadSettings, match="given twice"):
        options("cuda", ["use_tf32=1", "use_tf32=0"])
    assert options("", []) == {}
    assert set(ACCELERATORS) == {"tensorrt", "cuda"}


def test_what_nothing_measured_is_named() -> None:
    assert ServerOptions("26.05").unmeasured == ""
    on = ServerOptions("26.05", gpus=(0, 1), accelerator="tensorrt")
    assert on.unmeasured == "GPU 0, 1 with tensorrt"
    on = ServerOptions("26.05", "1@cpu,2@gpu0,2@gpu3", accelerator="cuda")
    assert on.unmeasured == "GPU 0, 3 with cuda"
