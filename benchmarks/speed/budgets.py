"""The nine shapes of the main job and six real jobs: how each is made, and its budgets.

``shapes.json`` beside this file is the one list of budgets; every benchmark that judges one of
these models reads it here. Shapes with random weights have nothing but their signal to noise ratio
over all samples (``share=0``): their speed is real, their accuracy only indicative."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

LIST = Path(__file__).with_name("shapes.json")


@dataclass(frozen=True)
class Shape:
    """A model of the main job.

    Attributes:
        source: ``shapes`` has random weights; a ``sample`` is a real model that ortune writes; a
            ``job`` is one with labels and a score of its own.
        budget: With all backends.
        cpu_budget: With onnxruntime's CPU provider alone.
        best_known: Ratio of the best contestant within 30 dB, or the task's budget, on a CPU with
            AMX; elsewhere it reads "within 2 % of the best contestant". NaN where nobody told.
        evaluate: ``module:function`` where single samples do not tell.
    """

    name: str
    source: Literal["shapes", "sample", "job"]
    budget: str
    cpu_budget: str
    best_known: float = math.nan
    evaluate: str | None = None

    def write(self) -> Path:
        """Return a folder with ``model.onnx``, ``data`` and ``calibration``."""
        if self.source == "sample":
            from tests.real.samples import written

            return written(self.name)
        if self.source == "job":
            from benchmarks.speed.real_jobs import written as recorded

            return recorded(self.name)
        from benchmarks.speed.shapes import write

        return write(self.name)


SHAPES = {name: Shape(name, **about) for name, about in json.loads(LIST.read_text()).items()}
_SCORED = {
    "digit-cnn": ("top1>=base-0.01", None),
    "pulsevad": ("top1>=base-0.01", None),
    "magika": ("top1>=base-0.01", None),
    "ppocr-cls": ("top1>=base-0.01", None),
    "silero": ("score>=base-0.01", "tests.real.jobs.silero:evaluate"),
    "ppocr-rec": ("score>=base-0.005", "tests.real.jobs.ppocr_rec:evaluate"),
}
REAL = {
    name: Shape(name, "job", budget, budget, evaluate=evaluate)
    for name, (budget, evaluate) in _SCORED.items()
}
