"""Put a BatchNormalization into the weights of the Conv, ConvTranspose or Gemm before it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortune.core.facts import Facts
from ortune.core.step import Stage, Transform
from ortune.model import prune
from ortune.model.dims import overridable
from ortune.model.edit import Editor, attribute, const_array
from ortune.model.replace import forward, remove


@dataclass(frozen=True)
class FuseBatchNorm(Transform):
    """In inference a BatchNormalization is one factor and one summand a channel.

    With f = scale / sqrt(variance + epsilon), per output channel::

        BN(W x + b) = f (W x + b - mean) + shift = (f W) x + (f (b - mean) + shift)

    so W becomes f W and b becomes f (b - mean) + shift, computed in float64. For Gemm, whose
    output is alpha A B + beta C, C becomes f (beta C - mean) + shift and beta becomes 1.

    Exact up to the rounding of the new weights. Left alone: training mode, anything not constant,
    an inner value that something else reads, and factors that are not finite.
    """

    stage: ClassVar[Stage] = Stage.FUSE

    def applies(self, facts: Facts) -> bool:
        """There is a BatchNormalization, and something to put it into."""
        return facts.has("BatchNormalization") and facts.has("Conv", "ConvTranspose", "Gemm")

    def apply(self, model: ir.Model) -> int:
        """Edit the model in place and return how many were fused."""
        opset = model.opset_imports.get("", 0)
        editor = Editor(model.graph)
        count = 0
        for graph in (model.graph, *model.graph.subgraphs()):
            for norm in list(graph):
                if norm.op_type == "BatchNormalization" and not norm.domain:
                    count += _fuse(norm, editor, opset)
        if count:
            prune.drop_dead(model)
        return count


def _fuse(norm: ir.Node, editor: Editor, opset: int) -> int:
    inner = norm.inputs[0]
    node = inner.producer() if inner is not None else None
    if node is None or inner is None or node.domain or node.graph is not norm.graph:
        return 0
    if node.op_type not in _HOSTS or len(inner.uses()) != 1 or inner.is_graph_output():
        return 0
    line = _line(norm, opset)
    weight = _constant(node, 1)
    has_bias = len(node.inputs) > 2 and node.inputs[2] is not None
    bias = _constant(node, 2) if has_bias else np.zeros(1, np.float64)
    if line is None or weight is None or bias is None:
        return 0
    factor, summand = line
    new_weight = weight.astype(np.float64) * _spread(node, weight.shape, factor)
    beta = attribute(node, "beta", 1.0) if node.op_type == "Gemm" else 1.0
    new_bias = factor * (beta * bias.astype(np.float64)) + summand
    made = [array.astype(weight.dtype) for array in (new_weight, new_bias)]
    if not all(np.isfinite(array.astype(np.float64)).all() for array in made):
        return 0
    names = [f"{node.name}_weight_norm", f"{node.name}_bias_norm"]
    values = [editor.constant(name, array) for name, array in zip(names, made, strict=True)]
    node.resize_inputs(3)
    node.replace_input_with(1, values[0])
    node.replace_input_with(2, values[1])
    if node.op_type == "Gemm":
        node.attributes["beta"] = ir.AttrFloat32("beta", 1.0)
    name = norm.outputs[0].name
    forward(norm.outputs[0], inner)
    remove(norm)
    # Calibration knows tensors by name: a name that stays must stand for the values it stood for.
    inner.name = name
    return 1


def _line(norm: ir.Node, opset: int) -> tuple[NDArray[Any], NDArray[Any]] | None:
    """Return factor and summand a channel, or None when this is not plain inference.

    Training is told by ``training_mode`` from opset 14 on, by more than one output from 7 to 13,
    by ``is_test`` before. Before 9, ``spatial`` = 0 normalized every position by itself.
    """
    if attribute(norm, "training_mode", 0) or not attribute(norm, "spatial", 1):
        return None
    if opset < 7 and not attribute(norm, "is_test", 0):
        return None
    if any(value.name and (value.uses() or value.is_graph_output()) for value in norm.outputs[1:]):
        return None
    if opset < 14 and len(norm.outputs) > 1:
        return None
    arrays = [_constant(norm, index) for index in range(1, 5)]
    if any(array is None or array.ndim != 1 for array in arrays):
        return None
    scale, shift, mean, variance = (np.asarray(array, np.float64) for array in arrays)
    spread = variance + attribute(norm, "epsilon", 1e-5)
    if not (spread > 0).all():
        return None
    factor = scale / np.sqrt(spread)
    return factor, shift - factor * mean


def _constant(node: ir.Node, index: int) -> NDArray[Any] | None:
    value = node.inputs[index] if index < len(node.inputs) else None
    return None if overridable(value) else const_array(value)


def _spread(node: ir.Node, shape: tuple[int, ...], factor: NDArray[Any]) -> NDArray[Any]:
    """Return the factor in a shape that multiplies the weights along their output channels.

    Conv: [out, in / group, kernel...]. ConvTranspose: [in, out / group, kernel...], where group g
    has the inputs of its share and the outputs of its share. Gemm: [in, out], or [out, in] with
    transB.
    """
    ones = (1,) * (len(shape) - 2)
    if node.op_type == "Conv":
        return factor.reshape(-1, 1, *ones)
    if node.op_type == "Gemm":
        return factor.reshape(-1, 1) if attribute(node, "transB", 0) else factor.reshape(1, -1)
    group = attribute(node, "group", 1)
    share = factor.reshape(group, 1, shape[1])
    return np.broadcast_to(share, (group, shape[0] // group, shape[1])).reshape(
        shape[0], shape[1], *ones
    )


_HOSTS = frozenset({"Conv", "ConvTranspose", "Gemm"})
