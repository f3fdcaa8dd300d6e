"""Mean and second moment of the vectors that a layer multiplies with its weight."""

from dataclasses import dataclass
from math import prod
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from ortune.core import wording
from ortune.core.errors import BadData, BadSettings
from ortune.core.observer import Accumulator, Moments, Observer, Range
from ortune.core.plugins.bounds import ANY, Bounds
from ortune.graph.shapes.windows import Windows
from ortune.measurement.statistics.histogram import Extent

BLOCK = 2048
"""Vectors gathered at a time."""


@dataclass(frozen=True)
class LayerMoments(Observer):
    """Moments of a matrix product's rows, or of a convolution's windows, and the whole range.

    A window has the order of the weight's columns: input channel, then kernel positions. Products
    are summed up by BLAS in float32 over a block, and over blocks in float64.

    Attributes:
        kernel: Spatial sizes; empty takes the rows along the last axis.
        strides: As the convolution's attribute; empty for 1s, and so for `dilations`.
        pads: As the convolution's attribute: all begins, then all ends; empty for 0s.
        dilations: As the convolution's attribute.
        groups: Groups of the convolution, kept apart.
        auto_pad: As the convolution's attribute; SAME and VALID replace `pads`.
        most: Vectors taken of one run, at most; 0 for all. Which ones is drawn anew every run
            from a generator seeded with the run's number: the same samples give the same answer.
        products: Gather the second moments too; else they are empty and memory is one vector.
    """

    kernel: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    pads: Annotated[tuple[int, ...], ANY] = ()
    dilations: tuple[int, ...] = ()
    groups: int = 1
    auto_pad: Literal["NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"] = "NOTSET"
    most: Annotated[int, Bounds(high=16384)] = 512
    products: bool = True

    def __post_init__(self) -> None:
        axes = len(self.kernel)
        for name, length in (("strides", axes), ("dilations", axes), ("pads", 2 * axes)):
            if len(getattr(self, name)) not in (0, length):
                raise BadSettings(
                    f"moments({name}={list(getattr(self, name))}) with a kernel of "
                    f"{wording.format_count(axes, 'axis', 'axes')}",
                    fix=f"give {wording.format_count(length, 'number')}, or none",
                )
        if self.groups < 1 or self.most < 0:
            raise BadSettings(
                f"moments(groups={self.groups}, most={self.most})",
                fix="groups from 1 on, most from 0 on",
            )

    def start(self) -> Accumulator:
        return _LayerMoments(self)

    def state_bytes(self, shape: tuple[int, ...]) -> int:
        if not shape:
            return 0
        channels = shape[1] if self.kernel and len(shape) > 1 else shape[-1]
        width = channels // self.groups * prod(self.kernel)
        squares = 3 * 8 * self.groups * width**2 if self.products else 0
        return squares + 2 * 4 * min(BLOCK, self.most or BLOCK) * width


class _LayerMoments:
    def __init__(self, settings: LayerMoments) -> None:
        self._settings = settings
        self._extent = Extent()
        self._runs = 0
        self._count = 0
        self._sum = np.zeros((settings.groups, 0))
        self._products = np.zeros((settings.groups, 0, 0))

    def update(self, turn: int, values: NDArray[Any]) -> None:
        self._extent.widen(values)
        settings = self._settings
        if settings.kernel and values.ndim != len(settings.kernel) + 2:
            raise BadData(
                f"{wording.format_count(values.ndim, 'axis', 'axes')} for a kernel of "
                f"{len(settings.kernel)}",
                fix="watch the input of the convolution that the kernel is of",
            )
        steps = (settings.strides, settings.pads, settings.dilations)
        windows = Windows(values, settings.kernel, *steps, settings.auto_pad)
        most = self._settings.most
        if not most or windows.count <= most:
            chosen = np.arange(windows.count)
        else:
            draw = np.random.default_rng(self._runs)
            chosen = np.sort(draw.choice(windows.count, most, replace=False, shuffle=False))
        self._runs += 1
        for start in range(0, chosen.size, BLOCK):
            rows = windows.gather_rows(chosen[start : start + BLOCK])
            groups = self._settings.groups
            count, width = rows.shape
            if width % groups:
                raise BadData(
                    f"{wording.format_count(groups, 'group')} cannot be made of "
                    f"{wording.format_count(width, 'column')}",
                    fix="give the layer's own groups",
                )
            split = rows.reshape(count, groups, -1).transpose(1, 0, 2)
            if not self._count:
                self._sum = np.zeros((groups, split.shape[2]))
                side = split.shape[2] if self._settings.products else 0
                self._products = np.zeros((groups, side, side))
            if self._sum.shape[1] != split.shape[2]:
                raise BadData(
                    f"a vector of {split.shape[2]} after vectors of {self._sum.shape[1]}",
                    fix="watch only layers whose input has a fixed number of channels",
                )
            self._count += count
            self._sum += split.sum(axis=1, dtype=np.float64)
            for group, part in enumerate(split if self._settings.products else ()):
                self._products[group] += part.T @ part

    def result(self) -> Range:
        seen, count = self._extent.range, max(self._count, 1)
        moments = Moments(self._count, self._sum / count, self._products / count)
        return Range(seen.low, seen.high, moments=moments)
