"""The rules of static int8: operator x provider x instruction set -> what becomes of it.

A runtime computes in integers only where it knows the pattern; pairs anywhere else cost time and
accuracy for nothing. What a row says of a provider was read in the file or thread that it names,
or measured (``tests/unit/test_quantizer_rules.py`` measures the rows of onnxruntime's CPU provider
and of OpenVINO again). The fields of `int8-static` override every row: the search measures.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Literal, TypeAlias, get_args

Target: TypeAlias = Literal["cpu", "openvino", "tensorrt", "cuda", "directml"]

TARGETS: tuple[Target, ...] = get_args(Target)


class Gives(Enum):
    """What becomes of an operator between pairs."""

    INTEGER = "an integer kernel; input and output have grids of their own"
    JOINED = "float inside one kernel that reads and writes integers"
    STORED = "no integer kernel: the weights are small, the arithmetic float"
    MOVES = "only moves values; input and output must share one grid"
    FLOAT = "float between the pairs: leave it out"
    ABSORBED = "becomes a part of the integer kernel in front of it"
    GUARDED = "quantized by the runtime itself if left in float between pairs: keep the pairs away"
    SYMMETRIC_S8 = "activations must be int8 with zero point 0"
    REDUCED = "weights in 7 bits: sums of two 8-bit products overflow 16 bits"
    SIGNED = "int8 activations are the fast pair with int8 weights"
    PER_TENSOR = "one step for all channels; several are refused or wrong"
    SCALAR = "the pair's scale and zero point must have rank 0"
    BEHIND = "look up integers; the DequantizeLinear goes behind"


@dataclass(frozen=True)
class Rule:
    """One row.

    Attributes:
        op: Operator; * for every layer.
        gives: What becomes of it.
        source: File, thread or measurement that says so.
        provider: Runtime; any for all.
        isa: Instruction set: any, vnni, no-vnni (x86) or arm.
        case: Which of the operator's uses the row is about; empty for all others.
    """

    op: str
    gives: Gives
    source: str
    provider: Target | Literal["any"] = "any"
    isa: Literal["any", "vnni", "no-vnni", "arm"] = "any"
    case: str = ""


MOVING = ("Expand", "Flatten", "MaxPool", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze")
"""Operators that move integers as they are, wherever there are integers."""

_SELECTORS = "onnxruntime qdq_selector_action_transformer.cc"
_MEASURED = "measured: onnxruntime 1.31.1"
_OPENVINO = "measured: openvino 2026.4.1; src/common/low_precision_transformations"
_TENSORRT = "NVIDIA TensorRT developer guide, explicit quantization"
_NO_SELECTOR = f"{_SELECTORS} lists no CUDA provider"


def _cpu() -> Iterator[Rule]:
    for op in ("Conv", "MatMul", "Gemm"):
        yield Rule(op, Gives.INTEGER, _SELECTORS, "cpu")
    for op in ("Add", "AveragePool", "Concat", "GlobalAveragePool", "LeakyRelu", "Mul", "Sigmoid"):
        yield Rule(op, Gives.INTEGER, _SELECTORS, "cpu")
    for op in (*MOVING, "Tile"):
        yield Rule(op, Gives.MOVES, _SELECTORS, "cpu")
    yield Rule("DepthToSpace", Gives.MOVES, _MEASURED, "cpu")
    yield Rule("Resize", Gives.MOVES, _SELECTORS, "cpu", case="nearest")
    yield Rule(
        "Resize",
        Gives.MOVES,
        f"{_MEASURED}: itself in float, but what is around it stays integer",
        "cpu",
    )
    yield Rule("Relu", Gives.ABSORBED, _MEASURED, "cpu", case="behind Conv, Gemm or Add")
    yield Rule("Clip", Gives.ABSORBED, _MEASURED, "cpu", case="behind Conv, from 0")
    for op in (
        "ConvTranspose",
        "Div",
        "Erf",
        "Exp",
        "Gelu",
        "HardSigmoid",
        "HardSwish",
        "LayerNormalization",
        "Neg",
        "Pad",
        "ReduceMean",
        "Relu",
        "Split",
        "Sqrt",
        "Sub",
        "Tanh",
    ):
        yield Rule(op, Gives.FLOAT, _MEASURED, "cpu")
    yield Rule("Mul", Gives.FLOAT, _MEASURED, "cpu", case="by a float constant")
    yield Rule("Conv", Gives.FLOAT, _MEASURED, "cpu", case="float output")
    yield Rule(
        "Conv", Gives.GUARDED, "onnxruntime weight_bias_quantization.cc", "cpu", case="float"
    )
    yield Rule(
        "Softmax",
        Gives.FLOAT,
        f"{_MEASURED}: fuses, but attention in integers gains no time and loses 2 dB",
        "cpu",
        case="attention",
    )
    yield Rule(
        "MatMul",
        Gives.PER_TENSOR,
        f"{_MEASURED}: loads, then fails in the run",
        "cpu",
        case="weight of three axes and more",
    )
    yield Rule("Add", Gives.SCALAR, f"{_MEASURED}: QLinearAdd does not load", "cpu")
    yield Rule("Conv", Gives.FLOAT, f"{_SELECTORS}: no 16 bits", "cpu", case="16-bit activations")
    yield Rule(
        "MatMul", Gives.FLOAT, f"{_SELECTORS}: no 16 bits", "cpu", case="16-bit activations"
    )
    yield Rule("*", Gives.REDUCED, "microsoft/onnxruntime#5849, #14642", "cpu", "no-vnni")
    yield Rule("*", Gives.SIGNED, "microsoft/onnxruntime#6732", "cpu", "arm")


def _openvino() -> Iterator[Rule]:
    for op in ("Conv", "ConvTranspose", "Gemm", "MatMul"):
        yield Rule(op, Gives.INTEGER, _OPENVINO, "openvino")
    for op in ("AveragePool", "GlobalAveragePool", "LeakyRelu", "Sigmoid"):
        yield Rule(op, Gives.INTEGER, _OPENVINO, "openvino")
    for op in ("Add", "Concat", "Mul"):
        yield Rule(op, Gives.JOINED, f"{_OPENVINO} (of parts on different grids)", "openvino")
    yield Rule("Tile", Gives.FLOAT, _OPENVINO, "openvino")
    yield Rule(
        "Resize", Gives.MOVES, f"{_OPENVINO}: itself in float, integers around it", "openvino"
    )
    for op in ("DepthToSpace", *MOVING):
        yield Rule(op, Gives.MOVES, _OPENVINO, "openvino")


def _tensorrt() -> Iterator[Rule]:
    yield Rule("*", Gives.SYMMETRIC_S8, f"{_TENSORRT}; microsoft/onnxruntime#6732", "tensorrt")
    for op in ("Conv", "ConvTranspose", "Gemm", "MatMul"):
        yield Rule(op, Gives.INTEGER, _TENSORRT, "tensorrt")
    for op in ("Add", "AveragePool", "Concat", "GlobalAveragePool", "Mul"):
        yield Rule(op, Gives.INTEGER, _TENSORRT, "tensorrt")
    for op in ("Flatten", "MaxPool", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"):
        yield Rule(op, Gives.MOVES, _TENSORRT, "tensorrt")


def _cuda() -> Iterator[Rule]:
    yield Rule("*", Gives.SYMMETRIC_S8, "microsoft/onnxruntime#6732", "cuda")
    for op in ("Conv", "Gemm", "MatMul"):
        yield Rule(op, Gives.STORED, _NO_SELECTOR, "cuda")


def _directml() -> Iterator[Rule]:
    for op in ("Conv", "MatMul"):
        yield Rule(op, Gives.INTEGER, _SELECTORS, "directml")
    for op in ("Add", "AveragePool", "Concat", "GlobalAveragePool", "LeakyRelu", "Sigmoid"):
        yield Rule(op, Gives.INTEGER, _SELECTORS, "directml")
    yield Rule("Mul", Gives.FLOAT, _SELECTORS, "directml")
    for op in (*MOVING, "Tile"):
        yield Rule(op, Gives.MOVES, _SELECTORS, "directml")


def _any() -> Iterator[Rule]:
    yield Rule(
        "Gather",
        Gives.BEHIND,
        "measured: in front of it the whole table is made float in every run (16 % of MiniLM)",
        case="embedding",
    )


RULES: tuple[Rule, ...] = (*_any(), *_cpu(), *_openvino(), *_tensorrt(), *_cuda(), *_directml())

LAYERS = ("Conv", "ConvTranspose", "MatMul", "Gemm")
"""Operators that multiply by a weight."""


def rule(op: str, target: Target) -> Rule | None:
    """Return the row of an operator's plain use on a provider; None where nobody looked."""
    found = (r for r in RULES if r.op == op and not r.case and r.provider in (target, "any"))
    return next((r for r in found if r.gives in _PLACES), None)


