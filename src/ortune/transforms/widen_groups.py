"""Fewer and wider groups, for convolutions in integers."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import onnx_ir as ir

from ortune.core.errors import BadSettings
from ortune.core.plugins.bounds import Bounds
from ortune.core.step import Stage, Transform
from ortune.graph.ir import prune
from ortune.transforms.common.layers.convolutions import widen_groups


@dataclass(frozen=True)
class WidenGroups(Transform):
    """Join groups of a convolution into fewer, with zero weights between their channels.

    ::

        A * x1, B * x2  =  [A 0; 0 B] * [x1; x2]

    Exact, for more multiplications. onnxruntime's integer convolution computes group by group and
    wants about 32 channels in each; the gain is largest below 16. In float32 groups of any width
    are faster than wider ones (`group-convs`), so this is not automatic: `int8-static` does it for
    the CPU provider.

    Left alone: depthwise convolutions (one channel a group), which have a kernel of their own.

    Attributes:
        channels: Input channels that a group shall have at least.
    """

    stage: ClassVar[Stage] = Stage.FINISH
    automatic: ClassVar[bool] = False
    consumes = (("Conv",),)

    channels: Annotated[int, Bounds(high=65536)] = 32

    def __post_init__(self) -> None:
        if self.channels < 1:
            raise BadSettings(f"channels={self.channels} is not a width", fix="use 1 or more")

    def apply(self, model: ir.Model) -> int:
        count = widen_groups(model, self.channels)
        if count:
            prune.drop_dead(model)
        return count
