"""NNCF on an ONNX model: quantization with its defaults and its one hint, or of weights alone."""

from __future__ import annotations

from typing import Any

import nncf
import onnx
from task import Task, tell, told


def made(task: Task) -> tuple[Any, str]:
    """Return the model of a recipe and what was given beside the samples."""
    model = onnx.load(task.model)
    if task.recipe == "8-bit weights":
        return nncf.compress_weights(model, mode=nncf.CompressWeightsMode.INT8_ASYM), ""
    hint: dict[str, Any] = {}
    if task.recipe == "hinted":
        hint = (
            {"model_type": nncf.ModelType.TRANSFORMER}
            if task.transformer
            else {"preset": nncf.QuantizationPreset.MIXED}
        )
    samples = nncf.Dataset(list(task.feeds()))
    return nncf.quantize(model, samples, **hint), " ".join(str(value) for value in hint.values())


if __name__ == "__main__":
    asked = told()
    found, said = made(asked)
    onnx.save(found, asked.out)
    tell("nncf", said)
