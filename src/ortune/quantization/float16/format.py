"""The 16-bit floating-point formats, and which constants they hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

MASK = 1e30
"""Magnitudes beyond this stand for infinity: constants are clipped, not kept in float32."""


@dataclass(frozen=True)
class Format:
    """A type narrower than float32.

    Attributes:
        numpy: The same in numpy, by ml_dtypes where numpy has none.
        smallest: Normal value: below it digits are lost one by one.
        roundoff: Largest relative error of rounding to nearest, 2 ** -digits.
    """

    dtype: ir.DataType
    numpy: Any
    largest: float
    smallest: float
    roundoff: float

    @property
    def name(self) -> str:
        """As numpy and ONNX call it."""
        return self.dtype.name.lower()

    @property
    def types(self) -> frozenset[str]:
        """As operator schemas call it."""
        return frozenset({f"tensor({self.name})", f"seq(tensor({self.name}))"})

    def array(self, values: NDArray[Any]) -> NDArray[Any]:
        """Round to nearest; what stands for infinity becomes the largest value."""
        kept = np.where(np.isinf(values), values, np.clip(values, -self.largest, self.largest))
        return kept.astype(self.numpy)

    def holds(self, values: NDArray[Any], *, may_vanish: bool) -> bool:
        """A constant fits unless it overflows, or all of it would lose its leading digits."""
        if not values.size:
            return True
        largest = max(float(np.max(values)), -float(np.min(values)))
        if largest > self.largest:
            size = np.abs(values)
            return bool(np.all((size <= self.largest) | (size >= MASK)))
        return may_vanish or largest == 0 or largest >= self.smallest or np.isnan(largest)


FLOAT16 = Format(ir.DataType.FLOAT16, np.float16, 65504.0, 2.0**-14, 2.0**-11)
BFLOAT16 = Format(
    ir.DataType.BFLOAT16, ml_dtypes.bfloat16, (2 - 2.0**-7) * 2.0**127, 2.0**-126, 2.0**-8
)
