"""Grouped convolutions with fewer and wider groups, zeros between the blocks."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortune.model.graph import edit
from ortune.rewrites.layers.affine import constant
from ortune.rewrites.layers.foldable import FoldableLayer, foldable


def widen_groups(model: ir.Model, channels: int, left: Collection[ir.Node] = ()) -> int:
    """Join groups of fewer input channels than `channels`; return how many nodes changed.

    Depthwise convolutions (one channel in, one out) stay, and so do those `left`.
    """
    editor = edit.Editor(model.graph)
    count = 0
    for graph in (model.graph, *model.graph.subgraphs()):
        for node in list(graph):
            at = foldable(node) if node.op_type == "Conv" and node not in left else None
            if at is None or at.group == 1 or 0 in at.shape or at.shape[1] >= channels:
                continue
            if at.shape[1] > 1 or at.shape[0] > at.group:
                count += _widen(editor, at, channels)
    return count


def _widen(editor: edit.Editor, at: FoldableLayer, channels: int) -> int:
    weight = constant(at.node, 1)
    factors = (f for f in range(2, at.group + 1) if at.group % f == 0)
    joined = next((f for f in factors if at.shape[1] * f >= channels), at.group)
    if weight is None:
        return 0
    made = _blocks(weight, at.group, joined)
    at.node.replace_input_with(1, editor.constant(f"{at.node.name}_wide", made))
    at.node.attributes["group"] = ir.AttrInt64("group", at.group // joined)
    return 1


def _blocks(weight: NDArray[Any], group: int, joined: int) -> NDArray[Any]:
    """Return the weights where every `joined` groups are the blocks of one."""
    outputs, inputs = weight.shape[0] // group, weight.shape[1]
    shape = (group // joined, joined, outputs, joined, inputs, *weight.shape[2:])
    made = np.zeros(shape, weight.dtype)
    parts = weight.reshape(group // joined, joined, outputs, inputs, *weight.shape[2:])
    for index in range(joined):
        made[:, index, :, index] = parts[:, index]
    return made.reshape(weight.shape[0], joined * inputs, *weight.shape[2:])
