"""The rules of static int8: operator, provider, instruction set -> what becomes of it.

A runtime computes in integers only where it knows the pattern; pairs anywhere else cost time and
accuracy for nothing. What a row says of a provider was read in the file or thread that it names,
or measured (``test_runtime_rules.py`` measures the rows of onnxruntime's CPU provider and of
OpenVINO again). The fields of `int8-static` override every row: the search measures.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Literal, TypeAlias, get_args

from ortune.core.errors import BadSettings
from ortune.core.hardware.cpus import list_native_units

Target: TypeAlias = Literal["cpu", "openvino", "tensorrt", "cuda", "directml"]

TARGETS: tuple[Target, ...] = get_args(Target)


class Treatment(Enum):
    """What becomes of an operator between pairs."""

    INTEGER = "integer kernel; input and output have separate scales"
    JOINED = "float inside one kernel that reads and writes integers"
    STORED = "no integer kernel: the weights are small, the arithmetic float"
    MOVES = "only moves values; input and output must share scale and zero point"
    FLOAT = "computed in float between the pairs, so no pairs are placed"
    ABSORBED = "fused into the integer kernel before it"
    GUARDED = "the runtime quantizes it if pairs surround it, so no pairs are placed"
    SYMMETRIC_S8 = "activations must be int8 with zero point 0"
    SYMMETRIC = "zero point 0 is fast: uint8 where no value is negative, else int8"
    CENTRED = "integer kernel, on request (`attention`): both have zero point 0"
    UNREAD = "lengths are written as sizes, or layers in integers get other numbers"
    BOUNDED = "a Min stands in front of the pair, or the layers behind are computed in float"
    LOSSY = "has an integer kernel, which costs accuracy for little time: leave it out"
    REDUCED = "7-bit weights: the sum of two 8-bit products overflows 16 bits"
    SIGNED = "int8 activations are fast with int8 weights"
    PER_TENSOR = "one scale per tensor; per-channel scales are refused or wrong"
    SCALAR = "the pair's scale and zero point must have rank 0"
    BEHIND = "integers are looked up; DequantizeLinear stands behind the Gather"
    FLOAT_BIAS = "the bias stays float: no DequantizeLinear takes 32-bit integers"
    STRAIGHT = "integer weights are direct inputs of their DequantizeLinear, in the layer's layout"
    EIGHT_BITS = "16-bit activations are refused"


@dataclass(frozen=True)
class Rule:
    """One row: an operator, * for every layer, and what becomes of it."""

    op: str
    treatment: Treatment
    source: str  # file, thread or measurement that says so
    provider: Target | Literal["any"] = "any"
    isa: Literal["any", "amx", "vnni", "no-vnni", "arm"] = "any"
    case: str = ""  # which of the operator's uses the row is about; empty for all others


_MOVING = "Expand Flatten MaxPool Reshape Slice Squeeze Transpose Unsqueeze"
MOVING = tuple(_MOVING.split())
"""Operators that move integers as they are, wherever there are integers."""

_SELECTORS = "onnxruntime qdq_selector_action_transformer.cc"
_MEASURED = "measured: onnxruntime 1.31.1"
_OPENVINO = "measured: openvino 2026.4.1; src/common/low_precision_transformations"
_EXECUTED = "measured: benchmarks.speed.executed_int8"
_TENSORRT = "NVIDIA TensorRT developer guide, explicit quantization"
_IMPORTER = "onnx/onnx-tensorrt onnxOpImporters.cpp, QuantDequantLinearHelper"
_NO_SELECTOR = f"{_SELECTORS} lists no CUDA provider"
_RESIZED = "itself in float, but what is around it stays integer"

_MEASURED_FLOAT = (
    "ConvTranspose Div Erf Exp Gelu HardSigmoid HardSwish LayerNormalization Neg Pad ReduceMean "
    "Relu Split Sqrt Sub Tanh"
)
_POOLED = "Add AveragePool Concat GlobalAveragePool"

_PLAIN: tuple[tuple[Target, Treatment, str, str], ...] = (
    ("cpu", Treatment.INTEGER, _SELECTORS, f"Conv MatMul Gemm {_POOLED} LeakyRelu Mul Sigmoid"),
    ("cpu", Treatment.MOVES, _SELECTORS, f"{_MOVING} Tile"),
    ("cpu", Treatment.MOVES, _MEASURED, "DepthToSpace"),
    ("cpu", Treatment.MOVES, f"{_MEASURED}: {_RESIZED}", "Resize"),
    ("cpu", Treatment.FLOAT, _MEASURED, _MEASURED_FLOAT),
    ("openvino", Treatment.INTEGER, _OPENVINO, "Conv ConvTranspose Gemm MatMul AveragePool"),
    ("openvino", Treatment.INTEGER, _OPENVINO, "GlobalAveragePool"),
    ("openvino", Treatment.JOINED, f"{_OPENVINO} (of parts on different grids)", "Add Concat"),
    ("openvino", Treatment.LOSSY, _EXECUTED, "LeakyRelu Mul Sigmoid"),
    ("openvino", Treatment.FLOAT, _OPENVINO, "Tile"),
    ("openvino", Treatment.MOVES, f"{_OPENVINO}: itself in float, integers around it", "Resize"),
    ("openvino", Treatment.MOVES, _OPENVINO, f"DepthToSpace {_MOVING}"),
    ("tensorrt", Treatment.INTEGER, _TENSORRT, f"Conv ConvTranspose Gemm MatMul {_POOLED} Mul"),
    ("tensorrt", Treatment.MOVES, _TENSORRT, _MOVING.removeprefix("Expand ")),
    ("cuda", Treatment.STORED, _NO_SELECTOR, "Conv Gemm MatMul"),
    ("directml", Treatment.INTEGER, _SELECTORS, f"Conv MatMul {_POOLED} LeakyRelu Sigmoid"),
    ("directml", Treatment.FLOAT, _SELECTORS, "Mul"),
    ("directml", Treatment.MOVES, _SELECTORS, f"{_MOVING} Tile"),
)
"""What becomes of operators in their plain use."""

_CHECKED = "onnxruntime qdq_selectors.cc, GetQDQSelection and CheckQDQNodes"
_WIDE = "16-bit activations"
_ATTENTION = "two activations"
_CASES = (
    Rule("Resize", Treatment.MOVES, _SELECTORS, "cpu", case="nearest"),
    Rule("Relu", Treatment.ABSORBED, _MEASURED, "cpu", case="behind Conv, Gemm or Add"),
    Rule("Clip", Treatment.ABSORBED, _MEASURED, "cpu", case="behind Conv, from 0"),
    Rule("Gemm", Treatment.FLOAT, _CHECKED, "cpu", case="before a Relu that no pair repeats"),
    Rule("Gemm", Treatment.FLOAT, _CHECKED, "cpu", case="read by a pair and by others"),
    Rule("Relu", Treatment.FLOAT, _MEASURED, "cpu", case="behind MaxPool"),
    Rule("Mul", Treatment.FLOAT, _MEASURED, "cpu", case="by a float constant"),
    Rule("Conv", Treatment.FLOAT, _MEASURED, "cpu", case="float output"),
    Rule("Conv", Treatment.INTEGER, _EXECUTED, "openvino", case="float output"),
    Rule("Concat", Treatment.BOUNDED, _OPENVINO, "openvino", case="before a pair"),
    Rule("Shape", Treatment.UNREAD, _OPENVINO, "openvino", case="of one length"),
    Rule("MatMul", Treatment.CENTRED, _EXECUTED, "openvino", "vnni", case=_ATTENTION),
    Rule(
        "Conv", Treatment.GUARDED, "onnxruntime weight_bias_quantization.cc", "cpu", case="float"
    ),
    Rule(
        "Softmax",
        Treatment.FLOAT,
        f"{_MEASURED}: it fuses, but integer attention saves no time and loses 2 dB",
        "cpu",
        case="attention",
    ),
    Rule(
        "MatMul",
        Treatment.PER_TENSOR,
        f"{_MEASURED}: the model loads, and inference fails",
        "cpu",
        case="weight of three axes and more",
    ),
    Rule("Add", Treatment.SCALAR, f"{_MEASURED}: QLinearAdd does not load", "cpu"),
    Rule("Conv", Treatment.FLOAT, f"{_SELECTORS}: no 16 bits", "cpu", case=_WIDE),
    Rule("MatMul", Treatment.FLOAT, f"{_SELECTORS}: no 16 bits", "cpu", case=_WIDE),
    Rule("*", Treatment.REDUCED, "microsoft/onnxruntime#5849, #14642", "cpu", "no-vnni"),
    Rule("*", Treatment.SIGNED, "microsoft/onnxruntime#6732", "cpu", "arm"),
    Rule("*", Treatment.SYMMETRIC, _EXECUTED, "openvino", "amx"),
    Rule("*", Treatment.REDUCED, f"{_EXECUTED}: 20 dB, at the same speed", "openvino", "no-vnni"),
    Rule("*", Treatment.SYMMETRIC_S8, f"{_TENSORRT}; microsoft/onnxruntime#6732", "tensorrt"),
    Rule("*", Treatment.SYMMETRIC_S8, "microsoft/onnxruntime#6732", "cuda"),
    Rule(
        "*",
        Treatment.FLOAT_BIAS,
        "microsoft/onnxruntime#14229, #17738; onnx/onnx-tensorrt#850",
        "tensorrt",
    ),
    Rule(
        "*",
        Treatment.FLOAT_BIAS,
        "onnxruntime quantize_linear_test.cc: no CUDA kernel for int32",
        "cuda",
    ),
    Rule("*", Treatment.EIGHT_BITS, f"{_IMPORTER}: INT8, INT4, FP8 and FP4", "tensorrt"),
    Rule("*", Treatment.STRAIGHT, f"{_TENSORRT}: weights are build-time constants", "tensorrt"),
    Rule(
        "ConvTranspose",
        Treatment.PER_TENSOR,
        "NVIDIA/TensorRT#1519, #1694: refused or wrong by channels",
        "tensorrt",
        case="any group",
    ),
    Rule(
        "ConvTranspose",
        Treatment.FLOAT,
        "NVIDIA/TensorRT#1934: refused",
        "tensorrt",
        case="in groups",
    ),
    Rule(
        "Gather",
        Treatment.FLOAT,
        f"{_TENSORRT}: per-channel scales are for weights only",
        "tensorrt",
        case="embedding",
    ),
    Rule(
        "Gather",
        Treatment.BEHIND,
        "measured: in front of it every run dequantizes the whole table (16 % of MiniLM)",
        case="embedding",
    ),
)
"""What goes beyond that: single cases, and what holds for every layer."""

RULES = (
    *(Rule(op, gives, why, where) for where, gives, why, ops in _PLAIN for op in ops.split()),
    *_CASES,
)

LAYERS = ("Conv", "ConvTranspose", "MatMul", "Gemm")
"""Operators that multiply by a weight."""


def find_rule(op: str, target: Target) -> Rule | None:
    """Return the row of an operator's plain use on a provider; None where there is no row."""
    rows = (r for r in RULES if r.op == op and not r.case and r.provider in (target, "any"))
    return next((r for r in rows if r.treatment in _PLACES), None)


