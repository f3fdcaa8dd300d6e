"""ConvTranspose as Conv and DepthToSpace: the same numbers, from operators with integer kernels.

Every output pixel of a transposed convolution with stride s belongs to one of s x s phases, and a
phase is a plain convolution of the input. One Conv computes all phases as channels, DepthToSpace
interleaves them. The zeros between the taps are multiplied too (9/4 of the work for a 4 x 4 kernel
with stride 2), so this pays only together with integers.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortune.model import edit
from ortune.quantizers._layers import discard_weight, layers


@dataclass(frozen=True)
class Taps:
    """One axis of the equal convolution.

    Attributes:
        width: Of its kernel.
        first: Padding before.
        last: Padding after.
        index: [phase, tap] -> tap of the transposed kernel, -1 where there is none.
    """

    width: int
    first: int
    last: int
    index: NDArray[np.int64]


def taps(kernel: int, stride: int, before: int, after: int, extra: int) -> Taps | None:
    """Return the equal convolution of one axis, or None when there is none of whole phases.

    Output pixel ``Y = stride * q + r`` reads input ``q + (r + before) // stride - j`` through
    kernel tap ``stride * j + (r + before) % stride``.

    Args:
        kernel: Width of the transposed kernel.
        stride: Its stride.
        before: Output pixels cut off at the start.
        after: Output pixels cut off at the end.
        extra: ``output_padding``.
    """
    surplus = kernel - stride - before - after + extra
    if surplus % stride:
        return None
    reads = {
        (r, (r + before) // stride - j): stride * j + (r + before) % stride
        for r in range(stride)
        for j in range(kernel)
        if stride * j + (r + before) % stride < kernel
    }
    lowest, highest = min(d for _, d in reads), max(d for _, d in reads)
    width = highest - lowest + 1
    first, last = -lowest, surplus // stride + width - 1 + lowest
    if first < 0 or last < 0:
        return None
    index = np.full((stride, width), -1)
    for (r, d), tap in reads.items():
        index[r, d - lowest] = tap
    return Taps(width, first, last, index)


def upsample(model: ir.Model, left: Collection[ir.Node] = ()) -> int:
    """Rewrite what can be of all ConvTranspose but those `left`; return how many were."""
    editor = edit.Editor(model.graph)
    graphs = [model.graph, *model.graph.subgraphs()]
    nodes = [node for graph in graphs for node in graph if _plain(node) and node not in left]
    return sum(_rewrite(editor, node) for node in nodes)


def _plain(node: ir.Node) -> bool:
    if node.op_type != "ConvTranspose" or node.domain:
        return False
    get = edit.attribute
    plain_pads = get(node, "auto_pad", "NOTSET") in ("NOTSET", "VALID")
    dilated = any(d != 1 for d in get(node, "dilations", ()))
    return (
        plain_pads
        and not dilated
        and get(node, "group", 1) == 1
        and "output_shape" not in (node.attributes)
    )


def _rewrite(editor: edit.Editor, node: ir.Node) -> bool:
    layer = next(layers([node], ("ConvTranspose",)), None)
    if layer is None or len(layer.shape) != 4:
        return False
    bias = edit.const_array(layer.bias)
    if layer.bias is not None and bias is None:
        return False
    strides = edit.attribute(node, "strides", (1, 1))
    pads = edit.attribute(node, "pads", (0, 0, 0, 0))
    extra = edit.attribute(node, "output_padding", (0, 0))
    if strides[0] != strides[1] or strides[0] < 2:
        return False
    axes = [taps(layer.shape[2 + i], strides[i], pads[i], pads[2 + i], extra[i]) for i in range(2)]
    rows, columns = axes
    if rows is None or columns is None:
        return False
    made = _weight(layer.array(), rows, columns)
    stem = str(layer.weight.name)
    inputs = [layer.x, editor.constant(f"{stem}_phases", made)]
    if bias is not None and layer.bias is not None:
        repeated = np.repeat(bias, strides[0] ** 2)
        inputs.append(editor.constant(f"{layer.bias.name}_phases", repeated))
    padding = [rows.first, columns.first, rows.last, columns.last]
    attributes = {"kernel_shape": made.shape[2:], "pads": padding}
    conv = editor.node("Conv", inputs, attributes, name=f"{node.outputs[0].name}_phases")
    _interleave(editor, node, conv, strides[0])
    discard_weight(layer.weight)
    edit.discard(layer.bias)
    return True


def _weight(weight: NDArray[Any], rows: Taps, columns: Taps) -> NDArray[Any]:
    """Return the kernel [outputs * phases, inputs, rows, columns], phases innermost (CRD)."""
    padded = np.pad(weight, ((0, 0), (0, 0), (0, 1), (0, 1)))
    picked = padded[:, :, rows.index][..., columns.index]
    ordered = picked.transpose(1, 2, 4, 0, 3, 5)
    return np.ascontiguousarray(ordered.reshape(-1, weight.shape[0], rows.width, columns.width))


def _interleave(editor: edit.Editor, node: ir.Node, conv: ir.Node, stride: int) -> None:
    """Put DepthToSpace behind; an activation that follows moves in front of it, to the Conv."""
    end, chain = node.outputs[0], [conv]
    uses = tuple(end.uses())
    alone = len(uses) == 1 and not end.is_graph_output() and uses[0].node.graph is node.graph
    activation = uses[0].node if alone and uses[0].node.op_type in ("Relu", "Clip") else None
    if activation is not None:
        end = activation.outputs[0]
        inputs = [conv.outputs[0], *activation.inputs[1:]]
        attributes = dict(activation.attributes)
        chain.append(
            editor.node(activation.op_type, inputs, attributes, name=f"{end.name}_phases")
        )
    spread = editor.node(
        "DepthToSpace",
        [chain[-1].outputs[0]],
        {"blocksize": stride, "mode": "CRD"},
        name=f"{end.name}_spread",
    )
    result = spread.outputs[0]
    for made in chain:
        made.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
    edit.insert_before(activation or node, *chain, spread)
    result.shape, result.type = end.shape, end.type
    name = end.name
    end.replace_all_uses_with(result, replace_graph_outputs=True)
    for old in (activation, node):
        if old is not None and old.graph is not None:
            old.graph.remove(old, safe=True)
    result.name = name
