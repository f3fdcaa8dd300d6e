"""Augmentations: altered copies of calibration samples, never of those that are scored."""

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ortune.core.plugins.plugin import Plugin


@dataclass(frozen=True)
class Augmentation(Plugin):
    """One way to alter a sample; integers, booleans and text stay as they are.

    Attributes:
        inputs: Names of the inputs that it alters; every float input that it can if none is given.
    """

    folder: ClassVar[str] = "augmentations"

    inputs: tuple[str, ...] = field(default=(), kw_only=True)

    def takes(self, values: NDArray[Any]) -> bool:
        """Say whether it alters arrays of this shape; called for float arrays only.

        Raises:
            BadData: The shape could mean several things.
        """
        return True

    @abstractmethod
    def alter(self, values: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
        """Return an altered copy: same shape, same float dtype.

        Args:
            values: One input of one sample, not to be written to.
            rng: Seeded by the sample's place, so that the same sample comes out the same.
        """
