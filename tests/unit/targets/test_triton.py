"""config.pbtxt says exactly what was tuned, or the plan is left to another target.

What is written is read by Triton's own message, of tritonclient.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from google.protobuf import text_format
from tests.unit import packaged
from tritonclient.grpc import model_config_pb2

from ortune.backends.bucketed import Bucketed
from ortune.backends.cpu import Cpu
from ortune.backends.openvino import Openvino
from ortune.bundle.engine.manifest import Signature
from ortune.bundle.pack import package
from ortune.bundle.target import Source, Target
from ortune.core.backend import Backend
from ortune.core.errors import BackendMissing, BadModel, BadSettings, OrtuneError
from ortune.core.facts import TensorSpec
from ortune.core.plugins import spelling
from ortune.targets.triton import RELEASES, Triton, read_accelerator_options, spell_message

HERE = ort.__version__
PLAIN = Triton()
OPENVINO = Triton(openvino="2026.1.0")
SPECS = (TensorSpec("x", "float32", ("N", 4)), TensorSpec("ids", "int64", (None, 2)))


@contextmanager
def source_on(
    folder: Path, backend: Backend, *specs: TensorSpec, **machine: str
) -> Iterator[Source]:
    """Open the toy's bundle as if its plan had these settings, inputs and machine."""
    with packaged.source(folder) as source:
        known = {name.replace("_", " "): value for name, value in machine.items()}
        signatures = {"": Signature(specs, specs)} if specs else source.manifest.signatures
        manifest = replace(
            source.manifest, machine={**source.manifest.machine, **known}, signatures=signatures
        )
        yield replace(source, backend=backend, manifest=manifest)


def parsed(text: str) -> Any:
    return text_format.Parse(text, model_config_pb2.ModelConfig())  # type: ignore[attr-defined]


def parameters(config: Any) -> dict[str, str]:
    return {key: value.string_value for key, value in config.parameters.items()}


@pytest.mark.parametrize(
    ("backend", "expected", "level"),
    [
        (
            Cpu(threads=3),
            {
                "intra_op_thread_count": "3",
                "execution_mode": "0",
                "enable_mem_arena": "1",
                "enable_mem_pattern": "1",
            },
            0,
        ),
        (
            Cpu(threads=2, level="extended", arena=False, parallel=True, inter_threads=2),
            {
                "intra_op_thread_count": "2",
                "execution_mode": "1",
                "enable_mem_arena": "0",
                "enable_mem_pattern": "1",
                "inter_op_thread_count": "2",
            },
            1,
        ),
        (Cpu(level="basic", memory_pattern=False), {"enable_mem_pattern": "0"}, -1),
        (
            Cpu(level="disabled", parallel=True),
            {"intra_op_thread_count": "7", "inter_op_thread_count": "7"},
            2,
        ),
        (
            Cpu(config=("session.use_device_allocator_for_initializers=1",)),
            {"session.use_device_allocator_for_initializers": "1"},
            0,
        ),
    ],
)
def test_a_plan_is_said_as_tuned(
    tmp_path: Path, backend: Cpu, expected: dict[str, str], level: int
) -> None:
    with source_on(tmp_path, backend, effective_cpus="7") as source:
        assert PLAIN.refuses(source) == ""
        config = parsed(PLAIN.build_config(source, ""))
    assert expected.items() <= parameters(config).items()
    assert config.optimization.graph.level == level
    assert config.backend == "onnxruntime" and config.max_batch_size == 0


@pytest.mark.parametrize(
    ("backend", "why"),
    [
        (Cpu(spin=False), "no setting for spin"),
        (Cpu(threads=2, affinity="2"), "no setting for affinity"),
        (Cpu(disable=("BiasGeluFusion",)), "disable; offline=true stores the rewritten graph"),
        (Cpu(flush_denormals=True, prepack=False), "prepack, flush_denormals"),
        (Cpu(config=("session.disable_quant_qdq=1",)), "session.disable_quant_qdq=1"),
        (Cpu(custom_ops=("lib.so",)), "custom operators"),
        (Bucketed(inner=Cpu(), mask="m", lengths=(8,)), "does not run 'bucketed'"),
    ],
)
def test_a_setting_that_would_be_lost_is_a_reason(
    tmp_path: Path, backend: Backend, why: str
) -> None:
    with source_on(tmp_path, backend) as source:
        assert why in PLAIN.refuses(source)


