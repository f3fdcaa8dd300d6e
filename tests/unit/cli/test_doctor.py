"""What doctor says of an installation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ortune.cli import doctor
from ortune.core.capabilities import HERE, Capabilities
from ortune.core.hardware.gpu import Gpu
from ortune.measurement.environments.check import GpuProblem, OfferedThere
from ortune.measurement.environments.installed import Environment


def test_one_runtime_is_fine() -> None:
    assert doctor.diagnose_problems({"onnxruntime": "1.31.1"}, [], []) == []


def test_two_runtimes_overwrite_each_other() -> None:
    (found,) = doctor.diagnose_problems(
        {"onnxruntime": "1.31.1", "onnxruntime-gpu": "1.31.0"}, [], []
    )
    assert "onnxruntime, onnxruntime-gpu are installed together" in found["what"]
    assert found["fix"].startswith("pip uninstall -y onnxruntime onnxruntime-gpu && pip install")


def test_environments_and_gpus_are_shown(tmp_path: Path) -> None:
    place = Environment("cuda-1.31.1", "cuda==1.31.1", (), "3.11.9", tmp_path)
    broken = replace(place, name="vino", release="openvino==2026.4.1")
    found = [
        OfferedThere(
            place, {"cpu": Capabilities(), "openvino": Capabilities("none", "no device")}
        ),
        OfferedThere(broken, problem="its Python is gone", fix="`ortune doctor env remove vino`"),
    ]
    assert doctor.environment_rows(found) == [
        ("cuda-1.31.1", "cpu", "works", "cuda==1.31.1"),
        ("cuda-1.31.1", "openvino", "no device", "none"),
        ("vino", "-", "not loadable", "its Python is gone"),
    ]
    assert doctor.describe_state("no device", "never run on a GPU here") == "no device, unverified"
    missing = GpuProblem("cuda-1.31.1", "no driver", "install one")
    told = doctor.diagnose_problems({}, found, [missing, replace(missing, environment=HERE)])
    assert [one["what"] for one in told] == [
        "environment vino: its Python is gone",
        "environment cuda-1.31.1: no driver",
        "no driver",
    ]


def test_a_gpu_is_one_line() -> None:
    board = Gpu(0, "NVIDIA L4", "GPU-5e6f", "8.9", memory=24 * 1024**3)
    text = doctor.describe_gpus([board], {"driver": "580.95", "cudnn": "9.19.0.56"})
    assert text == "NVIDIA L4 (25.8 GB), driver 580.95, cudnn 9.19.0.56"
    assert doctor.describe_gpus([], {}) == "none reported by an NVIDIA driver"


@pytest.mark.parametrize(
    ("host", "mask", "effective", "text"),
    [
        (8, 8, 8, "8 of 8 usable"),
        (8, 4, 4, "4 of 8 usable (the affinity mask narrows 8)"),
        (8, 8, 2, "2 of 8 usable (a cgroup quota narrows 8)"),
        (8, 4, 2, "2 of 8 usable (a cgroup quota narrows 4)"),
    ],
)
def test_cpus_say_what_narrows_them(host: int, mask: int, effective: int, text: str) -> None:
    assert doctor.describe_cpus({"host": host, "affinity": mask, "effective": effective}) == text


def test_memory_is_readable() -> None:
    found = doctor.measure_memory()
    total, available = found["total"], found["available"]
    assert total is not None
    assert available is not None
    assert 0 < available <= total
