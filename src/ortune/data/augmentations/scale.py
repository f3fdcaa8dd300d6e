"""Another gain: louder, darker, further away."""

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from ortune.core.augmentation import Augmentation
from ortune.core.errors import BadSettings
from ortune.core.plugins.bounds import Bounds


@dataclass(frozen=True)
class Scale(Augmentation):
    """Multiplies each input by one factor, drawn evenly between the two bounds.

    Attributes:
        low: Least factor.
        high: Largest factor; at the same value as `low` it is that factor always.
    """

    low: Annotated[float, Bounds(high=1e6)] = 0.9
    high: Annotated[float, Bounds(high=1e6)] = 1.1

    def __post_init__(self) -> None:
        """Check the bounds. Raises BadSettings: they are no positive factors in this order."""
        if not 0 < self.low <= self.high < np.inf:
            raise BadSettings(
                f"scale(low={self.low:g}, high={self.high:g}) is not a range of factors",
                fix="use 0 < low <= high, such as scale(low=0.9, high=1.1)",
            )

    def alter(self, values: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
        """Return the values times the factor."""
        factor = rng.uniform(self.low, self.high)
        return (values.astype(np.float64) * factor).astype(values.dtype)
