"""onnx-neural-compressor: static quantization with its defaults, without and with SmoothQuant.

SmoothQuant is asked for by the option: a `SmoothQuantConfig` given to `quantize` is taken for a
plain static one, without a word.
"""

from __future__ import annotations

from onnx_neural_compressor import data_reader
from onnx_neural_compressor.quantization import config, quantize
from task import Reader, tell, told


class Samples(Reader, data_reader.CalibrationDataReader):
    """The samples under the tool's own type."""


if __name__ == "__main__":
    asked = told()
    options = {"SmoothQuant": True} if asked.recipe == "SmoothQuant" else {}
    settings = config.StaticQuantConfig(Samples(asked), extra_options=options)
    quantize(asked.model, asked.out, settings)
    tell("onnx-neural-compressor")
