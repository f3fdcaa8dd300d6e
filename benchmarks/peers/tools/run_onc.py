"""onnx-neural-compressor: post-training static, and SmoothQuant, with its defaults."""

from __future__ import annotations

from onnx_neural_compressor import data_reader
from onnx_neural_compressor.quantization import config, quantize
from task import Reader, tell, told


class Samples(Reader, data_reader.CalibrationDataReader):
    """The samples under the tool's own type."""


if __name__ == "__main__":
    asked = told()
    kind = {"static": config.StaticQuantConfig, "SmoothQuant": config.SmoothQuantConfig}
    quantize(asked.model, asked.out, kind[asked.recipe](calibration_data_reader=Samples(asked)))
    tell("onnx-neural-compressor")
