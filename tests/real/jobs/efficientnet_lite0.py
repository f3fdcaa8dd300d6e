"""EfficientNet-Lite0 on 20 labelled ImageNet photos, ten views each."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.real.samples import sample, written
from tests.real.task import Run, Task

NAME = "efficientnet-lite0"


def missing() -> str | None:
    """Return the pip lines for what is not installed."""
    return sample(NAME).missing()


def task(folder: Path) -> Task:
    """Return the packaged sample's search, long enough to judge on all views beside two others."""
    made = written(NAME)
    return Task(
        (made / "model.onnx",),
        sample(NAME).budget,
        score,
        data=made / "data",
        calibration=made / "calibration",
        time="50s",
    )


def score(run: Run) -> float:
    """Return top-1 over all 200 views, a photo's ten in one batch."""
    right = []
    for path in sorted((written(NAME) / "data").glob("*.npz")):
        photo = np.load(path)
        right.append(run(image=photo["image"])["logits"].argmax(1) == photo["label"])
    return float(np.concatenate(right).mean())
