"""onnxruntime's own recipe for lost accuracy: match activations, leave the worst layers in float.

Documented under "Debugging" of its quantization page: both models write every activation
(`qdq_loss_debug`), layers are ranked by the signal to noise ratio between them, and the worst are
given to ``nodes_to_exclude``. How many is for whoever looks: here 1, 2, 4, 8 ... of them, until
the budget holds or the time is over, and then halfway back as long as there is time.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import onnx
from onnxruntime.quantization import CalibrationDataReader
from onnxruntime.quantization.qdq_loss_debug import (
    collect_activations,
    compute_activation_error,
    create_activation_matching,
    modify_model_output_intermediate_tensors,
)
from task import Task

LAYERS = ("Conv", "MatMul", "Gemm")
SAMPLES = 8
"""Of the calibration samples, for matching: all activations of all of them stand in memory."""


class Some(CalibrationDataReader):
    """The first calibration samples; matching iterates over them."""

    def __init__(self, task: Task) -> None:
        self._left = islice(task.feeds(), SAMPLES)

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._left, None)


def made(task: Task, ready: str, quantize: Callable[[Sequence[str], Path], None]) -> str:
    """Write the file that leaves the fewest layers out and holds the budget; say how many.

    Args:
        ready: The float model that is quantized.
        quantize: Writes a quantized model without the layers that it is given.
    """
    began, judge = time.monotonic(), task.judge()
    draft = task.out.with_name("draft.onnx")
    quantize((), draft)
    shutil.copy(draft, task.out)
    score = judge.file(draft)
    if score >= judge.least:
        return f"no layer left out, {score:.4g}"
    ranked = ranking(task, Path(ready), draft)
    whole = time.monotonic() - began
    low, count, best, tried = 0, 1, len(ranked) + 1, 1
    said = f"the budget is not held: {score:.4g}"
    while low < count < best and time.monotonic() - began + whole / tried < task.goal["seconds"]:
        quantize(ranked[:count], draft)
        score, tried = judge.file(draft), tried + 1
        whole = time.monotonic() - began
        if score >= judge.least:
            best = count
            shutil.copy(draft, task.out)
            said = f"{count} of {len(ranked)} layers left out, {score:.4g}"
        else:
            low = count
        count = min(2 * count, len(ranked)) if best > len(ranked) else (low + best) // 2
    return f"{said}, {tried} files"


def ranking(task: Task, plain: Path, quantized: Path) -> list[str]:
    """Return the layers of a model, the worst first: by the noise of their output."""
    found = []
    for model in (plain, quantized):
        watched = task.out.with_name(f"watched-{model.stem}.onnx")
        modify_model_output_intermediate_tensors(str(model), str(watched))
        found.append(collect_activations(str(watched), Some(task)))
    matched = create_activation_matching(found[1], found[0])
    noise = compute_activation_error({k: v for k, v in matched.items() if v["float"]})
    layers = [node for node in onnx.load(plain).graph.node if node.op_type in LAYERS]
    score = {node.name: _of(node.output[0], noise) for node in layers}
    return sorted(score, key=lambda name: score[name])


def _of(tensor: str, noise: dict[str, dict[str, float]]) -> float:
    """Return the dB of a layer's output; a layer whose output has no pair comes last."""
    return noise.get(tensor, {}).get("xmodel_err", np.inf)
