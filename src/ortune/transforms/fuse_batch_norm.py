"""Put a BatchNormalization into the weights of the layer before it or the Conv behind it."""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import onnx_ir as ir

from ortune.core.step import Stage, Transform
from ortune.graph.ir import edit
from ortune.graph.ir.match import find_consumer, find_producer
from ortune.transforms.common.formulas.formula import at_each
from ortune.transforms.common.layers.affine import (
    OPS,
    UNCHANGED,
    Absorber,
    Affine,
    FoldableLayer,
    as_foldable_layer,
    of_batch_norm,
    read_affine,
)


@dataclass(frozen=True)
class FuseBatchNorm(Transform):
    """Put a BatchNormalization into the weights beside it: a factor and a summand a channel.

    With f = scale / sqrt(variance + epsilon), per output channel::

        BN(W x + b) = f (W x + b - mean) + shift = (f W) x + (f (b - mean) + shift)

    so W becomes f W and b becomes f (b - mean) + shift, computed in float64. For Gemm, whose
    output is alpha A B + beta C, C becomes f (beta C - mean) + shift and beta becomes 1. Behind a
    MatMul of matrices (with an Add or not) an Add stays. In front of a Conv, per input channel::

        W BN(x) + b = (f W) x + (W (shift - f mean) + b)

    where the Conv must not pad: its zeros are not normalized.

    Exact up to the rounding of the new weights. Left alone: training mode, anything not constant,
    an inner value that something else reads, and factors that are not finite. 49 nodes of the old
    exporter's efficientnet-lite0 go. onnxruntime does it too while it loads; here it is for the
    quantizers, as no runtime folds into integer weights.
    """

    stage: ClassVar[Stage] = Stage.FUSE
    consumes = (("BatchNormalization",), OPS)

    def apply(self, model: ir.Model) -> int:
        absorber = Absorber(edit.Editor(model.graph))
        return at_each(model, partial(_fuse_norm, absorber), "BatchNormalization")


def _fuse_norm(
    absorber: Absorber, model: ir.Model, norm: ir.Node, editor: edit.Editor
) -> int | str:
    opset = model.opset_imports.get("", 0)
    preceding = _find_preceding_layer(norm, opset)
    after = as_foldable_layer(find_consumer(norm.outputs[0], "Conv", "ConvTranspose"))
    if preceding is None and after is None:
        return 0
    line = of_batch_norm(norm, opset)
    if isinstance(line, str):
        return line
    why: str | None = "something else reads what is between"
    if preceding is not None and all(
        edit.has_single_use(n.outputs[0]) for n in (preceding[0].node, *preceding[1])
    ):
        before, chain, affine = preceding
        why = absorber.absorb_output_affine(before, affine.compose_with(line), [*chain, norm])
    elif after is not None and after.node.graph is norm.graph and norm.inputs[0] is not None:
        why = absorber.absorb_input_affine(after, line, norm.inputs[0])
    return why or 1


def _find_preceding_layer(
    norm: ir.Node, opset: int
) -> tuple[FoldableLayer, list[ir.Node], Affine] | None:
    """Return the layer that makes the input, and the Add of its bias if it is a MatMul."""
    node, add = find_producer(norm.inputs[0], *OPS), find_producer(norm.inputs[0], "Add")
    chain: list[ir.Node] = []
    if add is not None:
        node = next((m for v in add.inputs if (m := find_producer(v, "MatMul")) is not None), None)
        chain = [add]
    at = as_foldable_layer(node)
    if at is None or any(item.graph is not norm.graph for item in (at.node, *chain)):
        return None
    # The channels of a BatchNormalization are axis 1: of a product's only when it is a matrix.
    if not at.convolves and at.channels.rank != 2:
        return None
    if add is None:
        return at, chain, UNCHANGED
    affine = read_affine(add, at.node.outputs[0], at.channels, opset)
    return None if affine is None else (at, chain, affine)