def of_layers(target: Target) -> tuple[str, ...]:
    """Return the operators whose weights become integer."""
    return tuple(op for op in LAYERS if _gives(op, target) in (Gives.INTEGER, Gives.STORED))


def between(target: Target) -> tuple[str, ...]:
    """Return the operators between two layers that stay in integers."""
    ops = dict.fromkeys(r.op for r in RULES if r.op not in (*LAYERS, "*"))
    wanted = (Gives.INTEGER, Gives.JOINED, Gives.MOVES)
    return tuple(sorted(op for op in ops if _gives(op, target) in wanted))


def symmetric_s8(target: Target) -> bool:
    """Say whether the provider takes nothing but int8 activations with zero point 0."""
    return any(r.provider == target and r.gives is Gives.SYMMETRIC_S8 for r in RULES)


def for_cpu(flags: frozenset[str]) -> Gives | None:
    """Return what the CPU's instruction set asks of the integers; None for nothing.

    Args:
        flags: The CPU's, in Linux' spelling; empty where unknown.
    """
    isa = _isa(flags)
    found = (r for r in RULES if r.op == "*" and r.provider == "cpu" and r.isa == isa)
    return next((r.gives for r in found), None)


_PLACES = (Gives.INTEGER, Gives.STORED, Gives.JOINED, Gives.MOVES, Gives.FLOAT)


def _gives(op: str, target: Target) -> Gives | None:
    found = rule(op, target)
    return None if found is None else found.gives


def _isa(flags: frozenset[str]) -> str:
    if flags & {"avx512_vnni", "avx_vnni"}:
        return "vnni"
    if "asimd" in flags or "neon" in flags:
        return "arm"
    return "no-vnni" if "avx2" in flags or "sse4_1" in flags else "any"
