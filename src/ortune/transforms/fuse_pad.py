"""Padding that a convolution or pooling does by itself."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from ortune.core.step import Stage, Transform
from ortune.graph.ir import edit, match, prune
from ortune.graph.shapes.infer import infer_shapes
from ortune.graph.shapes.windows import compute_padding

_PADDING = ("Conv", "ConvInteger", "MaxPool", "AveragePool")


@dataclass(frozen=True)
class FusePad(Transform):
    """A Pad of the spatial axes goes into ``pads`` of the Conv or pooling behind it.

    ::

        conv(pad(x, p, 0), pads=q)          = conv(x, pads=p+q)
        max_pool(pad(x, p, -inf), pads=q)   = max_pool(x, pads=p+q)
        average_pool(pad(x, p, 0), pads=q)  = average_pool(x, pads=p+q, count_include_pad=1)

    The average needs q = 0 or count_include_pad; the maximum takes 0 too where its input is never
    below 0. ``auto_pad`` is resolved: VALID is q = 0, SAME needs a known size. Exact.

    In float onnxruntime 1.31 does it itself while it loads. Between Q/DQ pairs it does not: each
    Pad runs in float, with a conversion on both sides.

    Left alone: padding by reflection, edge or wrapping, negative or computed numbers, batch or
    channels padded, pooling with ceil_mode, dilations of the average, a Pad that others read too.
    """

    stage: ClassVar[Stage] = Stage.FUSE
    consumes = (("Pad",), _PADDING)

    def apply(self, model: ir.Model) -> int:
        infer_shapes(model)
        opset = model.opset_imports.get("", 0)
        count = 0
        for node in edit.walk_nodes(model):
            pad = match.find_producer(node.inputs[0], "Pad") if node.inputs else None
            if pad is None or node.domain or node.op_type not in _PADDING:
                continue
            why = _fold_pad(node, pad, opset)
            if why:
                edit.note_refusal(model, pad, why)
            else:
                count += 1
        if count:
            prune.drop_dead(model)
        return count


def _fold_pad(node: ir.Node, pad: ir.Node, opset: int) -> str:
    """Put the numbers into the node; return why that cannot be done."""
    if node.op_type == "ConvInteger":
        return "a zero point is not 0"
    source, shape = pad.inputs[0], edit.shape_of(pad.outputs[0])
    if shape is None or source is None:
        return "its rank is not known"
    if pad.graph is not node.graph or pad.outputs[0].is_graph_output():
        return "its result is read elsewhere"
    if len({reader for reader, _ in pad.outputs[0].uses()}) > 1:
        return "its result is read elsewhere"
    amounts = _read_pad_amounts(pad, len(shape), opset)
    if isinstance(amounts, str):
        return amounts
    begins, ends = amounts[: len(shape)], amounts[len(shape) :]
    if any(begins[:2]) or any(ends[:2]):
        return "it pads more than the spatial axes"
    value = _read_pad_value(pad, opset)
    if why := _wrong_value(node, pad, value):
        return why
    node_pads = _compute_node_pads(node, len(shape) - 2)
    if node_pads is None:
        return "the padding of the node itself depends on the size"
    if node.op_type != "Conv" and (why := _check_pooling(node, node_pads)):
        return why
    total = [a + b for a, b in zip([*begins[2:], *ends[2:]], node_pads, strict=True)]
    if node.op_type != "Conv" and not _fits_window(node, total):
        return "a window would lie in the padding alone"
    node.attributes.pop("auto_pad", None)
    node.attributes["pads"] = ir.AttrInt64s("pads", total)
    if node.op_type == "AveragePool":
        node.attributes["count_include_pad"] = ir.AttrInt64("count_include_pad", 1)
    node.replace_input_with(0, source)
    return ""


def _read_pad_amounts(pad: ir.Node, rank: int, opset: int) -> list[int] | str:
    """Return the begins and ends of every axis, whichever way they are written."""
    if edit.read_attribute(pad, "mode", "constant") != "constant":
        return f"it pads by {edit.read_attribute(pad, 'mode', '')}"
    if opset < 11:
        pads = list(edit.read_attribute(pad, "pads", edit.read_attribute(pad, "paddings", ())))
    else:
        value = pad.inputs[1] if len(pad.inputs) > 1 else None
        array = edit.read_fixed_array(value)
        if array is None:
            return "its numbers are not constant"
        pads = [int(item) for item in array.reshape(-1)]
    axes = list(range(rank))
    if len(pad.inputs) > 3 and pad.inputs[3] is not None:
        array = edit.read_fixed_array(pad.inputs[3])
        if array is None:
            return "its axes are not constant"
        axes = [int(axis) % rank for axis in array.reshape(-1)]
    if len(pads) != 2 * len(axes):
        return "its numbers do not fit its axes"
    if min(pads, default=0) < 0:
        return "it cuts instead of padding"
    amounts = [0] * (2 * rank)
    for index, axis in enumerate(axes):
        amounts[axis], amounts[rank + axis] = pads[index], pads[len(axes) + index]
    return amounts


def _read_pad_value(pad: ir.Node, opset: int) -> float | None:
    """Return the number it pads with; None when that is not constant."""
    if opset < 11:
        return float(edit.read_attribute(pad, "value", 0.0))
    value = pad.inputs[2] if len(pad.inputs) > 2 else None
    if value is None:
        return 0.0
    return match.read_scalar(value)


def _wrong_value(node: ir.Node, pad: ir.Node, value: float | None) -> str:
    if value is None:
        return "the number it pads with is not constant"
    if node.op_type != "MaxPool":
        return "" if value == 0 else "it pads with another number than 0"
    dtype = pad.inputs[0].dtype if pad.inputs[0] is not None else None
    if value == -np.inf:
        return ""
    if value <= 0 and match.find_producer(pad.inputs[0], *match.NOT_NEGATIVE) is not None:
        return ""
    if dtype is not None and dtype.is_integer() and value <= int(dtype.min):
        return ""
    if dtype is not None and dtype.is_floating_point() and value <= float(dtype.min):
        return "its lowest number is above -inf"
    return "the padding may be the largest"


def _compute_node_pads(node: ir.Node, axes: int) -> list[int] | None:
    """Return the padding that a node already does; SAME needs a known size."""
    mode = edit.read_attribute(node, "auto_pad", "NOTSET")
    if mode in ("NOTSET", "VALID"):
        pads = edit.read_attribute(node, "pads", ()) if mode == "NOTSET" else ()
        return list(pads) or [0] * 2 * axes
    shape, kernel = edit.shape_of(node.inputs[0]), _kernel_shape(node)
    space = [size for size in shape or () if isinstance(size, int)][-axes:]
    if shape is None or kernel is None or any(not isinstance(size, int) for size in shape[2:]):
        return None
    dilations = edit.read_attribute(node, "dilations", (1,) * axes)
    reach = [(wide - 1) * apart + 1 for wide, apart in zip(kernel, dilations, strict=True)]
    strides = edit.read_attribute(node, "strides", (1,) * axes)
    ends = compute_padding(space, reach, strides, (), mode)
    return [*(begin for begin, _ in ends), *(end for _, end in ends)]


def _kernel_shape(node: ir.Node) -> Sequence[int] | None:
    kernel_shape = edit.read_attribute(node, "kernel_shape", None)
    if kernel_shape is not None:
        return tuple(kernel_shape)
    weight = edit.const_tensor(node.inputs[1]) if len(node.inputs) > 1 else None
    return tuple(int(dim) for dim in weight.shape.numpy()[2:]) if weight is not None else None


def _check_pooling(node: ir.Node, node_pads: Sequence[int]) -> str:
    if edit.read_attribute(node, "ceil_mode", 0):
        return "pooling with ceil_mode counts its windows otherwise"
    if node.op_type == "MaxPool":
        indices = len(node.outputs) > 1 and node.outputs[1].name
        return "its indices count the padding" if indices else ""
    if any(node_pads) and not edit.read_attribute(node, "count_include_pad", 0):
        return "the average leaves its own padding out"
    apart = edit.read_attribute(node, "dilations", None)
    return "dilations of the average" if apart is not None and set(apart) != {1} else ""


def _fits_window(node: ir.Node, total: Sequence[int]) -> bool:
    """Runtimes refuse pooling whose padding is as wide as its window."""
    kernel = _kernel_shape(node)
    return kernel is not None and all(
        pad < width for pad, width in zip(total, [*kernel, *kernel], strict=True)
    )
