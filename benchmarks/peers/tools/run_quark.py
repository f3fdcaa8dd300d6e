"""AMD Quark: U8S8 for CPUs, its int8 default for the kind of model, automatic mixed precision."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from judging import METRICS, running
from quark.onnx import (
    AutoMixprecisionConfig,
    Int8Spec,
    ModelQuantizer,
    QConfig,
    QLayerConfig,
    UInt8Spec,
    UInt16Spec,
)
from quark.onnx.quantization.config import Config, get_default_config
from task import Reader, Task, tell, told

Outputs = Sequence[Sequence[np.ndarray]]


def mixed(task: Task) -> Any:
    """All layers in U8S8, and those that cost most with 16-bit activations, until it is enough.

    The tool looks at calibration samples alone: classes that change stand for labels. It is told
    how many there are, as of this release its "0 = all" takes the first one.
    """
    names = list(running(task.model)(next(task.feeds())))
    layers = QLayerConfig(activation=UInt16Spec(), weight=Int8Spec())

    def lost(expected: Outputs, found: Outputs) -> float:
        both = [[dict(zip(names, one, strict=True)) for one in side] for side in (found, expected)]
        if task.goal["metric"] == "top1":
            classes = [[next(iter(one.values())).argmax() for one in side] for side in both]
            return float(np.mean([a != b for a, b in zip(*classes, strict=True)]))
        best = METRICS[task.goal["metric"]](both[1], both[1], None)
        return best - METRICS[task.goal["metric"]](*both, None)

    auto = AutoMixprecisionConfig(
        layers,
        data_size=sum(1 for _ in task.feeds()),
        metric_distance_fn=lost,
        metric_threshold=task.goal["drop"],
        metric_optimize_object="quality",
    )
    return QConfig(QLayerConfig(activation=UInt8Spec(), weight=Int8Spec()), algo_config=[auto])


if __name__ == "__main__":
    asked = told()
    kind = "TRANSFORMER" if asked.transformer else "CNN"
    names = {"U8S8_AAWS": "U8S8_AAWS", "INT8 default": f"INT8_{kind}_DEFAULT"}
    name = names.get(asked.recipe, "")
    config = Config(global_quant_config=get_default_config(name)) if name else mixed(asked)
    ModelQuantizer(config).quantize_model(str(asked.model), str(asked.out), Reader(asked))
    tell("amd-quark", name)
