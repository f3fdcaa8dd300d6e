"""DepthToSpace with channels last, for convolutions in integers."""

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ortune.core.step import Stage, Transform
from ortune.transforms.common.layers.convolutions import spread_channels_last


@dataclass(frozen=True)
class DepthToSpaceNhwc(Transform):
    """Write DepthToSpace between two Conv channels last, so that two of three transposes cancel.

    With b the block and c the channels that are left, the steps of the order DCR are::

        [n, bbc, h, w] -> [n, h, w, b, b, c] -> [n, h, b, w, b, c] -> [n, hb, wb, c] -> [n, c, ...]

    onnxruntime's integer Conv reads and writes channels last, its DepthToSpace does not: a
    Transpose stands on either side. Written like this the outer ones cancel against those of the
    convolutions, and the inner one copies rows of c bytes. Exact. With convolutions in float
    nothing cancels, so this is not automatic: `int8-static` asks for it on the CPU provider.

    Left alone: a size that is not known (the batch may be dynamic), what is not between two Conv,
    and the order CRD, whose inner copy is of single bytes (1.08 of the time).
    """

    stage: ClassVar[Stage] = Stage.FINISH
    automatic: ClassVar[bool] = False
    consumes = (("DepthToSpace",),)
    needs_opset: ClassVar[int] = 5
    """Reshape takes its target as an input."""

    def apply(self, model: ir.Model) -> int:
        if model.opset_imports.get("", 0) < self.needs_opset:
            return 0
        return spread_channels_last(model)
