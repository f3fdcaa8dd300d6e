"""White noise on top of the values."""

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from ortune.core.augmentation import Augmentation
from ortune.core.errors import BadSettings
from ortune.core.plugins.bounds import Bounds

_DB = 30.0


@dataclass(frozen=True)
class Noise(Augmentation):
    """Adds normal noise whose size is relative to the input's own: its root mean square.

    Attributes:
        db: Signal to noise ratio in dB; 30, which is 3 % in amplitude, if no size is given.
        sigma: The same as a share of the root mean square: 0.1 is 20 dB. One of the two.
    """

    db: Annotated[float | None, Bounds(-200, 400)] = None
    sigma: Annotated[float | None, Bounds(high=1e6)] = None

    def __post_init__(self) -> None:
        """Check the size. Raises BadSettings: it is given twice, or is no positive share."""
        if self.db is not None and self.sigma is not None:
            raise BadSettings("noise has both db and sigma", fix="give one of the two")
        if not (np.isfinite(self.share) and self.share > 0):
            raise BadSettings(
                f"noise of {self.share:g} times the signal",
                fix="write noise(db=30) or noise(sigma=0.03)",
            )

    @property
    def share(self) -> float:
        """Standard deviation of the noise over the root mean square of the input."""
        if self.sigma is not None:
            return self.sigma
        db = _DB if self.db is None else self.db
        return float(np.power(10.0, -db / 20))

    def alter(self, values: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
        """Return the values with noise on them; an input of zeros stays zero."""
        wide = values.astype(np.float64)
        size = float(np.sqrt(np.mean(np.square(wide)))) if wide.size else 0.0
        noise = rng.standard_normal(wide.shape) * (self.share * size)
        return (wide + noise).astype(values.dtype)
