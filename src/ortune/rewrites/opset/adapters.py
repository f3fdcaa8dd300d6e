"""How operators are spelled in older opsets: one adapter a change, by operator and version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ortune.model.graph.edit import attribute, const_array
from ortune.model.graph.spec import shape_of
from ortune.model.graph.uses import is_read
from ortune.model.graph.values import overridable
from ortune.rewrites.opset.all_axes import full_axes, full_inputs, full_pads
from ortune.rewrites.opset.lowering import (
    Adapted,
    Adapter,
    Lowering,
    dropped,
    into_attribute,
    values,
    without,
    written,
)


def _reduce(work: Lowering, node: ir.Node) -> Adapted:
    """Axes are an attribute; none of them and `noop_with_empty_axes` reduces nothing."""
    noop = node.attributes.pop("noop_with_empty_axes", None)
    axes = node.inputs[1] if len(node.inputs) > 1 else None
    array = const_array(axes)
    empty = axes is None or (array is not None and array.size == 0)
    if empty and noop is not None and noop.as_int():
        if node.op_type in _ALTERING:
            return "without axes it still changes the elements"
        return work.replace(node, [work.make(node, "Identity", node.inputs[0])])
    if empty and axes is not None:
        node.resize_inputs(1)
        return None
    return into_attribute(1, "axes")(work, node)


_ALTERING = ("ReduceSumSquare", "ReduceLogSum", "ReduceL1", "ReduceL2", "ReduceLogSumExp")


def _parts(work: Lowering, node: ir.Node) -> Adapted:
    """Equal parts are given by the number of outputs, others by their sizes."""
    count = node.attributes.pop("num_outputs", None)
    if count is None or len(node.inputs) > 1:
        return None
    shape = shape_of(node.inputs[0])
    axis = attribute(node, "axis", 0)
    size = shape[axis] if shape is not None else None
    if not isinstance(size, int):
        return "the size that it splits is not known"
    number = len(node.outputs)
    part = -(-size // number)
    sizes = [part] * (number - 1) + [size - part * (number - 1)]
    if len(set(sizes)) > 1:
        node.resize_inputs(2)
        node.replace_input_with(1, work.constant(node, "split", sizes, np.int64))
    return None


def _softmax(work: Lowering, node: ir.Node) -> Adapted:
    """Below 13 all dimensions from the axis on count as one: the axis must be the last."""
    shape = shape_of(node.inputs[0])
    axis = attribute(node, "axis", -1)
    if shape is None:
        return "the rank of its input is not known"
    rank, axis = len(shape), axis % max(len(shape), 1)
    if rank == 0:
        return "its input is a scalar"
    if axis == rank - 1:
        node.attributes.add(ir.AttrInt64("axis", axis))
        return None
    order = [*(i for i in range(rank) if i != axis), axis]
    back = [order.index(i) for i in range(rank)]
    there = work.make(node, "Transpose", node.inputs[0], attributes={"perm": order})
    soft = work.make(node, node.op_type, there.outputs[0], attributes={"axis": rank - 1})
    home = work.make(node, "Transpose", soft.outputs[0], attributes={"perm": back})
    work.replace(node, [there, soft, home])
    return []


def _shape(work: Lowering, node: ir.Node) -> Adapted:
    """A part of a shape is a Slice of it."""
    start, end = attribute(node, "start", 0), attribute(node, "end", None)
    for name in ("start", "end"):
        node.attributes.pop(name, None)
    if not start and end is None:
        return None
    whole = work.make(node, "Shape", node.inputs[0])
    last = np.iinfo(np.int64).max if end is None else end
    edges = [work.constant(node, "edge", [edge], np.int64) for edge in (start, last)]
    axes = work.constant(node, "axes", [0], np.int64)
    return work.replace(node, [whole, work.make(node, "Slice", whole.outputs[0], *edges, axes)])


def _layer_norm(work: Lowering, node: ir.Node) -> Adapted:
    """Mean and variance over the axes, spelled out; in float32 as the operator computes it."""
    source = node.inputs[0]
    shape = shape_of(source)
    extra = any(is_read(value) for value in node.outputs[1:])
    if extra:
        return None  # the standard's own body gives the mean too
    if source is None or shape is None or source.dtype is None:
        return "its rank is not known"
    axis = attribute(node, "axis", -1) % len(shape)
    axes = list(range(axis, len(shape)))
    stash = ir.DataType(attribute(node, "stash_type", 1))
    made: list[ir.Node] = []

    def add(op: str, *inputs: ir.Value | None, **attributes: Any) -> ir.Value:
        made.append(work.make(node, op, *inputs, attributes=attributes))
        return made[-1].outputs[0]

    casts = source.dtype != stash
    x = add("Cast", source, to=stash.value) if casts else source
    centred = add("Sub", x, add("ReduceMean", x, axes=axes))
    variance = add("ReduceMean", add("Mul", centred, centred), axes=axes)
    epsilon = work.constant(node, "epsilon", attribute(node, "epsilon", 1e-5), stash.numpy())
    y = add("Div", centred, add("Sqrt", add("Add", variance, epsilon)))
    y = add("Cast", y, to=source.dtype.value) if casts else y
    for op, value in zip(("Mul", "Add"), node.inputs[1:], strict=False):
        y = add(op, y, value) if value is not None else y
    ends = [made[-1]]
    if len(node.outputs) > 1:
        ends += [work.make(node, "Identity", y) for _ in node.outputs[1:]]
        made += ends[1:]
    return work.replace(node, made)


def _dropout(work: Lowering, node: ir.Node) -> Adapted:
    """Out of training it does nothing."""
    mode = node.inputs[2] if len(node.inputs) > 2 else None
    array = const_array(mode)
    masked = len(node.outputs) > 1 and (is_read(node.outputs[1]))
    if masked or (mode is not None and (array is None or overridable(mode) or array.any())):
        return "it trains, or its mask is read"
    same = [work.make(node, "Identity", node.inputs[0]) for _ in node.outputs]
    return work.replace(node, same)


def _cast_like(work: Lowering, node: ir.Node) -> Adapted:
    like = node.inputs[1]
    if like is None or like.dtype is None:
        return "the type that it casts to is not known"
    cast = work.make(node, "Cast", node.inputs[0], attributes={"to": like.dtype.value})
    return work.replace(node, [cast])


def _grid_modes(work: Lowering, node: ir.Node) -> Adapted:
    older = {"linear": "bilinear", "cubic": "bicubic", "nearest": "nearest"}
    mode = attribute(node, "mode", "linear")
    source = node.inputs[0]
    if source is None or source.shape is None or len(source.shape) != 4:
        return "only pictures are sampled there"
    node.attributes.add(ir.AttrString("mode", older.get(mode, mode)))
    return None


def _allow_zero(work: Lowering, node: ir.Node) -> Adapted:
    """Zeros are sizes of empty tensors alone: a computed target has none for any other."""
    to = const_array(node.inputs[1])
    if attribute(node, "allowzero", 0):
        if to is not None and (to == 0).any():
            return "zeros of its target are sizes, and were copied there"
        if to is None:
            work.notes.append("a Reshape to a computed shape takes no empty tensor any more")
    node.attributes.pop("allowzero", None)
    return None


def _undilated(work: Lowering, node: ir.Node) -> Adapted:
    if any(one != 1 for one in attribute(node, "dilations", ())):
        return "it has no dilations there"
    node.attributes.pop("dilations", None)
    return None


def _constant(work: Lowering, node: ir.Node) -> Adapted:
    """Numbers are a tensor."""
    array = const_array(node.outputs[0])
    if array is None or "value" in node.attributes:
        return None
    node.attributes.clear()
    node.attributes.add(ir.AttrTensor("value", ir.tensor(np.asarray(array))))
    return None


def _third(work: Lowering, node: ir.Node) -> Adapted:
    """Gemm's third input must be there."""
    if len(node.inputs) < 3 or node.inputs[2] is None:
        first = node.inputs[0]
        if first is None or first.dtype is None:
            return "its type is not known"
        node.resize_inputs(3)
        node.replace_input_with(2, work.constant(node, "zero", [0], first.dtype.numpy()))
    return None