def list_layer_ops(target: Target) -> tuple[str, ...]:
    """Return the operators whose weights become integer."""
    return tuple(
        op for op in LAYERS if _find_treatment(op, target) in (Treatment.INTEGER, Treatment.STORED)
    )


def list_following_ops(target: Target) -> tuple[str, ...]:
    """Return the operators between two layers that stay in integers."""
    ops = dict.fromkeys(r.op for r in RULES if r.op not in (*LAYERS, "*"))
    treatments = (Treatment.INTEGER, Treatment.JOINED, Treatment.MOVES)
    return tuple(sorted(op for op in ops if _find_treatment(op, target) in treatments))


def has_rule(target: Target, treatment: Treatment, op: str = "*", case: str = "") -> bool:
    """Say whether a row of the provider's own asks for something, of every layer or of one use."""
    key = (op, treatment, target, case)
    return any((r.op, r.treatment, r.provider, r.case) == key for r in RULES)


def needs_symmetric_s8(target: Target) -> bool:
    """Say whether the provider takes nothing but int8 activations with zero point 0."""
    return has_rule(target, Treatment.SYMMETRIC_S8)


def bounds_joined(target: Target) -> bool:
    """Say whether a Min has to stand in front of a pair behind a Concat."""
    return has_rule(target, Treatment.BOUNDED, "Concat", "before a pair")


