"""Resize and Pad of some axes as older opsets have them: of all axes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from ortune.model.graph.edit import attribute, const_array, discard
from ortune.model.graph.spec import shape_of
from ortune.model.graph.values import overridable
from ortune.rewrites.opset.lowering import Adapted, Lowering


def full_axes(work: Lowering, node: ir.Node) -> Adapted:
    """Resize names all axes: scales of 1, and sizes as they are, for those left out."""
    axes = attribute(node, "axes", None)
    node.attributes.pop("axes", None)
    if attribute(node, "keep_aspect_ratio_policy", "stretch") != "stretch":
        return "it keeps no aspect ratio there"
    if axes is None:
        return None
    shape = shape_of(node.inputs[0])
    if shape is None:
        return "the rank of its input is not known"
    for index, label in ((2, "scales"), (3, "sizes")):
        value = node.inputs[index] if len(node.inputs) > index else None
        if value is None:
            continue
        array = const_array(value)
        if array is None or overridable(value):
            return f"its {label} are computed, for some axes only"
        if not array.size:
            continue
        whole: list[Any] = [1.0] * len(shape) if label == "scales" else list(shape)
        for axis, item in zip(axes, array.tolist(), strict=True):
            whole[axis] = item
        if not all(isinstance(item, (int, float)) for item in whole):
            return "its sizes are not known"
        node.replace_input_with(index, work.constant(node, label, whole, array.dtype))
        discard(value)
    roi = node.inputs[1] if len(node.inputs) > 1 else None
    array = const_array(roi)
    return None if roi is None or (array is not None and not array.size) else "it has a region"


def full_inputs(work: Lowering, node: ir.Node) -> Adapted:
    """Before 13 Resize's region and scales must be there, empty where they do not count."""
    node.resize_inputs(max(3, len(node.inputs)))
    for index in (1, 2):
        if node.inputs[index] is None:
            node.replace_input_with(index, work.constant(node, "none", [], np.float32))
    return None


def full_pads(work: Lowering, node: ir.Node) -> Adapted:
    """Pads of some axes become pads of all."""
    if len(node.inputs) < 4:
        return None
    axes, pads = (const_array(node.inputs[i]) for i in (3, 1))
    shape = shape_of(node.inputs[0])
    if axes is None or pads is None or shape is None or any(map(overridable, node.inputs)):
        return "its pads or axes are computed"
    whole = np.zeros((2, len(shape)), np.int64)
    whole[:, axes.reshape(-1)] = pads.reshape(2, -1)
    old, ends = node.inputs[1], node.inputs[3]
    node.resize_inputs(3)
    node.replace_input_with(1, work.constant(node, "pads", whole.reshape(-1), np.int64))
    for value in (old, ends):
        if value is not None:
            discard(value)
    return None
