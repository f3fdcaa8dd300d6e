"""What a backend says of itself before anything runs."""

from __future__ import annotations

import pytest

from ortune.backends.cpu import Cpu
from ortune.backends.openvino import Openvino
from ortune.core.backend import Backend
from ortune.core.capabilities import Capabilities, State
from ortune.core.facts import Facts
from ortune.measurement.workloads.latency import Latency


@pytest.mark.parametrize("backend", [Cpu(), Openvino()])
def test_what_runs_on_the_cpu_is_verified_and_optimizes_for_itself(backend: Cpu) -> None:
    assert (backend.runs_on, backend.unverified) == ("cpu", "")
    assert backend.builds_with(Capabilities()) is backend


@pytest.mark.parametrize(
    ("missing", "state"),
    [
        (None, "works"),
        ("pip install onnxruntime", "not installed"),
        ("libcuda.so.1 is not there", "not loadable"),
    ],
)
def test_what_is_missing_says_the_state(missing: str | None, state: State) -> None:
    assert Cpu().state(missing) == state


ENCODER = {"MatMul": 36, "Softmax": 6, "LayerNormalization": 13, "Add": 40}
WRITTEN_OUT = {"MatMul": 36, "Softmax": 6, "ReduceMean": 26, "Sqrt": 13, "Add": 40}
CNN = {"Conv": 49, "Add": 9, "ReduceMean": 1, "Gemm": 1, "Softmax": 1}


def variants(backend: Backend, ops: dict[str, int], flags: str = "") -> list[str]:
    facts = Facts(ops, sum(ops.values()), 1, 1, {}, 17, 8, (), ())
    offered = Capabilities(instruction_sets=tuple(flags.split()))
    return [str(one) for one in backend.variants(facts, Latency(), offered)]


@pytest.mark.parametrize("ops", [ENCODER, WRITTEN_OUT])
def test_the_cpu_leaves_a_fusion_out_of_transformers(ops: dict[str, int]) -> None:
    assert variants(Cpu(), ops) == ["cpu", "cpu(disable=[SkipLayerNormFusion])"]
    already = Cpu(disable=("SkipLayerNormFusion",))
    assert variants(already, ops) == ["cpu(disable=[SkipLayerNormFusion])"]


def test_the_cpu_runs_all_else_as_it_is() -> None:
    assert variants(Cpu(), CNN) == ["cpu"]


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("avx512_bf16 avx512_fp16 amx_bf16", ["bf16", "f16", "f32"]),
        ("avx512_bf16 avx512_fp16 amx_bf16 amx_fp16", ["f16", "bf16", "f32"]),
        ("avx512_bf16 avx512_fp16", ["f16", "bf16", "f32"]),
        ("avx512_bf16", ["bf16", "f32"]),
        ("avx2", ["f32"]),
        ("", ["f16", "f32"]),
    ],
)
def test_openvino_has_every_precision_of_the_cpu(flags: str, expected: list[str]) -> None:
    found = variants(Openvino(), ENCODER, flags)
    spelled = ["openvino" if p == "f32" else f"openvino(precision={p})" for p in expected]
    assert found == spelled
