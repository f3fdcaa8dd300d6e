"""NVIDIA ModelOpt: int8 as it comes (the rest becomes float16), and with the rest in float32."""

from __future__ import annotations

import numpy as np
from modelopt.onnx.quantization import quantize
from task import Reader, Task, tell, told


class Samples(Reader):
    """The samples with what the tool asks of a reader."""

    def get_first(self) -> dict[str, np.ndarray] | None:
        return next(self._task.feeds(), None)


def samples(task: Task) -> dict[str, object]:
    """One array an input, as documented; a reader where inputs have no batch axis in common."""
    lengths = {array.shape[:1] for array in next(task.feeds()).values()}
    if lengths == {(1,)}:
        return {"calibration_data": task.stacked()}
    return {"calibration_data_reader": Samples(task)}


if __name__ == "__main__":
    asked = told()
    quantize(
        str(asked.model),
        quantize_mode="int8",
        calibration_eps=["cpu"],
        high_precision_dtype="fp32" if asked.recipe == "int8, rest float32" else "fp16",
        output_path=str(asked.out),
        **samples(asked),
    )
    tell("nvidia-modelopt")
