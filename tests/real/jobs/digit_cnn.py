"""A digit classifier on 2,000 labelled digits, both packaged."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.real.samples import sample, written
from tests.real.task import Run, Task


def missing() -> str | None:
    """Return the pip lines for what is not installed."""
    return sample("digit-cnn").missing()


def task(folder: Path) -> Task:
    """Return the packaged sample's search."""
    made = written("digit-cnn")
    return Task(
        (made / "model.onnx",),
        sample("digit-cnn").budget,
        score,
        data=made / "data",
        calibration=made / "calibration",
    )


def score(run: Run) -> float:
    """Return the share of digits that are recognised, in batches of 250."""
    data = np.load(written("digit-cnn") / "data" / "digits.npz")
    images, labels = data["image"], data["label"]
    found = [run(image=images[i : i + 250])["logits"] for i in range(0, len(images), 250)]
    return float((np.concatenate(found).argmax(1) == labels).mean())
