"""Repositories and configurations for servers, written from a bundle and run again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from tests.unit import studies

from ortune.backends.cpu import Cpu
from ortune.backends.openvino import Openvino
from ortune.bundle.pack import pack
from ortune.bundle.package import package
from ortune.bundle.source import unpacked
from ortune.bundle.target import Target
from ortune.core.errors import BackendMissing, BadModel, BadSettings, OrtuneError
from ortune.core.plugins import spelling
from ortune.deployment import yaml
from ortune.deployment.triton import text
from ortune.targets.kserve import Kserve
from ortune.targets.openvino import OpenvinoIr
from ortune.targets.ovms import Ovms
from ortune.targets.triton import Triton

HERE = ort.__version__


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return pack(studies.study(tmp_path), tmp_path / "toy.ortune")


def on_openvino(tmp_path: Path, plan: Openvino) -> Path:
    pytest.importorskip("openvino", reason="the openvino extra is not installed")
    return pack(studies.study(tmp_path, backend=plan), tmp_path / "openvino.ortune")


def files(folder: Path) -> Mapping[str, bytes]:
    return {
        one.relative_to(folder).as_posix(): one.read_bytes()
        for one in folder.rglob("*")
        if one.is_file()
    }


def test_a_triton_repository_is_written_and_run_again(bundle: Path, tmp_path: Path) -> None:
    found = package([bundle], tmp_path / "a", Triton(onnxruntime=HERE))
    held = files(found.path)
    assert sorted(held) == [
        "package.json",
        "toy/1/model.onnx",
        "toy/config.pbtxt",
        "toy/warmup/input0",
    ]
    assert found.replay is not None and found.replay.by == f"onnxruntime {HERE}"
    assert found.replay.difference_db == float("inf") and found.replay.overhead is not None
    assert found.unrun == "Triton 26.05 itself, its batching and its queues"
    assert "tritonserver:26.05-py3" in found.lines[0]
    read = text.read(held["toy/config.pbtxt"].decode("ascii"))
    assert read["backend"] == ["onnxruntime"] and read["max_batch_size"] == [0]
    (warm_up,) = read["model_warmup"]
    (given,) = warm_up["inputs"]
    assert given["value"][0]["dims"] == [2, 4]
    assert np.frombuffer(held["toy/warmup/input0"], np.float32).tolist() == [-1.5] * 8
    again = package([bundle], tmp_path / "b", Triton(onnxruntime=HERE, replayed=False))
    same = files(again.path)
    del held["package.json"], same["package.json"]  # type: ignore[attr-defined]
    assert same == held


def test_stacked_calls_warm_up_with_one_row(bundle: Path, tmp_path: Path) -> None:
    target = Triton(onnxruntime=HERE, batch=4, replayed=False)
    held = files(package([bundle], tmp_path / "a", target).path)
    read = text.read(held["toy/config.pbtxt"].decode("ascii"))
    assert read["model_warmup"][0]["batch_size"] == [1]
    assert len(held["toy/warmup/input0"]) == 4 * 4


def test_without_the_releases_runtime_nothing_is_written(bundle: Path, tmp_path: Path) -> None:
    target = Triton(onnxruntime="1.2.3")
    with pytest.raises(BackendMissing, match=r"carries onnxruntime 1\.2\.3") as error:
        package([bundle], tmp_path / "a", target)
    assert "ortune env add onnxruntime==1.2.3" in error.value.fix
    assert not (tmp_path / "a").exists()
    found = package([bundle], tmp_path / "a", replace(target, replayed=False))
    assert found.replay is None and "(not replayed)" in found.unrun


def test_a_tampered_configuration_is_caught(bundle: Path, tmp_path: Path) -> None:
    target = Triton(onnxruntime=HERE)
    with unpacked(bundle) as held:
        source = held.source(held.manifest.plans[0])
        target.write(source, tmp_path / "a")
        path = tmp_path / "a" / "toy" / "config.pbtxt"
        path.write_text(path.read_text().replace('"intra_op_thread_count"', '"intra_op"'))
        with pytest.raises(BadModel, match="threads=0, and the plan was tuned with 1"):
            target.replay(source, tmp_path / "a")


def test_a_rewritten_graph_is_stored_and_run(tmp_path: Path) -> None:
    plan = Cpu(threads=1, disable=("BiasGeluFusion",), level="extended")
    bundle = pack(studies.study(tmp_path, backend=plan), tmp_path / "toy.ortune")
    with pytest.raises(OrtuneError, match="offline=true"):
        package([bundle], tmp_path / "a", Triton(onnxruntime=HERE))
    found = package([bundle], tmp_path / "a", Triton(onnxruntime=HERE, offline=True))
    assert found.replay is not None and found.replay.difference_db > 100
    assert b"level: 2" in files(found.path)["toy/config.pbtxt"]


def test_a_release_is_spelled_as_a_number() -> None:
    assert spelling.parse(Target, "triton(release=26.05)") == Triton()
    made = spelling.parse(Target, 'triton(release=30.10, onnxruntime="1.40.0")')
    assert isinstance(made, Triton) and made.server.release == "30.10"
    with pytest.raises(BadSettings, match=r"release 30\.10 of Triton is not known"):
        spelling.parse(Target, "triton(release=30.10)")


def test_kserve(bundle: Path, tmp_path: Path) -> None:
    target = Kserve(onnxruntime=HERE, memory="2Gi", storage="s3://b/m", instances=2)
    found = package([bundle], tmp_path / "a", target)
    held = files(found.path)
    read = yaml.read(held["inferenceservice.yaml"].decode())
    model = read["spec"]["predictor"]["model"]
    assert read["metadata"]["name"] == "toy"
    assert model["modelFormat"] == {"name": "onnx"} and model["protocolVersion"] == "v2"
    assert model["runtime"] == "kserve-tritonserver" and model["runtimeVersion"] == "26.05-py3"
    assert model["resources"]["limits"] == {"cpu": "2", "memory": "2Gi"}
    assert "models/toy/config.pbtxt" in held
    assert found.replay is not None and found.unrun.startswith("KServe; Triton 26.05")


@pytest.mark.parametrize(
    ("fields", "what"),
    [({"storage": "models"}, "no storage URI"), ({"memory": "much"}, "no amount of memory")],
)
def test_kserve_is_told_what_a_cluster_takes(fields: dict[str, Any], what: str) -> None:
    with pytest.raises(BadSettings, match=what):
        Kserve(**fields)


def test_kserve_with_fewer_cpus_than_threads_is_caught(tmp_path: Path) -> None:
    bundle = pack(studies.study(tmp_path, backend=Cpu(threads=2)), tmp_path / "toy.ortune")
    target = Kserve(onnxruntime=HERE)
    with unpacked(bundle) as held:
        source = held.source(held.manifest.plans[0])
        target.write(source, tmp_path / "a")
        path = tmp_path / "a" / "inferenceservice.yaml"
        path.write_text(path.read_text().replace('cpu: "2"', 'cpu: "1"'))
        with pytest.raises(BadModel, match=r"gives 1 CPU .* tuned with 2 threads"):
            target.replay(source, tmp_path / "a")


@pytest.mark.parametrize("target", [OpenvinoIr(), Ovms()])
def test_plans_of_another_runtime_are_left_to_others(
    bundle: Path, tmp_path: Path, target: Target
) -> None:
    if fix := target.missing():
        pytest.skip(fix)
    with pytest.raises(OrtuneError, match="measured on 'cpu', not on OpenVINO"):
        package([bundle], tmp_path / "a", target)


def test_openvinos_own_format(tmp_path: Path) -> None:
    bundle = on_openvino(tmp_path, Openvino(threads=1, precision="f32", pinning="off"))
    found = package([bundle], tmp_path / "a", OpenvinoIr())
    held = files(found.path)
    assert sorted(held) == ["package.json", "properties.json", "toy.bin", "toy.xml"]
    assert json.loads(held["properties.json"]) == {
        "ENABLE_CPU_PINNING": "NO",
        "INFERENCE_NUM_THREADS": "1",
        "INFERENCE_PRECISION_HINT": "f32",
        "PERFORMANCE_HINT": "LATENCY",
    }
    assert found.replay is not None and found.replay.by.startswith("openvino 20")
    assert not found.unrun
    assert files(package([bundle], tmp_path / "b", OpenvinoIr()).path) == held


def test_openvino_model_server(tmp_path: Path) -> None:
    plan = Openvino(threads=1, precision="f32", hint="throughput", streams=1)
    bundle = on_openvino(tmp_path, plan)
    found = package([bundle], tmp_path / "a", Ovms())
    held = files(found.path)
    assert sorted(held) == ["config.json", "package.json", "toy/1/model.bin", "toy/1/model.xml"]
    (entry,) = json.loads(held["config.json"])["model_config_list"]
    assert entry["config"]["nireq"] == 1 and entry["config"]["base_path"] == "toy"
    assert entry["config"]["plugin_config"]["PERFORMANCE_HINT"] == "THROUGHPUT"
    assert found.replay is not None and found.unrun == "OpenVINO Model Server itself"


def test_a_tampered_plugin_config_is_caught(tmp_path: Path) -> None:
    bundle = on_openvino(tmp_path, Openvino(threads=2, precision="f32"))
    with unpacked(bundle) as held:
        source = held.source(held.manifest.plans[0])
        Ovms().write(source, tmp_path / "a")
        path = tmp_path / "a" / "config.json"
        path.write_text(
            path.read_text().replace(
                '"INFERENCE_NUM_THREADS": "2"', '"INFERENCE_NUM_THREADS": "1"'
            )
        )
        with pytest.raises(BadModel, match="was tuned as"):
            Ovms().replay(source, tmp_path / "a")
