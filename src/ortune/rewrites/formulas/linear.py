"""A chain of arithmetic with constants as one factor and one summand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

_CANCELS = 2.0**-8
"""A sum this small beside its terms has lost what the terms rounded away."""


@dataclass(frozen=True)
class Total:
    """``factor * x + summand``, in float64, or in the type itself for integers.

    Attributes:
        bound: What the summand would be if no two terms had different signs.
        shape: Of all constants broadcast together.
        dtype: Of the tensor.
    """

    factor: NDArray[Any]
    summand: NDArray[Any]
    bound: NDArray[Any]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @classmethod
    def unchanged(cls, dtype: np.dtype[Any]) -> Total:
        """Return the map that does nothing."""
        work = np.dtype(np.float64) if dtype.kind == "f" else dtype
        zero = np.zeros((), work)
        return cls(np.ones((), work), zero, zero, (), dtype)

    @property
    def single(self) -> bool:
        """Whether all constants hold one number, whatever their rank."""
        return self.factor.size == 1 and self.summand.size == 1

    def then(self, op: str, constant: NDArray[Any] | None, *, swapped: bool) -> Total | str | None:
        """Return the map with one more node; None where that is not exact, or why not."""
        if constant is not None and (constant.dtype != self.dtype or not constant.size):
            return None
        c = None if constant is None else constant.astype(self.factor.dtype)
        shape = self.shape if c is None else np.broadcast_shapes(self.shape, c.shape)
        with np.errstate(all="ignore"):
            found = self._then(op, c, swapped=swapped)
        return replace(found, shape=shape) if isinstance(found, Total) else found

    def _then(self, op: str, c: NDArray[Any] | None, *, swapped: bool) -> Total | str | None:
        factor, summand, bound = self.factor, self.summand, self.bound
        match op:
            case "Neg":
                return replace(self, factor=-factor, summand=-summand)
            case "Add" if c is not None:
                return replace(self, summand=summand + c, bound=bound + abs(c))
            case "Sub" if c is not None and swapped:
                return replace(self, factor=-factor, summand=c - summand, bound=bound + abs(c))
            case "Sub" if c is not None:
                return replace(self, summand=summand - c, bound=bound + abs(c))
            case "Mul" if c is not None:
                parts = factor * c, summand * c, bound * abs(c)
            case "Div" if c is not None and self.dtype.kind == "f":
                parts = factor / c, summand / c, bound / abs(c)
            case _:
                return None
        return replace(self, factor=parts[0], summand=parts[1], bound=parts[2])

    def flat(self) -> Total:
        """Return a map of single numbers without axes."""
        parts = [part.reshape(()) for part in (self.factor, self.summand, self.bound)]
        return replace(self, factor=parts[0], summand=parts[1], bound=parts[2], shape=())

    def transposed(self, perm: Sequence[int]) -> Total:
        """Return the map behind a Transpose."""
        rank = len(perm)

        def turn(array: NDArray[Any]) -> NDArray[Any]:
            if array.size == 1:
                return array.reshape(())
            return np.transpose(array.reshape((1,) * (rank - array.ndim) + array.shape), perm)

        parts = [turn(part) for part in (self.factor, self.summand, self.bound)]
        shape = np.broadcast_shapes(*(part.shape for part in parts))
        return replace(self, factor=parts[0], summand=parts[1], bound=parts[2], shape=shape)

    def parts(self, *, adds_first: bool) -> list[tuple[str, NDArray[Any]]] | str:
        """Return the nodes that are left, in order, or why they cannot be had.

        Args:
            adds_first: ``factor * (x + summand / factor)`` where that can be written.
        """
        factor, summand = self.factor, self.summand
        if self.dtype.kind == "f":
            if not (np.isfinite(factor).all() and np.isfinite(summand).all()):
                return "a factor or summand is not finite"
            if (abs(summand) < _CANCELS * self.bound).any():
                return "its summands cancel: they may round on purpose"
        scales, shifts = bool((factor != 1).any()), bool((summand != 0).any())
        first = adds_first and scales and shifts and self.dtype.kind == "f"
        if first and (factor != 0).all():
            nodes = [("Add", summand / factor), ("Mul", factor)]
        else:
            nodes = [("Mul", factor)] * scales + [("Add", summand)] * shifts
        with np.errstate(over="ignore"):
            stored = [(op, array.astype(self.dtype)) for op, array in nodes]
        for (_, exact), (_, rounded) in zip(nodes, stored, strict=True):
            if self.dtype.kind == "f" and not _held(exact, rounded):
                return "a factor or summand does not fit the type"
        return stored


def _held(exact: NDArray[Any], rounded: NDArray[Any]) -> bool:
    tiny = np.finfo(rounded.dtype).tiny
    small = (exact != 0) & (abs(rounded) < tiny)
    return bool(np.isfinite(rounded).all()) and not small.any()
