"""AMD Quark: U8S8 for CPUs, and its int8 default for the kind of model."""

from __future__ import annotations

from quark.onnx import ModelQuantizer
from quark.onnx.quantization.config import Config, get_default_config
from task import Reader, tell, told

if __name__ == "__main__":
    asked = told()
    kind = "TRANSFORMER" if asked.transformer else "CNN"
    name = {"U8S8_AAWS": "U8S8_AAWS", "INT8 default": f"INT8_{kind}_DEFAULT"}[asked.recipe]
    config = Config(global_quant_config=get_default_config(name))
    ModelQuantizer(config).quantize_model(str(asked.model), str(asked.out), Reader(asked))
    tell("amd-quark", name)
