"""What each word of `--precision` needs, and how its file is known."""

from __future__ import annotations

import re

from ortune.backends.cpu import Cpu
from ortune.backends.openvino import Openvino
from ortune.core.errors import BadSettings
from ortune.core.facts import Facts

CALIBRATED = ("fp16", "bf16", "fp8", "int8", "int4")
"""Precisions that do something with samples."""

RANGED = ("fp8", "int8")
"""Precisions whose steps take the ranges of a file."""

_INTEGER = re.compile(r"Quant|QLinear|Integer|QAttention|QGemm|DequantizeLinear")
"""Operators that make or take integers, standard and onnxruntime's."""


def refuse(precision: str | None, target: str, *, static: bool) -> None:
    """Refuse a precision that cannot be had like this.

    Raises:
        BadSettings: fp8 or int8 for what does not multiply it, or without samples.
    """
    if precision == "fp8" and target == "cpu":
        raise BadSettings(
            "fp8 is for GPUs: no CPU multiplies float8",
            fix="add --target gpu, or use --precision int8",
        )
    if precision in ("fp8", "int8") and target == "cuda":
        raise BadSettings(
            f"onnxruntime's CUDA provider has no kernels for {precision}: pairs of Q/DQ around "
            "float ones cost time",
            fix="use --target tensorrt, or --precision fp16",
        )
    if precision in ("fp8", "bf16") and target == "directml":
        raise BadSettings(
            f"DirectML has no {precision} arithmetic",
            fix="use --precision fp16, or int8 with --data",
        )
    if precision == "fp8" and not static:
        raise BadSettings(
            "fp8 needs samples: the ranges of activations are measured",
            fix="give them with --data, or ranges with --ranges-from",
        )
    if precision == "int8" and target != "cpu" and not static:
        raise BadSettings(
            "dynamic int8 does not run on a GPU: DynamicQuantizeLinear, MatMulInteger and "
            "ConvInteger have no GPU kernel",
            fix="use --precision fp16, or give --data for static symmetric int8 (QDQ)",
        )


def holds(precision: str, found: Facts, *, folded: bool) -> bool:
    """Say whether a file's weights are of a precision.

    Args:
        folded: Integer weights may be widened by Cast and Mul.
    """
    held = found.precisions
    match precision:
        case "fp16":
            return held.get("float16", 0) > held.get("float32", 0)
        case "bf16":
            return held.get("bfloat16", 0) > held.get("float32", 0)
        case "fp8":
            return held.get("float8_e4m3fn", 0) > 0
        case "int4":
            packed = found.has("com.microsoft::MatMulNBits", "com.microsoft::GatherBlockQuantized")
            return packed or bool({"int4", "uint4"} & set(held))
        case "int8":
            integers = held.get("int8", 0) + held.get("uint8", 0)
            return integers > 0 and (folded or any(_INTEGER.search(op) for op in found.ops))
        case _:
            return not {"float16", "bfloat16"} & set(held)


def checker(precision: str | None, custom_ops: tuple[str, ...] = ()) -> Cpu | Openvino:
    """Return where a file of this precision is loaded and compared.

    onnxruntime's CPU provider has no bfloat16 products, and its integer rewrites, from level
    extended on, refuse float8.
    """

    match precision:
        case "bf16":
            return Openvino(precision="f32")
        case "fp8":
            return Cpu(level="basic", custom_ops=custom_ops)
        case _:
            return Cpu(custom_ops=custom_ops)
