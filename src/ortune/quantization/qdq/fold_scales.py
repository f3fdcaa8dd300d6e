"""Folds what follows a convolution channel by channel into its weight and bias.

Runtimes do so themselves for float weights, but cannot once the weight is an integer constant.
"""

from __future__ import annotations

import onnx_ir as ir

from ortune.model.graph import edit, prune
from ortune.model.graph.match import nodes_of
from ortune.model.graph.qdq import given
from ortune.model.graph.uses import only_reader
from ortune.rewrites.layers.affine import (
    UNCHANGED,
    Absorber,
    Affine,
    FoldableLayer,
    foldable,
    of_batch_norm,
    of_node,
)


def fold(model: ir.Model) -> int:
    """Fold into the convolutions of the main graph and all bodies; return how many nodes went.

    Add, Sub, Mul and Div with constants of one value a channel, BatchNormalization and Identity
    are folded where they are the only reader.
    """
    absorber = Absorber(edit.Editor(model.graph))
    opset = model.opset_imports.get("", 0)
    count = 0
    for node in nodes_of(model, "Conv", "ConvTranspose"):
        at, weight = foldable(node), edit.const_tensor(given(node, 1))
        if at is not None and weight is not None and weight.dtype == ir.DataType.FLOAT:
            count += _fold_behind(absorber, at, opset) if weight.size else 0
    if count:
        prune.drop_dead(model)
    return count


def _fold_behind(absorber: Absorber, at: FoldableLayer, opset: int) -> int:
    affine, chain, value = UNCHANGED, [], at.node.outputs[0]
    while (node := only_reader(value)) is not None and node.graph is at.node.graph:
        found = _affine(node, value, at, opset)
        if found is None or not found.finite:
            break
        affine = affine.then(found)
        chain.append(node)
        value = node.outputs[0]
    return len(chain) if chain and absorber.behind(at, affine, chain) is None else 0


def _affine(node: ir.Node, value: ir.Value, at: FoldableLayer, opset: int) -> Affine | None:
    """Say what a node does to a convolution's output, None when that is no affine map."""
    if node.domain:
        return None
    match node.op_type:
        case "Identity":
            return UNCHANGED
        case "BatchNormalization" if node.inputs[0] is value:
            found = of_batch_norm(node, opset)
            return None if isinstance(found, str) else found
        case _:
            return of_node(node, value, at.channels, opset)