def misreads_lengths(target: Target) -> bool:
    """Say whether a length that the graph reads has to be written as a size over the others."""
    return has_rule(target, Treatment.UNREAD, "Shape", "of one length")


def takes_tables(target: Target) -> bool:
    """Say whether looked-up tables may be integers, with a step a channel behind the Gather."""
    return not has_rule(target, Treatment.FLOAT, "Gather", "embedding")


def reject_unsupported(target: Target, *, wide: bool, tables: bool, attention: bool) -> None:
    """Refuse integers that a provider does not take.

    Args:
        wide: Some activations are to take 16 bits.
        tables: Looked-up tables are to be integers.
        attention: Products of two activations are to be integers.

    Raises:
        BadSettings: The provider takes none of these.
    """
    if wide and has_rule(target, Treatment.EIGHT_BITS):
        raise BadSettings(
            f"{target} takes no 16-bit activations",
            fix="leave `wide` out, and put the nodes into `exclude`: they stay float",
        )
    if tables and not takes_tables(target):
        raise BadSettings(
            f"{target} takes no embedding table of integers with a scale per channel",
            fix="leave `embeddings` out: tables stay float",
        )
    if attention and not has_rule(target, Treatment.CENTRED, "MatMul", _ATTENTION):
        raise BadSettings(
            f"{target} gains nothing from integer products of two activations",
            fix="leave `attention` out: they stay float",
        )


