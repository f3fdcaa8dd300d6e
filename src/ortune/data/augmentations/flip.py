"""Images mirrored left to right."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ortune.core.augmentation import Augmentation
from ortune.core.errors import BadData

_COLOURS = (1, 3, 4)
_RANK = 4


@dataclass(frozen=True)
class Flip(Augmentation):
    """Mirrors images, arrays of rank 4, along their width; other arrays stay.

    The layout is read off the shape: the axis that has 1, 3 or 4 entries is that of the colours,
    the second in NCHW, the last in NHWC. Where both or none has, `layout` must say it.

    Attributes:
        layout: auto, NCHW or NHWC.
    """

    layout: Literal["auto", "NCHW", "NHWC"] = "auto"

    def takes(self, values: NDArray[Any]) -> bool:
        """Say whether the array is an image.

        Raises:
            BadData: Its shape does not tell which axis is the width.
        """
        return values.ndim == _RANK and self._find_width_axis(values) > 0

    def alter(self, values: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
        """Return the mirrored images."""
        return np.flip(values, self._find_width_axis(values)).copy()

    def _find_width_axis(self, values: NDArray[Any]) -> int:
        if self.layout != "auto":
            return 3 if self.layout == "NCHW" else 2
        second, last = values.shape[1] in _COLOURS, values.shape[3] in _COLOURS
        if second is last:
            raise BadData(
                f"flip: the shape {'x'.join(map(str, values.shape))} leaves the layout open",
                fix="write flip(layout=NCHW) or flip(layout=NHWC), or leave flip out",
            )
        return 3 if second else 2