_AXES = (13, into_attribute(1, "axes"))
ADAPTERS: Mapping[str, Sequence[tuple[int, Adapter]]] = {
    "Squeeze": (_AXES,),
    "Unsqueeze": (_AXES,),
    "ReduceSum": ((13, _reduce),),
    **{
        f"Reduce{kind}": ((18, _reduce),)
        for kind in ("Max", "Min", "Mean", "Prod", "L1", "L2", "LogSum", "LogSumExp", "SumSquare")
    },
    "Split": ((18, _parts), (13, into_attribute(1, "split"))),
    "Softmax": ((13, _softmax),),
    "LogSoftmax": ((13, _softmax),),
    "Hardmax": ((13, _softmax),),
    "Shape": ((15, _shape),),
    "LayerNormalization": ((17, _layer_norm),),
    "Dropout": ((12, _dropout),),
    "Cast": ((24, dropped("round_mode")), (19, dropped("saturate"))),
    "Reshape": ((14, _allow_zero),),
    "AveragePool": ((19, _undilated),),
    "CastLike": ((15, _cast_like),),
    "GridSample": ((20, _grid_modes),),
    "RoiAlign": (
        (16, written("coordinate_transformation_mode", "half_pixel", "output_half_pixel")),
    ),
    "Resize": (
        (
            19,
            values(
                "coordinate_transformation_mode",
                "half_pixel",
                "pytorch_half_pixel",
                "align_corners",
                "asymmetric",
                "tf_crop_and_resize",
            ),
        ),
        (18, without("antialias")),
        (18, full_axes),
        (13, full_inputs),
        (11, lambda work, node: "it computed another position for each pixel"),
    ),
    "Pad": (
        (19, values("mode", "constant", "reflect", "edge")),
        (18, full_pads),
        (11, into_attribute(2, "value", scalar=True)),
        (11, into_attribute(1, "pads")),
    ),
    "Clip": (
        (11, into_attribute(2, "max", scalar=True)),
        (11, into_attribute(1, "min", scalar=True)),
    ),
    "TopK": ((10, into_attribute(1, "k", scalar=True)),),
    "ScatterElements": (
        (18, values("reduction", "none", "add", "mul")),
        (16, values("reduction", "none")),
    ),
    "ScatterND": (
        (18, values("reduction", "none", "add", "mul")),
        (16, values("reduction", "none")),
    ),
    "Constant": ((12, _constant),),
    "Gemm": ((11, _third),),
}
"""Operator -> (version of the change, how to go below it), newest change first."""
