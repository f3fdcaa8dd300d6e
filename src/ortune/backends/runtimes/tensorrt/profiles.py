"""Optimization profiles: least, best and most of every input whose size is left open.

A range is spelled ``NAME:MIN..MAX`` or ``NAME:MIN..MAX..BEST`` with shapes as ``1x3x224x224``;
``NAME=1,2..4,8`` gives values in place of shapes, for an input that decides the shape of others.
An input that is named again starts another profile.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ortune.core.errors import BadSettings

Numbers: TypeAlias = tuple[int, ...]

_RANGE = re.compile(r"(?P<name>.+)(?P<sign>[:=])(?P<ends>[\dx,]+(?:\.\.[\dx,]+){0,2})", re.DOTALL)
_FIX = 'write profiles=["image:1x3x224x224..8x3x224x224"]: least, most and, optionally, best'
OPEN = -1
"""A size that is left open, as TensorRT writes it."""


@dataclass(frozen=True)
class ShapeRange:
    """What one input may be, and what the engine is tuned for."""

    name: str  # of the input
    least: Numbers  # smallest shape, or smallest values
    best: Numbers  # what kernels are chosen for
    most: Numbers  # largest
    values: bool = False  # they are an input's values, not its shape

    def __str__(self) -> str:
        """Return the spelling; the best is left out where it is the most."""
        comma, sign = (",", "=") if self.values else ("x", ":")
        ends = [self.least] if self.least == self.most else [self.least, self.most]
        if self.best != self.most:
            ends.append(self.best)
        return f"{self.name}{sign}{'..'.join(comma.join(map(str, shape)) for shape in ends)}"

    def holds_shape(self, shape: Numbers) -> bool:
        """Say whether a shape lies between the least and the most."""
        return len(shape) == len(self.least) and all(
            low <= size <= high
            for low, size, high in zip(self.least, shape, self.most, strict=True)
        )


Profile: TypeAlias = Mapping[str, ShapeRange]
"""Input -> its range, of one optimization profile."""


def parse_profiles(texts: Iterable[str]) -> tuple[Profile, ...]:
    """Read spelled ranges; an input that is given once belongs to every profile.

    Raises:
        BadSettings: One is not of the form, its ends contradict each other, or inputs are given
            for different numbers of profiles.
    """
    ranges_by_input: dict[str, list[ShapeRange]] = {}
    for text in texts:
        match = _RANGE.fullmatch(text)
        if match is None:
            raise BadSettings(f"'{text}' is not an optimization profile", fix=_FIX)
        values = match["sign"] == "="
        comma = "," if values else "x"
        try:
            ends = [tuple(map(int, part.split(comma))) for part in match["ends"].split("..")]
        except ValueError:
            raise BadSettings(f"'{text}' is not an optimization profile", fix=_FIX) from None
        least, most, best = ends[0], ends[min(1, len(ends) - 1)], ends[-1]
        ordered = len(least) == len(best) == len(most) and all(
            low <= middle <= high for low, middle, high in zip(least, best, most, strict=True)
        )
        if not ordered:
            raise BadSettings(
                f"'{text}': the best does not lie between the least and the most", fix=_FIX
            )
        shape_range = ShapeRange(match["name"], least, best, most, values)
        ranges_by_input.setdefault(shape_range.name, []).append(shape_range)
    count = max((len(ranges) for ranges in ranges_by_input.values()), default=0)
    for name, ranges in ranges_by_input.items():
        if len(ranges) not in (1, count):
            raise BadSettings(
                f"'{name}' has {len(ranges)} profiles where another input has {count}",
                fix="give each input once, or once for every profile",
            )
    return tuple(
        {name: ranges[min(at, len(ranges) - 1)] for name, ranges in ranges_by_input.items()}
        for at in range(count)
    )


def derive_ranges(
    seen: Sequence[Mapping[str, Numbers]], declared: Mapping[str, Sequence[int | str | None]]
) -> tuple[ShapeRange, ...]:
    """Return the ranges of inputs with open sizes, from the shapes of samples.

    The best is the shape that came most often, the larger one of two that came as often.

    Args:
        seen: Input -> shape, a sample each.
        declared: Input -> its dimensions in the model; what is no number is open.
    """
    shape_ranges = []
    for name, dims in declared.items():
        if all(isinstance(dim, int) and dim >= 0 for dim in dims):
            continue
        shapes = [sample[name] for sample in seen if name in sample]
        if not shapes:
            continue
        often = Counter(shapes)
        best = max(often, key=lambda shape: (often[shape], shape))
        by_axis = list(zip(*shapes, strict=True))
        shape_ranges.append(
            ShapeRange(name, tuple(map(min, by_axis)), best, tuple(map(max, by_axis)))
        )
    return tuple(shape_ranges)


def list_trtexec_options(profiles: Sequence[Profile]) -> tuple[str, ...]:
    """Return the options by which trtexec builds with the same profiles.

    A name with a colon or a comma is put in quotes.
    """
    words: list[str] = []
    for at, profile in enumerate(profiles):
        if len(profiles) > 1:
            words.append(f"--profile={at}")
        names = {name: f"'{name}'" if set(name) & set(":,") else name for name in profile}
        for option, end in (("min", "least"), ("opt", "best"), ("max", "most")):
            sizes = {
                name: "x".join(map(str, getattr(shape_range, end)))
                for name, shape_range in profile.items()
            }
            shapes = ",".join(f"{names[name]}:{size}" for name, size in sizes.items())
            words.append(f"--{option}Shapes={shapes}")
    return tuple(words)
