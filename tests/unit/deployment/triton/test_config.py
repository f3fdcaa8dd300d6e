"""config.pbtxt says exactly what was tuned, or the plan is left to another target."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit import studies

from ortune.backends.bucketed import Bucketed
from ortune.backends.cpu import Cpu
from ortune.backends.openvino import Openvino
from ortune.bundle.pack import pack
from ortune.bundle.source import Source, unpacked
from ortune.core.backend import Backend
from ortune.core.errors import BadModel
from ortune.core.facts import TensorSpec
from ortune.deployment.triton import config, openvino, text
from ortune.deployment.triton.options import ServerOptions
from ortune.engine.manifest import Signature

PLAIN = ServerOptions("26.05")
OPENVINO = ServerOptions("26.05", openvino="2026.1.0")
SIGNATURE = Signature(
    (TensorSpec("x", "float32", ("N", 4)), TensorSpec("ids", "int64", (None, 2))),
    (TensorSpec("y", "float32", ("N", 4)),),
)


@contextmanager
def source_on(backend: Backend, tmp_path: Path, **machine: str) -> Iterator[Source]:
    bundle = pack(studies.study(tmp_path), tmp_path / "toy.ortune", force=True)
    with unpacked(bundle) as held:
        found = replace(held.source(held.manifest.plans[0]), backend=backend)
        known = {**found.manifest.machine, **{k.replace("_", " "): v for k, v in machine.items()}}
        yield replace(found, manifest=replace(found.manifest, machine=known))


@pytest.mark.parametrize(
    ("backend", "parameters", "level"),
    [
        (
            Cpu(threads=3),
            {
                "intra_op_thread_count": "3",
                "execution_mode": "0",
                "enable_mem_arena": "1",
                "enable_mem_pattern": "1",
            },
            None,
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
        (Cpu(level="disabled"), {"intra_op_thread_count": "7"}, 2),
        (
            Cpu(config=("session.use_device_allocator_for_initializers=1",)),
            {"session.use_device_allocator_for_initializers": "1"},
            None,
        ),
    ],
)
def test_a_plan_is_said_as_tuned(
    tmp_path: Path, backend: Cpu, parameters: dict[str, str], level: int | None
) -> None:
    with source_on(backend, tmp_path, effective_cpus="7") as source:
        assert config.refusal(source, PLAIN) == ""
        held = config.onnxruntime("toy", source, SIGNATURE, PLAIN)
        read = text.read(text.write(held))
        assert parameters.items() <= config.parameters(read).items()
        graph = read.get("optimization", [{}])[0].get("graph", [{}])[0]
        assert graph.get("level") == (None if level is None else [level])
        config.demand_tuned(source, config.configured(read), PLAIN)


def test_a_configuration_that_forces_one_thread_is_caught(tmp_path: Path) -> None:
    with source_on(Cpu(threads=3), tmp_path) as source:
        held = config.onnxruntime("toy", source, SIGNATURE, PLAIN)
        for was, now in (('"3"', '"1"'), ("intra_op_thread_count", "intra_op_threads")):
            read = text.read(text.write(held).replace(was, now))
            with pytest.raises(BadModel, match=r"threads=[01], and the plan was tuned with 3"):
                config.demand_tuned(source, config.configured(read), PLAIN)


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
    with source_on(backend, tmp_path) as source:
        assert why in config.refusal(source, PLAIN)


def test_a_graph_stored_rewritten_is_left_as_it_is(tmp_path: Path) -> None:
    offline = ServerOptions("26.05", offline=True)
    with source_on(Cpu(threads=1, disable=("BiasGeluFusion",)), tmp_path) as source:
        assert config.refusal(source, offline) == ""
        read = text.read(text.write(config.onnxruntime("toy", source, SIGNATURE, offline)))
        assert config.configured(read).level == "disabled"
        config.demand_tuned(source, config.configured(read), offline)
    with source_on(Cpu(spin=False), tmp_path) as source:
        assert config.refusal(source, offline) == "Triton has no setting for spin"


def test_instances_by_device(tmp_path: Path) -> None:
    options = ServerOptions("26.05", instances="1@cpu,2@gpu0,2@gpu1,1@gpu2")
    with source_on(Cpu(threads=1), tmp_path) as source:
        read = text.read(text.write(config.onnxruntime("toy", source, SIGNATURE, options)))
    assert read["instance_group"] == [
        {"count": [1], "kind": ["KIND_CPU"]},
        {"count": [2], "kind": ["KIND_GPU"], "gpus": [0, 1]},
        {"count": [1], "kind": ["KIND_GPU"], "gpus": [2]},
    ]


def test_batches_queues_and_gpus(tmp_path: Path) -> None:
    options = ServerOptions(
        "26.05",
        instances=2,
        gpus=(0, 1),
        batch=8,
        preferred=(4, 8),
        delay_us=500,
        queue=256,
        timeout_us=9000,
        accelerator="tensorrt",
        accelerator_options=("precision_mode=FP16",),
    )
    with source_on(Cpu(threads=1), tmp_path) as source:
        read = text.read(text.write(config.onnxruntime("toy", source, SIGNATURE, options)))
    assert read["max_batch_size"] == [8]
    assert [one["dims"] for one in read["input"]] == [[4], [2]]
    (group,) = read["instance_group"]
    assert group == {"count": [2], "kind": ["KIND_GPU"], "gpus": [0, 1]}
    (batching,) = read["dynamic_batching"]
    assert batching["preferred_batch_size"] == [4, 8]
    assert batching["default_queue_policy"] == [
        {
            "timeout_action": ["REJECT"],
            "default_timeout_microseconds": [9000],
            "max_queue_size": [256],
        }
    ]
    accelerators = read["optimization"][0]["execution_accelerators"][0]
    assert accelerators["gpu_execution_accelerator"] == [
        {"name": ["tensorrt"], "parameters": [{"key": ["precision_mode"], "value": ["FP16"]}]}
    ]


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
    with source_on(Cpu(), tmp_path) as source:
        signatures = {"": Signature((spec,), ())}
        odd = replace(source, manifest=replace(source.manifest, signatures=signatures))
        assert why in next(config.unfit(odd, batch))


def test_a_scalar_is_reshaped() -> None:
    signature = Signature((TensorSpec("s", "int64", ()),), ())
    held = config.common("toy", "onnxruntime", "model.onnx", signature, PLAIN)
    assert held["input"][0]["dims"] == [1] and held["input"][0]["reshape"] == {"shape": []}


def test_openvino_has_few_properties(tmp_path: Path) -> None:
    plan = Openvino(threads=2, precision="bf16", hint="throughput", streams=2)
    with source_on(plan, tmp_path) as source:
        assert openvino.is_for(source) and openvino.refusal(source, OPENVINO) == ""
        read = text.read(text.write(openvino.config("toy", source, SIGNATURE, OPENVINO)))
        assert config.parameters(read) == {
            "INFERENCE_NUM_THREADS": "2",
            "PERFORMANCE_HINT": "THROUGHPUT",
            "HINT_BF16": "YES",
            "NUM_STREAMS": "2",
        }
        assert openvino.configured(source, read) == plan
        forced: dict[str, Any] = {**read, "parameters": []}
        with pytest.raises(BadModel, match="was tuned as"):
            openvino.configured(source, forced)


@pytest.mark.parametrize(
    ("plan", "options", "why"),
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
    tmp_path: Path, plan: Openvino, options: ServerOptions, why: str
) -> None:
    with source_on(plan, tmp_path, instruction_sets="avx512_bf16") as source:
        assert why in openvino.refusal(source, options)
    if plan.precision == "f32":
        with source_on(plan, tmp_path, instruction_sets="avx2") as source:
            assert openvino.refusal(source, options) == ""