def test_a_graph_stored_rewritten_is_left_as_it_is(tmp_path: Path) -> None:
    offline = Triton(offline=True)
    with source_on(tmp_path, Cpu(threads=1, disable=("BiasGeluFusion",))) as source:
        assert offline.refuses(source) == ""
        assert parsed(offline.build_config(source, "")).optimization.graph.level == 2
        assert offline.make_backend(source) == Cpu(threads=1, level="disabled")
    with source_on(tmp_path / "other", Cpu(spin=False)) as source:
        assert offline.refuses(source) == "Triton has no setting for spin"


def test_instances_by_device(tmp_path: Path) -> None:
    target = Triton(instances="1@cpu,2@gpu0,2@gpu1,1@gpu2")
    with source_on(tmp_path, Cpu(threads=1)) as source:
        config = parsed(target.build_config(source, ""))
    cpu, gpu = (
        model_config_pb2.ModelInstanceGroup.Kind.Value(f"KIND_{one}") for one in ("CPU", "GPU")
    )
    groups = [(one.count, one.kind, list(one.gpus)) for one in config.instance_group]
    assert groups == [(1, cpu, []), (2, gpu, [0, 1]), (1, gpu, [2])]


def test_batches_queues_and_gpus(tmp_path: Path) -> None:
    target = Triton(
        instances=2,
        gpus=(0, 1),
        batch=8,
        preferred=(4, 8),
        delay_us=500,
        queue=256,
        timeout_us=9000,
        accelerator="tensorrt",
        options=("precision_mode=FP16", "max_workspace_size_bytes=1073741824"),
        warm_up=False,
    )
    with source_on(tmp_path, Cpu(threads=1), *SPECS) as source:
        config = parsed(target.build_config(source, ""))
    assert config.max_batch_size == 8
    assert [list(one.dims) for one in config.input] == [[4], [2]]
    (group,) = config.instance_group
    assert (group.count, list(group.gpus)) == (2, [0, 1])
    batching = config.dynamic_batching
    assert list(batching.preferred_batch_size) == [4, 8]
    assert batching.max_queue_delay_microseconds == 500
    policy = batching.default_queue_policy
    assert (policy.max_queue_size, policy.default_timeout_microseconds) == (256, 9000)
    assert policy.timeout_action == 0  # REJECT
    (accelerator,) = config.optimization.execution_accelerators.gpu_execution_accelerator
    assert accelerator.name == "tensorrt" and accelerator.parameters["precision_mode"] == "FP16"
    on = "GPU 0, 1 with tensorrt, on which nothing was measured either"
    assert on in target.unrun(None) and "GPU" not in PLAIN.unrun(None)


@pytest.mark.parametrize(
    ("spec", "batch", "why"),
    [
        (TensorSpec("x", "seq(float32)", None), 0, "no type"),
        (TensorSpec("x", "complex64", (1,)), 0, "no type"),
        (TensorSpec("x", "float32", None), 0, "rank"),
        (TensorSpec("x", "float32", (0, 1)), 0, "size 0"),
        (TensorSpec("x", "float32", (1, 4)), 4, "is fixed"),
        (TensorSpec("x", "float32", ()), 4, "is fixed"),
    ],
)
def test_what_triton_cannot_describe(
    tmp_path: Path, spec: TensorSpec, batch: int, why: str
) -> None:
    with source_on(tmp_path, Cpu(), spec) as source:
        assert why in Triton(batch=batch).refuses(source)


ODD = 'x" }\n\\\x1bé\u202e\x00'


def test_a_strangers_name_stays_in_its_quotes_and_a_scalar_is_reshaped(tmp_path: Path) -> None:
    target = Triton(warm_up=False)
    with source_on(tmp_path, Cpu(), TensorSpec(ODD, "int64", ())) as source:
        text = target.build_config(source, "")
    assert text.isascii() and all(line.isprintable() for line in text.splitlines())
    (tensor,) = parsed(text).input
    assert tensor.name == ODD and list(tensor.dims) == [1]
    assert tensor.HasField("reshape") and list(tensor.reshape.shape) == []
    assert spell_message({"a": 'a"\\é', "b": True}) == 'a: "a\\042\\134\\303\\251"\nb: true\n'


