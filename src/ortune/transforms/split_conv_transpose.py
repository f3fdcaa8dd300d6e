"""ConvTranspose as Conv and DepthToSpace, which have integer kernels on the CPU."""

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ortune.core.step import Stage, Transform
from ortune.graph.ir import prune
from ortune.transforms.common.layers.convolutions import split_conv_transposes


@dataclass(frozen=True)
class SplitConvTranspose(Transform):
    """Write a ConvTranspose as one Conv and a DepthToSpace.

    The pixels of one phase of it are a plain convolution of the input. Along one axis, with
    stride s, dilation e, padding p and kernel w::

        y[s q + r]  =  sum over j of w[j] x[q + d],  where s d = r + p - e j

    so for each r the taps j with ``(r + p - e j) % s == 0`` make a kernel over d. One Conv
    computes the s x s phases as channels, DepthToSpace interleaves them, and a Slice cuts off
    what is more than whole blocks. With stride 1 the Conv alone is left, its kernel turned round.
    Relu, Clip and LeakyRelu behind move in front of DepthToSpace, to the Conv.

    Exact. The zeros between the taps are multiplied too: 9/4 of the work for a 4 x 4 kernel with
    stride 2. onnxruntime's CPU provider has no integer ConvTranspose, so it pays there, and
    neither in float32 nor for OpenVINO, which has one. Hence not automatic: `int8-static` asks for
    it where it pays.

    Left alone: padding that follows from the input's size, strides that differ (or of one and of
    three axes), and kernels whose work would grow more than fourfold.
    """

    stage: ClassVar[Stage] = Stage.FUSE
    automatic: ClassVar[bool] = False
    consumes = (("ConvTranspose",),)

    def apply(self, model: ir.Model) -> int:
        count = split_conv_transposes(model)
        if count:
            prune.drop_dead(model)
        return count
