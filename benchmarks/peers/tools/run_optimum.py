"""Optimum's onnxruntime quantizer for AVX512-VNNI: dynamic by its command line, and static."""

from __future__ import annotations

import shutil
import subprocess
import sys

from task import Task, tell, told


def dynamic(task: Task) -> None:
    """As documented: ``optimum-cli onnxruntime quantize --avx512_vnni``."""
    source = task.out.parent / "source"
    source.mkdir()
    shutil.copy(task.model, source / "model.onnx")
    made = task.out.parent / "made"
    command = [sys.executable, "-m", "optimum.commands.optimum_cli", "onnxruntime", "quantize"]
    command += ["--avx512_vnni", "--per_channel", "--onnx_model", str(source), "-o", str(made)]
    if code := subprocess.run(command, check=False).returncode:
        sys.exit(code)
    shutil.move(made / "model_quantized.onnx", task.out)


def static(task: Task) -> None:
    """Static by `ORTQuantizer`: the ranges from `fit`, min-max as in the documentation."""
    from onnxruntime.quantization import CalibrationMethod
    from optimum.onnxruntime import ORTQuantizer
    from optimum.onnxruntime.configuration import AutoQuantizationConfig, CalibrationConfig

    source = task.out.parent / "source"
    source.mkdir()
    shutil.copy(task.model, source / "model.onnx")
    quantizer = ORTQuantizer.from_pretrained(source)
    config = AutoQuantizationConfig.avx512_vnni(is_static=True, per_channel=True)
    calibration = CalibrationConfig("", "", "", 0, CalibrationMethod.MinMax)
    rows = [{name: array[0] for name, array in feed.items()} for feed in task.feeds()]
    ranges = quantizer.fit(
        rows, calibration, operators_to_quantize=config.operators_to_quantize, batch_size=1
    )
    made = task.out.parent / "made"
    quantizer.quantize(save_dir=made, quantization_config=config, calibration_tensors_range=ranges)
    shutil.move(made / "model_quantized.onnx", task.out)


if __name__ == "__main__":
    asked = told()
    {"dynamic, avx512_vnni": dynamic, "static, avx512_vnni": static}[asked.recipe](asked)
    tell("optimum-onnx")