def test_openvino_has_few_properties(tmp_path: Path) -> None:
    plan = Openvino(threads=2, precision="bf16", hint="throughput", streams=2)
    with source_on(tmp_path, plan) as source:
        assert OPENVINO.refuses(source) == ""
        config = parsed(OPENVINO.build_config(source, ""))
    assert config.backend == "openvino" and config.default_model_filename == "model.xml"
    assert parameters(config) == {
        "INFERENCE_NUM_THREADS": "2",
        "PERFORMANCE_HINT": "THROUGHPUT",
        "HINT_BF16": "YES",
        "NUM_STREAMS": "2",
    }


@pytest.mark.parametrize(
    ("plan", "target", "why"),
    [
        (Openvino(precision="f32"), OPENVINO, "cannot ask for f32"),
        (Openvino(precision="f16"), OPENVINO, "cannot ask for f16; ovms can"),
        (Openvino(precision="bf16", pinning="off"), OPENVINO, "no setting for pinning; ovms has"),
        (Openvino(precision="bf16"), PLAIN, "which openvino Triton 26.05 carries"),
        (Openvino(precision="bf16"), replace(OPENVINO, gpus=(0,)), "on the CPU alone"),
        (Openvino(precision="bf16"), replace(OPENVINO, offline=True), "onnxruntime's graph"),
    ],
)
def test_what_tritons_openvino_cannot_say(
    tmp_path: Path, plan: Openvino, target: Triton, why: str
) -> None:
    with source_on(tmp_path, plan, instruction_sets="avx512_bf16") as source:
        assert why in target.refuses(source)
    if plan.precision == "f32":
        with source_on(tmp_path / "other", plan, instruction_sets="avx2") as source:
            assert target.refuses(source) == ""


def test_a_release_carries_what_its_build_pins_and_what_a_person_says() -> None:
    assert spelling.parse_plugin(Target, "triton(release=26.05)") == PLAIN
    assert PLAIN.runtime_versions == RELEASES["26.05"] == {"onnxruntime": "1.24.4"}
    assert OPENVINO.runtime_versions == {"onnxruntime": "1.24.4", "openvino": "2026.1.0"}
    made = spelling.parse_plugin(Target, 'triton(release=30.10, onnxruntime="1.40.0")')
    assert isinstance(made, Triton) and made.release_name == "30.10"
    with pytest.raises(BadSettings, match=r"release 30\.10 of Triton is not known") as error:
        spelling.parse_plugin(Target, "triton(release=30.10)")
    assert 'onnxruntime="VERSION"' in error.value.fix


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"instances": 0}, "needs an instance"),
        ({"instances": "2@gpu0,0@gpu1"}, "cannot be read"),
        ({"instances": "2@gpu0", "gpus": (1,)}, "names devices, and so does gpus"),
        ({"instances": "1@npu0"}, "Triton has no 'npu0'"),
        ({"instances": "2@cpu", "accelerator": "cuda"}, "is for GPUs"),
        ({"accelerator": "tensorrt"}, "is for GPUs"),
        ({"delay_us": 5}, "apply to batches only"),
        ({"queue": 5}, "apply to batches only"),
        ({"batch": 8, "preferred": (4, 16)}, "preferred batch of 16"),
        ({"batch": 8, "preferred": (0,)}, "preferred batch of 0"),
        ({"options": ("a=1",)}, "none is given"),
    ],
)
def test_contradictions_are_refused(fields: dict[str, Any], what: str) -> None:
    with pytest.raises(BadSettings, match=what):
        Triton(**fields)


