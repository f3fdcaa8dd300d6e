"""onnx-neural-compressor: static quantization, without and with SmoothQuant, and its autotune.

SmoothQuant is asked for by the option: a `SmoothQuantConfig` given to `quantize` is taken for a
plain static one, without a word. `autotune` tries the tool's own lists, static before dynamic, and
stops at the first file within the loss; it leaves without a file where there is none.
"""

from __future__ import annotations

import onnx
from onnx_neural_compressor import data_reader
from onnx_neural_compressor.quantization import config, quantize, tuning
from task import Reader, Task, tell, told


class Samples(Reader, data_reader.CalibrationDataReader):
    """The samples under the tool's own type."""


def autotuned(task: Task) -> None:
    """Search the tool's lists; it counts a loss as a share of the original's score."""
    judge = task.judge()
    lists = [config.StaticQuantConfig, config.DynamicQuantConfig]
    sets = [one.get_config_set_for_tuning() for one in lists]
    asked = tuning.TuningConfig(
        config_set=[one for each in sets for one in (each if isinstance(each, list) else [each])],
        tolerable_loss=task.goal["drop"] / judge.base,
    )
    found = tuning.autotune(str(task.model), asked, judge.file, None, Samples(task))
    onnx.save(found, task.out)


if __name__ == "__main__":
    asked = told()
    if asked.recipe == "autotune":
        autotuned(asked)
    else:
        options = {"SmoothQuant": True} if asked.recipe == "SmoothQuant" else {}
        settings = config.StaticQuantConfig(Samples(asked), extra_options=options)
        quantize(asked.model, asked.out, settings)
    tell("onnx-neural-compressor")
