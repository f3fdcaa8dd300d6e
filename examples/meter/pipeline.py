"""A camera in front of a meter: cut the digits out of a picture, read them, join them.

`samples` stands for the camera and `frame` for what a service does with each picture:

    ortune bench digit_cnn.onnx --end-to-end examples.meter.pipeline:frame \
        --data examples.meter.pipeline:samples
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

DIGITS, SIZE, ZOOM = 6, 28, 4
"""Digits of the meter, their size for the model, and how much larger the camera sees them."""
TOP, LEFT = 200, 100


def samples() -> Iterator[Mapping[str, NDArray[np.uint8]]]:
    """Yield eight pictures, 480 x 800 x 3, as a camera gives them."""
    rng = np.random.default_rng(0)
    for _ in range(8):
        yield {"picture": rng.integers(0, 256, (480, 800, 3), np.uint8)}


def frame(engine: Any, sample: Mapping[str, NDArray[np.uint8]]) -> str:
    """Return what the meter shows.

    Args:
        engine: What `ortune.load` returns; the digits of a picture are one call.
        sample: A picture; it is read-only.
    """
    grey = sample["picture"] @ np.array([0.299, 0.587, 0.114], np.float32)  # ITU-R BT.601
    side = SIZE * ZOOM
    field = grey[TOP : TOP + side, LEFT : LEFT + DIGITS * side]
    small = field.reshape(SIZE, ZOOM, DIGITS * SIZE, ZOOM).mean((1, 3))
    digits = np.stack(np.split(small, DIGITS, axis=1))[:, None]
    answers = engine(image=(digits / 255).astype(np.float32))
    scores = next(iter(answers.values()))
    sure = scores.max(1) > np.median(scores, 1)
    return "".join(str(one) if ok else "?" for one, ok in zip(scores.argmax(1), sure, strict=True))
