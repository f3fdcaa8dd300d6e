"""ConvTranspose as Conv and DepthToSpace, which have integer kernels.

Every output pixel of a transposed convolution with stride s belongs to one of s x s phases, and a
phase is a plain convolution of the input. One Conv computes all phases as channels, DepthToSpace
interleaves them.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortune.graph.ir import edit, match
from ortune.graph.shapes.infer import infer_shapes
from ortune.transforms.common.formulas.formula import Chain
from ortune.transforms.common.layers import affine

_ORDERED = 11
"""Opset from which DepthToSpace knows two orders of channels."""
_SLICED = 10
"""Opset from which Slice takes bounds as inputs."""

_DENSEST = 4.0
_WIDEST = 4
_COMMUTE = ("Relu", "Clip", "LeakyRelu")


@dataclass(frozen=True)
class Taps:
    """One axis of the equal convolution."""

    first: int
    last: int
    surplus: int  # output pixels behind the end, to be cut off
    stride: int  # phases
    width: int  # of the convolution's kernel
    places: Mapping[tuple[int, int], int]  # phase, tap -> tap of the transposed kernel

    def build_index(self) -> NDArray[np.int64]:
        """Return [phase, tap] -> tap of the transposed kernel, -1 where there is none."""
        index = np.full((self.stride, self.width), -1)
        for place, tap in self.places.items():
            index[place] = tap
        return index


def compute_taps(
    kernel: int, stride: int, dilation: int, before: int, after: int, extra: int
) -> Taps:
    """Return the equal convolution of one axis.

    Output pixel ``Y = stride * q + r`` reads input ``q + d`` through kernel tap j wherever
    ``r + before - dilation * j = stride * d``. The convolution gives whole blocks of `stride`
    pixels; n inputs make ``stride * (n - 1) + dilation * (kernel - 1) + 1 - before - after +
    extra`` of them.

    Args:
        kernel: Width of the transposed kernel.
        before: Output pixels cut off at the start.
        after: Output pixels cut off at the end.
        extra: ``output_padding``.
    """
    behind = dilation * (kernel - 1) + 1 - stride - before - after + extra
    blocks = math.ceil(behind / stride)
    offsets = [before - dilation * j for j in range(kernel)]
    reads = {(-offset % stride, -(-offset // stride)): j for j, offset in enumerate(offsets)}
    # Padding can not be negative: taps of zeros reach as far as the output does.
    lowest = min(0, *(d for _, d in reads))
    highest = max(-blocks, lowest, *(d for _, d in reads))
    places = {(r, d - lowest): tap for (r, d), tap in reads.items()}
    surplus, width = blocks * stride - behind, highest - lowest + 1
    return Taps(-lowest, blocks + highest, surplus, stride, width, places)


def split_conv_transposes(model: ir.Model, excluded: Collection[ir.Node] = ()) -> int:
    """Rewrite what can be of all ConvTranspose but those `excluded`; return how many were."""
    editor = edit.Editor(model.graph)
    opset = model.opset_imports.get("", 0)
    count = 0
    for node in match.nodes_of(model, "ConvTranspose"):
        if node in excluded:
            continue
        why = _split_conv_transpose(editor, node, opset)
        if why:
            edit.note_refusal(model, node, why)
        count += not why
    return count


def _split_conv_transpose(editor: edit.Editor, node: ir.Node, opset: int) -> str | None:
    at = affine.as_foldable_layer(node)
    weight = affine.read_fixed_input(node, 1)
    if at is None or weight is None or weight.size == 0:
        return "its weight or bias is not constant"
    axes = _compute_axis_taps(at, opset)
    if isinstance(axes, str):
        return axes
    phases = math.prod(axis.stride for axis in axes)
    growth = phases * math.prod(axis.width for axis in axes) / math.prod(at.shape[2:])
    if growth > _DENSEST:
        return f"it would take {growth:.2g} times as many multiplications"
    phase_weight = _build_phase_weight(weight, at.group, axes)
    inputs = [node.inputs[0], editor.add_constant(f"{node.inputs[1].name}_phases", phase_weight)]  # type: ignore[union-attr]
    bias = affine.read_fixed_input(node, 2)
    if bias is not None:
        each = np.repeat(bias, phases) if at.group > 1 else np.tile(bias, phases)
        inputs.append(editor.add_constant(f"{node.name}_bias_phases", each))
    pads = [*(axis.first for axis in axes), *(axis.last for axis in axes)]
    attributes = {"kernel_shape": phase_weight.shape[2:], "pads": pads, "group": at.group}
    conv = editor.make_node("Conv", inputs, attributes, name=f"{node.outputs[0].name}_phases")
    conv.outputs[0].type = node.outputs[0].type
    _interleave_phases(editor, node, conv, axes)
    return None


def _compute_axis_taps(at: affine.FoldableLayer, opset: int) -> list[Taps] | str:
    """Return the equal convolution axis by axis, or why there is none."""
    node, space = at.node, len(at.shape) - 2
    pad = edit.read_attribute(node, "auto_pad", "NOTSET")
    if pad not in ("NOTSET", "VALID") or "output_shape" in node.attributes:
        return "its padding follows from the size of its input"
    strides = edit.read_attribute(node, "strides", (1,) * space)
    if any(s > 1 for s in strides) and (space != 2 or strides[0] != strides[1]):
        return "DepthToSpace needs two axes with one stride"
    if opset < _ORDERED and strides[0] > 1 and at.group > 1:
        return f"before opset {_ORDERED} DepthToSpace does not know the order of grouped channels"
    no_pads = (0,) * 2 * space
    pads = edit.read_attribute(node, "pads", no_pads) if pad == "NOTSET" else no_pads
    dilations = edit.read_attribute(node, "dilations", (1,) * space)
    extra = edit.read_attribute(node, "output_padding", (0,) * space)
    begins, ends = pads[:space], pads[space:]
    rows = zip(at.shape[2:], strides, dilations, begins, ends, extra, strict=True)
    taps = [compute_taps(*row) for row in rows]
    if opset < _SLICED and any(axis.surplus for axis in taps):
        return f"before opset {_SLICED} Slice takes no bounds as inputs"
    return taps


def _build_phase_weight(weight: NDArray[Any], group: int, axes: Sequence[Taps]) -> NDArray[Any]:
    """Return the kernel [outputs * phases, inputs / group, taps...].

    Phases are outermost (DCR), whose rows of channels move as a whole; in groups they must be
    innermost (CRD).
    """
    space = len(axes)
    picked = np.pad(weight, ((0, 0), (0, 0), *((0, 1),) * space))
    for axis in reversed(range(space)):
        picked = np.take(picked, axes[axis].build_index(), axis=2 + axis)
    grouped = picked.reshape(group, -1, *picked.shape[1:])
    phases, widths = range(3, 3 + 2 * space, 2), range(4, 4 + 2 * space, 2)
    order = (0, 2, *phases) if group > 1 else (0, *phases, 2)
    ordered = grouped.transpose(*order, 1, *widths)
    shape = (-1, weight.shape[0] // group, *(axis.width for axis in axes))
    return np.ascontiguousarray(ordered.reshape(shape))


def _interleave_phases(
    editor: edit.Editor, node: ir.Node, conv: ir.Node, axes: Sequence[Taps]
) -> None:
    """Put DepthToSpace behind; an activation that follows moves in front of it, to the Conv."""
    end, chain = node.outputs[0], [conv]
    after = edit.only_reader(end)
    stride = axes[0].stride
    near = after is not None and after.graph is node.graph and not after.domain
    activation = after if near and after is not None and after.op_type in _COMMUTE else None
    if activation is not None and stride > 1:
        end = activation.outputs[0]
        inputs = [conv.outputs[0], *activation.inputs[1:]]
        attributes = {name: attr.value for name, attr in activation.attributes.items()}
        named = f"{end.name}_phases"
        chain.append(editor.make_node(activation.op_type, inputs, attributes, name=named))
    else:
        activation = None
    if stride > 1:
        grouped = edit.read_attribute(node, "group", 1) > 1
        attributes = {"blocksize": stride} | ({"mode": "CRD"} if grouped else {})
        inputs = [chain[-1].outputs[0]]
        chain.append(
            editor.make_node("DepthToSpace", inputs, attributes, name=f"{end.name}_spread")
        )
    cut = {2 + i: -axis.surplus for i, axis in enumerate(axes) if axis.surplus}
    if cut:
        stem = f"{end.name}_cut"
        numbers = ([0] * len(cut), list(cut.values()), list(cut))
        parts = [editor.add_constant(stem, np.array(row, np.int64)) for row in numbers]
        chain.append(editor.make_node("Slice", [chain[-1].outputs[0], *parts], name=stem))
    result = chain[-1].outputs[0]
    for added in chain:
        added.outputs[0].type = node.outputs[0].type
    edit.insert_before(activation or node, *chain)
    result.shape, result.type = end.shape, end.type
    name = end.name
    end.replace_all_uses_with(result, replace_graph_outputs=True)
    for old in (activation, node):
        if old is not None:
            edit.take_out(old)
    result.name = name


_BETWEEN = ("Relu", "Clip", "LeakyRelu", "Identity", "QuantizeLinear", "DequantizeLinear")
_BEHIND = (*_BETWEEN, "Add", "Concat", "Mul", "Sigmoid")
_TO_LAST, _TO_FIRST = (0, 2, 3, 1), (0, 3, 1, 2)


def spread_channels_last(model: ir.Model) -> int:
    """Write DepthToSpace behind a Conv as Transpose, Reshape and Transpose; return how many.

    Channels and space must have known sizes; the batch may be dynamic.
    """
    nodes = [n for n in edit.walk_nodes(model) if n.op_type == "DepthToSpace" and not n.domain]
    if not nodes:
        return 0
    infer_shapes(model)
    editor = edit.Editor(model.graph)
    count = 0
    for node in nodes:
        why = _spread_depth_to_space(editor, node)
        if why:
            edit.note_refusal(model, node, why)
        count += not why
    return count


def _spread_depth_to_space(editor: edit.Editor, node: ir.Node) -> str | None:
    x, y = node.inputs[0], node.outputs[0]
    shape = edit.shape_of(x)
    if x is None or not isinstance(node.graph, ir.Graph):
        return "it is in a local function"
    if edit.read_attribute(node, "mode", "DCR") != "DCR":
        return "its blocks lie inside the channels: single values would move, at 1.08 of the time"
    if not _behind_conv(x):
        return "it is not behind a Conv"
    if not _read_by_conv(y):
        return "no Conv reads it"
    if shape is None or len(shape) != 4 or not all(isinstance(d, int) and d for d in shape[1:]):
        return "the size of its input is not known"
    depth, high, wide = (d for d in shape[1:] if isinstance(d, int))
    block = edit.read_attribute(node, "blocksize", 1)
    count = depth // block**2
    chain = Chain(editor, str(y.name))
    blocks = chain.add_constant("blocks", (0, high, wide, block, block, count))
    space = chain.add_constant("space", (0, high * block, wide * block, count))
    last = chain.add("Transpose", x, attributes={"perm": _TO_LAST})
    apart = chain.add("Reshape", last, blocks)
    spread = chain.add("Transpose", apart, attributes={"perm": (0, 1, 3, 2, 4, 5)})
    together = chain.add("Reshape", spread, space)
    result, name = chain.add("Transpose", together, attributes={"perm": _TO_FIRST}), y.name
    for added in chain.nodes:
        added.outputs[0].type = x.type
    edit.replace_node(node, *chain.nodes)
    result.name = name
    return None


def _behind_conv(value: ir.Value) -> bool:
    """Only a convolution with integers leaves its output with channels last, at no cost."""
    node = value.producer()
    while node is not None and not node.domain and node.op_type in _BETWEEN:
        first = node.inputs[0]
        node = first.producer() if first is not None else None
    return node is not None and not node.domain and node.op_type == "Conv"


def _read_by_conv(value: ir.Value) -> bool:
    """Towards an output the channels would only be turned back: 1.06 of the time."""
    pending, seen = [value], set()
    while pending:
        for node, _ in pending.pop().uses():
            if node.op_type == "Conv" and not node.domain:
                return True
            if node.op_type in _BEHIND and not node.domain and node not in seen:
                seen.add(node)
                pending.append(node.outputs[0])
    return False


def widen_groups(model: ir.Model, channels: int, excluded: Collection[ir.Node] = ()) -> int:
    """Join groups of fewer input channels than `channels`; return how many nodes changed.

    Depthwise convolutions (one channel in, one out) stay, and so do those `excluded` and those
    whose number of groups has no divisor that gives about so many channels.
    """
    editor = edit.Editor(model.graph)
    count = 0
    for node in match.nodes_of(model, "Conv"):
        at = affine.as_foldable_layer(node) if node not in excluded else None
        if at is None or at.group == 1 or 0 in at.shape or at.shape[1] >= channels:
            continue
        weight = affine.read_fixed_input(node, 1)
        if weight is None or (at.shape[1] == 1 and at.shape[0] <= at.group):
            continue
        factors = (f for f in range(2, at.group + 1) if at.group % f == 0)
        joined = next((f for f in factors if at.shape[1] * f >= channels), at.group)
        if at.shape[1] * joined > _WIDEST * channels:
            edit.note_refusal(model, node, f"of its {at.group} groups {joined} would become one")
            continue
        # The weights of every `joined` groups become the blocks of one.
        outputs, inputs = weight.shape[0] // at.group, weight.shape[1]
        parts = weight.reshape(at.group // joined, joined, outputs, inputs, *weight.shape[2:])
        blocks = np.zeros((*parts.shape[:3], joined, *parts.shape[3:]), weight.dtype)
        for index in range(joined):
            blocks[:, index, :, index] = parts[:, index]
        wide = blocks.reshape(weight.shape[0], joined * inputs, *weight.shape[2:])
        node.replace_input_with(1, editor.add_constant(f"{node.name}_wide", wide))
        node.attributes["group"] = ir.AttrInt64("group", at.group // joined)
        count += 1
    return count


def subsample_once(model: ir.Model, excluded: Collection[ir.Node] = ()) -> int:
    """Take strides out of 1x1 convolutions on one tensor and write them once, in front.

    A 1x1 convolution reads only each second row and column where its stride is 2: a MaxPool of
    1x1 with that stride keeps the same values. It is written where all readers of a tensor, two or
    more, are such convolutions (a stage of Keras' ResNets begins so): OpenVINO moves their
    strides in front of them itself, between integers and their scale, and computes both in float
    (measured by ``benchmarks.speed.executed_int8``).

    Returns:
        How many tensors got one.
    """
    editor, count = edit.Editor(model.graph), 0
    for graph in [model.graph, *model.graph.subgraphs()]:
        for value in [*graph.inputs, *(value for node in graph for value in node.outputs)]:
            readers = list(dict.fromkeys(use.node for use in value.uses()))
            strides = {_read_bare_stride(node) for node in readers}
            stride = strides.pop() if len(strides) == 1 else None
            if stride is None or len(readers) < 2 or value.is_graph_output():
                continue
            if any(node in excluded or node.graph is not graph for node in readers):
                continue
            attributes = {"kernel_shape": (1,) * len(stride), "strides": stride}
            name = f"{value.name}_subsampled"
            pool = editor.add_node(
                readers[0], "MaxPool", [value], attributes, name=name, dtype=value.dtype
            )
            for node in readers:
                node.replace_input_with(0, pool)
                node.attributes.add(ir.AttrInt64s("strides", (1,) * len(stride)))
            count += 1
    return count


def _read_bare_stride(node: ir.Node) -> tuple[int, ...] | None:
    """Return the strides of a 1x1 convolution without padding, None of anything else."""
    weight = edit.const_tensor(node.inputs[1]) if len(node.inputs) > 1 else None
    if node.op_type != "Conv" or node.domain or weight is None or len(weight.shape) < 3:
        return None
    space = len(weight.shape) - 2
    strides = tuple(edit.read_attribute(node, "strides", (1,) * space))
    pads = edit.read_attribute(node, "pads", (0,) * 2 * space)
    padded = any(pads) or edit.read_attribute(node, "auto_pad", "NOTSET").startswith("SAME")
    bare = set(weight.shape.numpy()[2:]) == {1} and not padded
    return strides if bare and max(strides) > 1 else None
