"""The table of releases, and how some of it are named."""

from pathlib import Path

import pytest

from ortune.core.backend import Backend
from ortune.core.capabilities import HERE
from ortune.core.errors import BadSettings
from ortune.core.hardware.gpu import Gpu
from ortune.core.plugins.spelling import parse_plugin
from ortune.core.runtime_conflict import RUNTIMES
from ortune.measurement.environment import environment_folder
from ortune.measurement.environments.check import cuda_version, gpu_problems
from ortune.measurement.environments.installed import Environment
from ortune.measurement.environments.releases import (
    FAMILIES,
    list_releases,
    parse_release,
    select_releases,
)


def test_every_release_is_pinned_and_has_a_name_of_its_own() -> None:
    found = list_releases()
    assert len({one.name for one in found}) == len(found)
    for one in found:
        assert environment_folder(one.name).name == one.name
        assert one.distributions[0].endswith(f"=={one.version}")
        assert parse_release(str(one)) == one
        assert all(text.count("==") == 1 for text in one.distributions)
        packages = [text.partition("==")[0] for text in one.distributions]
        assert len(set(packages)) == len(packages)
        assert {"numpy", "psutil"} <= set(packages)
        assert all(parse_plugin(Backend, name) for name in one.family.backends)


def test_they_stand_in_order() -> None:
    for family in FAMILIES.values():
        numbers = [tuple(map(int, version.split("."))) for version in family.beside]
        assert numbers == sorted(numbers)


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("cuda", "cuda-1.31.1"),
        ("tensorrt", "tensorrt-10.16.1.11"),
        ("tensorrt-engine", "tensorrt-engine-11.4.0.106"),
        ("openvino", "openvino-2026.4.1"),
        ("rtx", "rtx-0.5.0"),
        ("onnxruntime", "ort-1.32.0"),
        ("onnxruntime-gpu", "cuda-1.31.1"),
        ("onnxruntime-gpu==1.26.0", "cuda-1.26.0"),
        ("tensorrt-cu13-libs==11.4.0.106", "tensorrt-engine-11.4.0.106"),
        ("cuda == 1.26.0", "cuda-1.26.0"),
    ],
)
def test_a_word_or_a_distribution_is_enough(word: str, name: str) -> None:
    assert parse_release(word).name == name


def test_one_environment_holds_one_wheel_of_onnxruntime() -> None:
    for one in list_releases():
        wheels = [text for text in one.distributions if text.partition("==")[0] in RUNTIMES]
        assert len(wheels) == 1, one


def test_cuda_cudnn_and_tensorrt_fit_the_wheel() -> None:
    """The wheel for CUDA 13 links libcudart 13, libcudnn 9 and, its provider, libnvinfer 10."""
    for one in list_releases():
        held = dict(text.split("==") for text in one.distributions)
        wheel = held.get("onnxruntime-gpu")
        if wheel is None:
            continue
        newer = tuple(map(int, wheel.split("."))) >= (1, 27)
        assert cuda_version(one.distributions) == ("13" if newer else "12")
        assert held["nvidia-cudnn-cu13" if newer else "nvidia-cudnn-cu12"].startswith("9.")
        assert held.get("tensorrt-cu13-libs", "10.").startswith("10.")
        assert held.get("tensorrt-cu13-bindings") == held.get("tensorrt-cu13-libs")
    engines = dict(text.split("==") for text in parse_release("tensorrt-engine").distributions)
    assert engines["tensorrt-cu13-libs"].startswith("11.")
    assert "onnxruntime-gpu" not in engines


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("onnxruntime==1.2.3", "no release '1.2.3' of onnxruntime"),
        ("onnxruntime==", "no release '' of onnxruntime"),
        ("cuda==12", "no release '12' of cuda"),
        ("../../bin/sh==1", "is no release"),
        ("pip==23", "is no release"),
        ("--index-url=x", "is no release"),
    ],
)
def test_what_is_not_in_the_table_is_refused(text: str, what: str) -> None:
    with pytest.raises(BadSettings, match=what):
        parse_release(text)


@pytest.mark.parametrize(
    ("text", "versions"),
    [
        ("1.24..1.26", ["1.24.4", "1.25.1", "1.26.0"]),
        ("1.31..1.31", ["1.31.0", "1.31.1"]),
        ("1.31.1..1.32", ["1.31.1", "1.32.0"]),
        ("1..1.23", ["1.23.2"]),
        ("1.31.1, 1.24.4", ["1.24.4", "1.31.1"]),
        ("1.30.0,1.30.0", ["1.30.0"]),
    ],
)
def test_some_are_chosen_oldest_first(text: str, versions: list[str]) -> None:
    assert [one.version for one in select_releases(text)] == versions


@pytest.mark.parametrize(
    "text", ["1.31..1.24", "2.0..2.1", "1.24..", "..1.24", "1.x..1.31", "1.24", ",", "new..old"]
)
def test_a_choice_that_names_none_is_refused(text: str) -> None:
    with pytest.raises(BadSettings):
        select_releases(text)


BOARD = Gpu(0, "NVIDIA L4", "GPU-5e6f", "8.9")
NEW = {"driver": "580.95.05"}


def made(word: str) -> Environment:
    one = parse_release(word)
    return Environment(one.name, str(one), one.distributions, "3.11.9", Path(one.name))


def test_the_cuda_of_an_environment_is_read_from_its_pins() -> None:
    assert cuda_version(parse_release("cuda").distributions) == "13"
    assert cuda_version(parse_release("cuda==1.26.0").distributions) == "12"
    assert cuda_version(parse_release("openvino").distributions) == ""


def test_a_gpu_that_nothing_uses() -> None:
    runtimes = {"onnxruntime": "1.31.1"}
    (found,) = gpu_problems([BOARD], NEW, [made("openvino")], runtimes)
    assert found.environment == HERE and "nothing here computes on the NVIDIA L4" in found.problem
    assert found.fix == "ortune doctor env add cuda"
    (older,) = gpu_problems([BOARD], {"driver": "550.54"}, [], runtimes)
    assert older.fix == "ortune doctor env add cuda==1.26.0"
    assert gpu_problems([BOARD], NEW, [], {"onnxruntime-gpu": "1.31.1"}) == ()
    assert gpu_problems([BOARD], NEW, [made("cuda")], runtimes) == ()


@pytest.mark.parametrize("version", ["550.54.14", "", "none"])
def test_a_driver_that_is_too_old(version: str) -> None:
    (found,) = gpu_problems([BOARD], {"driver": version}, [made("cuda"), made("openvino")], {})
    assert (
        found.environment == "cuda-1.31.1" and "CUDA 13, which wants 580 or later" in found.problem
    )
    assert found.fix == "update the driver, or `ortune doctor env add cuda==1.26.0`"


def test_an_environment_for_gpus_where_there_is_none() -> None:
    found = gpu_problems([], {}, [made("cuda"), made("openvino"), made("tensorrt")], {})
    assert [one.environment for one in found] == ["cuda-1.31.1", "tensorrt-10.16.1.11"]
    assert all("no NVIDIA driver" in one.problem and "nvidia-smi" in one.fix for one in found)
    assert gpu_problems([], {}, [made("openvino")], {"onnxruntime-gpu": "1.31.1"}) == ()
