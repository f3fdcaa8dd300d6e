"""NNCF's post-training quantization of an ONNX model, with its defaults, and with its one hint."""

from __future__ import annotations

import nncf
import onnx
from task import tell, told

if __name__ == "__main__":
    asked = told()
    hint = {}
    if asked.recipe == "hinted":
        hint = (
            {"model_type": nncf.ModelType.TRANSFORMER}
            if asked.transformer
            else {"preset": nncf.QuantizationPreset.MIXED}
        )
    made = nncf.quantize(onnx.load(asked.model), nncf.Dataset(list(asked.feeds())), **hint)
    onnx.save(made, asked.out)
    tell("nncf", " ".join(str(value) for value in hint.values()))