def find_isa_treatment(target: Target, flags: frozenset[str]) -> Treatment | None:
    """Return what the CPU's instruction set asks of a provider's integers; None for nothing.

    Args:
        flags: The CPU's, in Linux' spelling; empty where unknown.
    """
    names = _list_instruction_sets(flags)
    rows = (r for r in RULES if r.op == "*" and r.provider == target and r.isa in names)
    return next((r.treatment for r in rows), None)


def gains_by_attention(target: Target, flags: frozenset[str]) -> bool:
    """Say whether the CPU is faster by the provider's integer products of two activations.

    Args:
        flags: The CPU's, in Linux' spelling; empty where unknown.
    """
    names = _list_instruction_sets(flags)[-1:]
    return any(r.case == _ATTENTION and r.provider == target and r.isa in names for r in RULES)


def writes_float(target: Target) -> bool:
    """Say whether an integer convolution of the provider may write float at no cost."""
    return has_rule(target, Treatment.INTEGER, "Conv", "float output")


_PLACES = (Treatment.INTEGER, Treatment.STORED, Treatment.JOINED, Treatment.MOVES, Treatment.FLOAT)


def _find_treatment(op: str, target: Target) -> Treatment | None:
    row = find_rule(op, target)
    return None if row is None else row.treatment


def _list_instruction_sets(flags: frozenset[str]) -> tuple[str, ...]:
    units = list_native_units(flags)
    if "int8-vnni" in units:
        return ("vnni", "amx") if "int8-amx" in units else ("vnni",)
    if "asimd" in flags or "neon" in flags:
        return ("arm",)
    return ("no-vnni",) if "avx2" in flags or "sse4_1" in flags else ()
