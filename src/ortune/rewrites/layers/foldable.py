"""Conv, ConvTranspose, Gemm and MatMul as something that takes up a scale and a shift."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortune.model.graph.edit import attribute, const_tensor
from ortune.model.graph.spec import shape_of
from ortune.model.graph.values import overridable
from ortune.rewrites.layers.affine import ChannelAxis

OPS = ("Conv", "ConvTranspose", "Gemm", "MatMul")


@dataclass(frozen=True)
class FoldableLayer:
    """A layer with a constant weight, and with a constant bias or none.

    Attributes:
        node: The layer.
        shape: Of its weight. Conv: [out, in / group, kernel...]. ConvTranspose: [in, out / group,
            kernel...], where group g has the inputs of its share and the outputs of its share.
            Gemm: [in, out], or [out, in] with transB. MatMul: [in, out].
    """

    node: ir.Node
    shape: tuple[int, ...]

    @property
    def convolves(self) -> bool:
        """Whether its channels are axis 1."""
        return self.node.op_type in ("Conv", "ConvTranspose")

    @property
    def group(self) -> int:
        """Groups of a convolution; 1 for the others."""
        return int(attribute(self.node, "group", 1)) if self.convolves else 1

    @property
    def outputs(self) -> int:
        """Output channels."""
        match self.node.op_type:
            case "Conv":
                return self.shape[0]
            case "ConvTranspose":
                return self.shape[1] * self.group
            case "Gemm" if attribute(self.node, "transB", 0):
                return self.shape[0]
            case _:
                return self.shape[1]

    @property
    def inputs(self) -> int:
        """Input channels of a convolution."""
        if self.node.op_type == "Conv":
            return self.shape[1] * self.group
        return self.shape[0]

    @property
    def channels(self) -> ChannelAxis:
        """Where its output has its channels."""
        if self.convolves:
            return ChannelAxis(self.outputs, 1, len(self.shape))
        if self.node.op_type == "Gemm":
            return ChannelAxis(self.outputs, -1, 2)
        x = self.node.inputs[0]
        shape = shape_of(x)
        return ChannelAxis(self.outputs, -1, None if shape is None else len(shape))

    @property
    def padded(self) -> bool:
        """Whether a convolution reads zeros beside its input."""
        mode = attribute(self.node, "auto_pad", "NOTSET")
        return mode != "VALID" and (mode != "NOTSET" or any(attribute(self.node, "pads", ())))


def foldable(node: ir.Node | None) -> FoldableLayer | None:
    """Return a node as a layer; None when it is none of `OPS` or its weight may change."""
    if node is None or node.domain or node.op_type not in OPS or len(node.inputs) < 2:
        return None
    weight, bias = [*node.inputs, None][1:3]
    tensor = const_tensor(weight)
    if tensor is None or overridable(weight) or not tensor.dtype.is_floating_point():
        return None
    if bias is not None and (const_tensor(bias) is None or overridable(bias)):
        return None
    shape = tuple(int(size) for size in tensor.shape.numpy())
    if len(shape) < 2 or (node.op_type in ("Gemm", "MatMul") and len(shape) != 2):
        return None
    return FoldableLayer(node, shape)


def spread_out(at: FoldableLayer, factor: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return factors in a shape that multiplies the weights along their output channels."""
    taps = (1,) * (len(at.shape) - 2)
    match at.node.op_type:
        case "Conv":
            return factor.reshape(-1, 1, *taps)
        case "ConvTranspose":
            share = factor.reshape(at.group, 1, at.shape[1])
            each = (at.group, at.shape[0] // at.group, at.shape[1])
            return np.broadcast_to(share, each).reshape(at.shape[0], at.shape[1], *taps)
        case "Gemm" if attribute(at.node, "transB", 0):
            return factor.reshape(-1, 1)
        case _:
            return factor.reshape(1, -1)


def spread_in(at: FoldableLayer, factor: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return factors in a shape that multiplies a convolution's weights along its inputs."""
    taps = (1,) * (len(at.shape) - 2)
    if at.node.op_type == "ConvTranspose":
        return factor.reshape(-1, 1, *taps)
    rows = factor.reshape(at.group, at.shape[1])
    return np.repeat(rows, at.shape[0] // at.group, axis=0).reshape(-1, at.shape[1], *taps)
