"""What a machine with a GPU lacks is said with the line that mends it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ortune.core.capabilities import HERE
from ortune.core.hardware.gpu import Gpu
from ortune.measurement.environments.check import cuda_version, gpu_problems
from ortune.measurement.environments.installed import Environment
from ortune.measurement.environments.releases import release

BOARD = Gpu(0, "NVIDIA L4", "GPU-5e6f", "8.9")
NEW = {"driver": "580.95.05"}


def made(word: str) -> Environment:
    one = release(word)
    return Environment(one.name, str(one), one.distributions, "3.11.9", Path(one.name))


def test_the_cuda_of_an_environment_is_read_from_its_pins() -> None:
    assert cuda_version(release("cuda").distributions) == "13"
    assert cuda_version(release("cuda==1.26.0").distributions) == "12"
    assert cuda_version(release("openvino").distributions) == ""


def test_a_gpu_that_nothing_uses() -> None:
    runtimes = {"onnxruntime": "1.31.1"}
    (found,) = gpu_problems([BOARD], NEW, [made("openvino")], runtimes)
    assert found.environment == HERE and "nothing here computes on the NVIDIA L4" in found.what
    assert found.fix == "ortune env add cuda"
    (older,) = gpu_problems([BOARD], {"driver": "550.54"}, [], runtimes)
    assert older.fix == "ortune env add cuda==1.26.0"
    assert gpu_problems([BOARD], NEW, [], {"onnxruntime-gpu": "1.31.1"}) == ()
    assert gpu_problems([BOARD], NEW, [made("cuda")], runtimes) == ()


@pytest.mark.parametrize("version", ["550.54.14", "", "none"])
def test_a_driver_that_is_too_old(version: str) -> None:
    (found,) = gpu_problems([BOARD], {"driver": version}, [made("cuda"), made("openvino")], {})
    assert found.environment == "cuda-1.31.1" and "CUDA 13, which wants 580 or later" in found.what
    assert found.fix == "update the driver, or `ortune env add cuda==1.26.0`"


def test_an_environment_for_gpus_where_there_is_none() -> None:
    found = gpu_problems([], {}, [made("cuda"), made("openvino"), made("tensorrt")], {})
    assert [one.environment for one in found] == ["cuda-1.31.1", "tensorrt-10.16.1.11"]
    assert all("no NVIDIA driver" in one.what and "nvidia-smi" in one.fix for one in found)
    assert gpu_problems([], {}, [made("openvino")], {"onnxruntime-gpu": "1.31.1"}) == ()
