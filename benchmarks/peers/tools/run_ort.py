"""onnxruntime's own tools: static QDQ, dynamic, 4-bit weights, float16, transformer fusions.

The debugging recipe is in ``debugging.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import onnx
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)
from onnxruntime.quantization.shape_inference import quant_pre_process
from task import Reader, Task, tell, told

CalibrationDataReader.register(Reader)


def prepared(task: Task) -> tuple[str, str]:
    """Run the pre-processing that the documentation asks for; say when half of it fails."""
    ready = str(task.out.with_name("prepared.onnx"))
    try:
        quant_pre_process(str(task.model), ready)
    except Exception as error:
        quant_pre_process(str(task.model), ready, skip_symbolic_shape=True)
        why = f"{type(error).__name__}: {error}".splitlines()[0][:80]
        return ready, f"pre-processed without symbolic shapes ({why})"
    return ready, ""


def static(task: Task, per_channel: bool) -> str:
    ready, note = prepared(task)
    written(task, ready, task.out, per_channel)
    return note


def written(
    task: Task, ready: str, out: Path, per_channel: bool = True, left: Sequence[str] = ()
) -> None:
    """Quantize all but the nodes that are named."""
    quantize_static(
        ready,
        str(out),
        Reader(task),
        quant_format=QuantFormat.QDQ,
        per_channel=per_channel,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        nodes_to_exclude=list(left),
    )


def worst_left_out(task: Task) -> str:
    from debugging import made

    ready, _ = prepared(task)
    return made(task, ready, lambda left, out: written(task, ready, out, left=left))


def dynamic(task: Task) -> str:
    ready, note = prepared(task)
    quantize_dynamic(ready, str(task.out), per_channel=True, weight_type=QuantType.QInt8)
    return note


def matmul_4bits(task: Task) -> str:
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    quantizer = MatMulNBitsQuantizer(
        onnx.load(task.model), block_size=128, is_symmetric=True, accuracy_level=4
    )
    quantizer.process()
    quantizer.model.save_model_to_file(str(task.out))
    types = [node.op_type for node in onnx.load(task.out).graph.node]
    done = types.count("MatMulNBits")
    left = types.count("MatMul") + types.count("Gemm")
    return f"{done} of {done + left} matrix products"


def float16(task: Task) -> str:
    from onnxruntime.transformers.float16 import convert_float_to_float16

    made = convert_float_to_float16(onnx.load(task.model), keep_io_types=True)
    onnx.save(made, task.out)
    return ""


def fused(task: Task) -> str:
    from onnxruntime.transformers.optimizer import optimize_model

    made = optimize_model(str(task.model), model_type="bert", num_heads=12, hidden_size=384)
    made.save_model_to_file(str(task.out))
    counts = {key: value for key, value in made.get_fused_operator_statistics().items() if value}
    return ", ".join(f"{value} {key}" for key, value in counts.items())


RECIPES = {
    "static, per channel": lambda task: static(task, True),
    "worst layers left out": worst_left_out,
    "static, per tensor": lambda task: static(task, False),
    "dynamic": dynamic,
    "MatMulNBits 4 bits": matmul_4bits,
    "float16": float16,
    "transformers.optimizer": fused,
}

if __name__ == "__main__":
    asked = told()
    tell("onnxruntime", RECIPES[asked.recipe](asked))
