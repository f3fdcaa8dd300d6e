"""Repositories and configurations for servers, written from a bundle and run again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnxruntime as ort
import pytest
from tests.unit import studies

from ortune.backends.cpu import Cpu
from ortune.backends.openvino import Openvino
from ortune.bundle.pack import pack, package
from ortune.bundle.target import Target, unpack_temporarily
from ortune.core.errors import BadModel, BadSettings, OrtuneError
from ortune.targets.kserve import Kserve, service_name, spell_yaml
from ortune.targets.openvino import OpenvinoIr
from ortune.targets.ovms import Ovms, read_models

HERE = ort.__version__
SERVICE = """apiVersion: "serving.kserve.io/v1beta1"
kind: "InferenceService"
metadata:
  name: "toy"
spec:
  predictor:
    model:
      modelFormat:
        name: "onnx"
      protocolVersion: "v2"
      runtime: "kserve-tritonserver"
      runtimeVersion: "26.05-py3"
      storageUri: "s3://b/m"
      resources:
        requests:
          cpu: "2"
          memory: "2Gi"
        limits:
          cpu: "2"
          memory: "2Gi"
"""


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


def test_kserve(bundle: Path, tmp_path: Path) -> None:
    target = Kserve(onnxruntime=HERE, memory="2Gi", storage="s3://b/m", instances=2)
    found = package([bundle], tmp_path / "a", target)
    held = files(found.path)
    assert held["inferenceservice.yaml"].decode() == SERVICE
    assert "models/toy/config.pbtxt" in held
    assert found.replay is not None and found.unrun.startswith("KServe; Triton 26.05")


def test_a_service_is_yaml_whatever_its_texts_are() -> None:
    other = pytest.importorskip("yaml", reason="PyYAML comes with other packages only")
    held = {"a": {"b": {"odd": 'x: "y"\n- #z', "é": "1"}, "c": "s3://b/c"}, "d": "2Gi"}
    assert other.safe_load(spell_yaml(held)) == held
    assert service_name("3_Big__Model" + "x" * 60) == "m-3-big--model" + "x" * 39


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"storage": "models"}, "not a storage URI"),
        ({"memory": "much"}, "not an amount of memory"),
    ],
)
def test_kserve_is_told_what_a_cluster_takes(fields: dict[str, Any], what: str) -> None:
    with pytest.raises(BadSettings, match=what):
        Kserve(**fields)


def test_kserve_with_fewer_cpus_than_threads_is_caught(tmp_path: Path) -> None:
    bundle = pack(studies.study(tmp_path, backend=Cpu(threads=2)), tmp_path / "toy.ortune")
    target = Kserve(onnxruntime=HERE)
    with unpack_temporarily(bundle) as held:
        source = held.read_source(held.manifest.plans[0])
        target.write(source, tmp_path / "a")
        path = tmp_path / "a" / "inferenceservice.yaml"
        path.write_text(path.read_text().replace('cpu: "2"', 'cpu: "1"'))
        with pytest.raises(BadModel, match="is not what the plan was tuned for"):
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
    with unpack_temporarily(bundle) as held:
        source = held.read_source(held.manifest.plans[0])
        Ovms().write(source, tmp_path / "a")
        path = tmp_path / "a" / "config.json"
        path.write_text(
            path.read_text().replace(
                '"INFERENCE_NUM_THREADS": "2"', '"INFERENCE_NUM_THREADS": "1"'
            )
        )
        with pytest.raises(BadModel, match="was tuned as"):
            Ovms().replay(source, tmp_path / "a")


def config_of(**changed: Any) -> dict[str, Any]:
    return {"model_config_list": [{"config": {"name": "a", "base_path": "a", **changed}}]}


@pytest.mark.parametrize(
    ("held", "what"),
    [
        ([], "model_config_list"),
        ({"model_config_list": [], "more": 1}, "nothing else"),
        ({"model_config_list": [{"config": {}, "more": 1}]}, "nothing else"),
        ({"model_config_list": [{"config": {"name": "a"}}]}, "lacks base_path"),
        (config_of(nrieq=1), "'nrieq' is no key"),
        (config_of(nireq="1"), "of another type"),
        (config_of(nireq=True), "of another type"),
        (config_of(nireq=-1), "negative"),
    ],
)
def test_what_the_model_server_refuses_is_refused(held: Any, what: str) -> None:
    with pytest.raises(BadModel, match=what):
        read_models(held)
    assert read_models(config_of(nireq=2))["a"]["nireq"] == 2