@pytest.mark.parametrize(
    ("accelerator", "text", "what"),
    [
        ("tensorrt", "precision_mode=FP8", "'FP8' is no value"),
        ("tensorrt", "precision=FP16", "no option 'precision'"),
        ("tensorrt", "precision_mode", "no value of tensorrt's 'precision_mode'"),
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
        read_accelerator_options(accelerator, [text])


def test_options_by_name() -> None:
    given = [
        *("precision_mode=FP16", "trt_engine_cache_enable=1"),
        "trt_profile_min_shapes=x:1x3,y:2",
    ]
    expected = dict(text.split("=") for text in given)
    assert read_accelerator_options("tensorrt", given) == expected
    with pytest.raises(BadSettings, match="given twice"):
        read_accelerator_options("cuda", ["use_tf32=1", "use_tf32=0"])
    assert read_accelerator_options("", []) == {}


def test_a_repository_is_written_and_run_again(tmp_path: Path) -> None:
    bundle = packaged.bundle(tmp_path)
    found = package([bundle], tmp_path / "a", Triton(onnxruntime=HERE))
    held = packaged.contents(found.path)
    assert sorted(held) == [
        *("package.json", "toy/1/model.onnx", "toy/config.pbtxt", "toy/warmup/input0")
    ]
    assert found.replay is not None and found.replay.by == f"onnxruntime {HERE}"
    assert found.replay.difference_db == float("inf") and found.replay.overhead is not None
    assert found.unrun == "Triton 26.05 itself, its batching and its queues"
    assert "tritonserver:26.05-py3" in found.lines[0]
    (warm_up,) = parsed(held["toy/config.pbtxt"].decode("ascii")).model_warmup
    assert list(warm_up.inputs["x"].dims) == [2, 4]
    assert np.frombuffer(held["toy/warmup/input0"], np.float32).tolist() == [-1.5] * 8
    again = package([bundle], tmp_path / "b", Triton(onnxruntime=HERE, replayed=False))
    same = packaged.contents(again.path)
    del held["package.json"], same["package.json"]
    assert same == held
    stacked = package([bundle], tmp_path / "c", Triton(batch=4, replayed=False))
    held = packaged.contents(stacked.path)
    (warm_up,) = parsed(held["toy/config.pbtxt"].decode("ascii")).model_warmup
    assert warm_up.batch_size == 1 and len(held["toy/warmup/input0"]) == 4 * 4


def test_without_the_releases_runtime_nothing_is_written(tmp_path: Path) -> None:
    bundle, target = packaged.bundle(tmp_path), Triton(onnxruntime="1.2.3")
    with pytest.raises(BackendMissing, match=r"carries onnxruntime 1\.2\.3") as error:
        package([bundle], tmp_path / "a", target)
    assert "ortune doctor env add onnxruntime==1.2.3" in error.value.fix
    assert not (tmp_path / "a").exists()
    found = package([bundle], tmp_path / "a", replace(target, replayed=False))
    assert found.replay is None and "(not replayed)" in found.unrun


@pytest.mark.parametrize(("was", "now"), [('"1"', '"2"'), ("intra_op_thread_count", "intra_op")])
def test_a_configuration_of_other_settings_is_not_run(tmp_path: Path, was: str, now: str) -> None:
    target = Triton(onnxruntime=HERE)
    with packaged.source(tmp_path) as source:
        target.write(source, tmp_path / "a")
        path = tmp_path / "a" / "toy" / "config.pbtxt"
        path.write_text(path.read_text().replace(was, now, 1))
        with pytest.raises(BadModel, match="does not say what the plan was tuned with"):
            target.replay(source, tmp_path / "a")


def test_a_rewritten_graph_is_stored_and_run(tmp_path: Path) -> None:
    plan = Cpu(threads=1, disable=("BiasGeluFusion",), level="extended")
    bundle = packaged.bundle(tmp_path, plan)
    with pytest.raises(OrtuneError, match="offline=true"):
        package([bundle], tmp_path / "a", Triton(onnxruntime=HERE))
    found = package([bundle], tmp_path / "a", Triton(onnxruntime=HERE, offline=True))
    assert found.replay is not None and found.replay.difference_db > 100
    assert b"level: 2" in packaged.contents(found.path)["toy/config.pbtxt"]


def test_external_data_of_the_models_own_name_is_refused(tmp_path: Path) -> None:
    with packaged.source(tmp_path) as source:
        outer = packaged.external(source)
        target = Triton(replayed=False)
        target.write(outer, tmp_path / "a")
        assert (tmp_path / "a/toy/1/w.bin").stat().st_size == 16
        members = {
            name.replace("w.bin", "Model.onnx"): one
            for name, one in outer.manifest.members.items()
        }
        clash = replace(outer, manifest=replace(outer.manifest, members=members))
        with pytest.raises(BadModel, match="two of the model's files"):
            target.write(clash, tmp_path / "b")
