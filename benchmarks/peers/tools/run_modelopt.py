"""NVIDIA ModelOpt: int8 as it comes (the rest becomes float16), and with the rest in float32."""

from __future__ import annotations

from modelopt.onnx.quantization import quantize
from task import tell, told

if __name__ == "__main__":
    asked = told()
    quantize(
        str(asked.model),
        quantize_mode="int8",
        calibration_data=asked.stacked(),
        calibration_eps=["cpu"],
        high_precision_dtype="fp32" if asked.recipe == "int8, rest float32" else "fp16",
        output_path=str(asked.out),
    )
    tell("nvidia-modelopt")
