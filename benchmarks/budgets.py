"""The nine shapes of the main job: how each is made, and the budgets it is judged by.

``benchmarks/shapes.json`` is the one list of budgets; every benchmark that judges one of these
models reads it here. Shapes with random weights have nothing but their signal to noise ratio over
all samples (``share=0``): their speed is real, their accuracy only indicative.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

LIST = Path(__file__).with_name("shapes.json")


@dataclass(frozen=True)
class Shape:
    """A model of the main job.

    Attributes:
        source: ``shapes`` has random weights; a ``sample`` is a real model that ortune writes.
        budget: With all backends.
        cpu_budget: With onnxruntime's CPU provider alone.
        best_known: Ratio of the best contestant within 30 dB, or the task's budget, on a CPU with
            AMX; elsewhere it reads "within 2 % of the best contestant".
    """

    name: str
    source: Literal["shapes", "sample"]
    budget: str
    cpu_budget: str
    best_known: float

    def write(self) -> Path:
        """Return a folder with ``model.onnx``, ``data`` and ``calibration``."""
        if self.source == "sample":
            from tests.real.samples import written

            return written(self.name)
        from benchmarks.shapes import write

        return write(self.name)


SHAPES = {name: Shape(name, **about) for name, about in json.loads(LIST.read_text()).items()}
