"""Which sizes of dynamic dimensions an export is compared at, and the inputs of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ortune.core import wording
from ortune.core.errors import BadSettings
from ortune.core.facts import TensorSpec
from ortune.data import synthetic
from ortune.exporters.request import Axes

ENOUGH = 3
"""Sizes at which PyTorch and the file are compared."""
_STEPS: tuple[Callable[[int], int], ...] = (
    lambda n: n,
    lambda n: n + 1,
    lambda n: 2 * n + 1,
    # For modules that take multiples of something, or no more than a table holds.
    lambda n: 2 * n,
    lambda n: 3 * n,
    lambda n: max(1, n - 1),
    lambda n: max(1, n // 2),
)


@dataclass(frozen=True)
class Inputs:
    """What a module takes.

    Attributes:
        specs: Named, with dynamic dimensions by name.
        example: Dynamic dimension -> its size in the example.
    """

    specs: tuple[TensorSpec, ...]
    example: Mapping[str, int]

    @property
    def names(self) -> tuple[str, ...]:
        """Of the inputs, in order."""
        return tuple(spec.name for spec in self.specs)

    @property
    def axes(self) -> Axes:
        """The dynamic dimensions."""
        return tuple(
            (spec.name, axis, dim)
            for spec in self.specs
            for axis, dim in enumerate(spec.shape or ())
            if isinstance(dim, str)
        )

    def sizes(self) -> list[dict[str, int]]:
        """Return the sizes to try, the example first; the later ones stand in for refused ones."""
        found: list[dict[str, int]] = []
        for step in _STEPS:
            one = {dim: step(size) for dim, size in self.example.items()}
            if one not in found:
                found.append(one)
        return found

    def shapes(self, sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
        """Return input -> shape at these sizes."""
        return {
            spec.name: tuple(
                dim if isinstance(dim, int) else sizes[str(dim)] for dim in spec.shape or ()
            )
            for spec in self.specs
        }

    def write(
        self,
        out: Path,
        sizes: Mapping[str, int],
        ranges: Mapping[str, tuple[float, float]],
        count: int,
        seed: int,
    ) -> Path:
        """Make inputs of these sizes up; return the stream that holds them."""
        ranges = {name: ends for name, ends in ranges.items() if name in self.names}
        shapes = self.shapes(sizes)
        made = synthetic.make(
            self.specs, out, shapes=shapes, ranges=ranges, count=count, seed=seed
        )
        return made.stream


def given(specs: Sequence[TensorSpec], axes: Axes) -> Inputs:
    """Name the dynamic dimensions of inputs whose shapes are an example's.

    Raises:
        BadSettings: An axis is of no input, beyond its rank, or one name has two sizes.
    """
    known = {spec.name: spec for spec in specs}
    example: dict[str, int] = {}
    for name, axis, dim in axes:
        shape = known[name].shape or () if name in known else None
        if shape is None or axis >= len(shape):
            lack = (
                "no input of the module"
                if shape is None
                else f"of {wording.count(len(shape), 'axis', 'axes')}"
            )
            raise BadSettings(
                f"--dynamic {name}:{axis}={dim}: {name} is {lack}",
                fix=f"the inputs are: {', '.join(known)}",
            )
        size = shape[axis]
        if not isinstance(size, int):
            continue
        if example.setdefault(dim, size) != size:
            raise BadSettings(
                f"'{dim}' is {example[dim]} and {size} in one example",
                fix="give the inputs one size there, or two names",
            )
        known[name] = replace(
            known[name], shape=(*shape[:axis], dim, *(known[name].shape or ())[axis + 1 :])
        )
    return Inputs(tuple(known.values()), example)


def traced(sizes: Sequence[Mapping[str, int]]) -> int:
    """Return the place of the sizes to trace with: none is 1, which tracing takes as fixed."""
    fit = [place for place, one in enumerate(sizes) if all(size > 1 for size in one.values())]
    return min(fit, key=lambda place: sum(sizes[place].values()), default=0)
