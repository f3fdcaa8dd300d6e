"""NNCF: quantization with its defaults and its one hint, of weights alone, or until a score holds.

`quantize_with_accuracy_control` takes the evaluation samples too: it quantizes all, ranks layers
by what they cost there, and gives them back until the drop is within the budget. It is asked for
an OpenVINO model, for which it is written, and for an ONNX one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import nncf
import numpy as np
import onnx
from judging import Arrays, Judge, running
from task import Task, tell, told

Run: TypeAlias = Callable[[Arrays], Arrays]


def hint(task: Task) -> dict[str, Any]:
    """What one may tell of the kind of model."""
    if task.transformer:
        return {"model_type": nncf.ModelType.TRANSFORMER}
    return {"preset": nncf.QuantizationPreset.MIXED}


def made(task: Task) -> tuple[Any, str]:
    """Return the ONNX model of a recipe and what was given beside the samples."""
    model = onnx.load(task.model)
    if task.recipe == "8-bit weights":
        return nncf.compress_weights(model, mode=nncf.CompressWeightsMode.INT8_ASYM), ""
    given = hint(task) if task.recipe == "hinted" else {}
    samples = nncf.Dataset(list(task.feeds()))
    return nncf.quantize(model, samples, **given), " ".join(str(one) for one in given.values())


def controlled(task: Task, judge: Judge, model: Any, running: Callable[[Any], Run]) -> Any:
    """Quantize until no more is lost than may be; transformers are told to be some.

    Args:
        running: Makes a function of feeds from what the tool validates.
    """

    def score(found: Any, items: Iterable[int]) -> tuple[float, list[float]]:
        return judge.some(running(found), list(items))

    return nncf.quantize_with_accuracy_control(
        model,
        nncf.Dataset(list(task.feeds())),
        nncf.Dataset(range(len(judge.feeds)), lambda item: dict(judge.feeds[item])),
        validation_fn=score,
        max_drop=task.goal["drop"],
        drop_type=nncf.DropType.ABSOLUTE,
        **(hint(task) if task.transformer else {}),
    )


def answers(compiled: Any) -> Run:
    """Return a function from feeds to the outputs of OpenVINO's compiled model, by name."""
    names = [(port.get_any_name(), port) for port in compiled.outputs]

    def run(feed: Arrays) -> Arrays:
        found = compiled(dict(feed))
        return {name: np.array(found[port]) for name, port in names}

    return run


def on_openvino(task: Task) -> None:
    """Write OpenVINO's own format of the model as OpenVINO reads it."""
    import openvino

    model = openvino.Core().read_model(str(task.model))
    model = controlled(task, task.judge(), model, answers)
    openvino.save_model(model, task.out.with_suffix(".xml"), compress_to_fp16=False)


def convert_hinted(task: Task) -> None:
    """Write OpenVINO's own format of the model, quantized as hinted by all samples."""
    import openvino

    feeds, model = list(task.feeds()), openvino.Core().read_model(str(task.model))
    model = nncf.quantize(model, nncf.Dataset(feeds), subset_size=len(feeds), **hint(task))
    openvino.save_model(model, task.out, compress_to_fp16=False)


def on_onnx(task: Task) -> None:
    model = controlled(
        task, task.judge(), onnx.load(task.model), lambda one: running(one.SerializeToString())
    )
    onnx.save(model, task.out)


if __name__ == "__main__":
    asked, said = told(), ""
    if asked.recipe == "accuracy control":
        on_openvino(asked)
    elif asked.recipe == "accuracy control, ONNX":
        on_onnx(asked)
    elif asked.recipe == "hinted, OpenVINO":
        convert_hinted(asked)
    else:
        found, said = made(asked)
        onnx.save(found, asked.out)
    tell("nncf", said)
