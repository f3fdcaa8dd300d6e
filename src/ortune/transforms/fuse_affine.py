"""Put constant factors and summands beside a layer into its weights."""

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ortune.core.step import Stage, Transform
from ortune.graph.ir import edit, prune
from ortune.graph.ir.match import find_consumer, find_producer, nodes_of
from ortune.graph.shapes.infer import infer_shapes
from ortune.transforms.common.layers.affine import (
    ARITHMETIC,
    OPS,
    UNCHANGED,
    Absorber,
    Affine,
    ChannelAxis,
    FoldableLayer,
    as_foldable_layer,
    read_affine,
)


@dataclass(frozen=True)
class FuseAffine(Transform):
    """Put Add, Sub, Mul and Div with one number, or one a channel, into the weights beside them.

    Behind Conv, ConvTranspose, Gemm and MatMul, with f the product of all factors::

        f (W x + b) + t  =  (f W) x + (f b + t)

    In front of a convolution, summed over the inputs and taps of an output::

        W (s x + t) + b  =  (W s) x + (W t + b)

    where t must be 0 if the convolution pads (padding is not shifted) or is transposed. MatMul
    has no bias: behind it one Add is left. Computed in float64, stored in the weights' type.

    It comes behind the fusions, whose patterns hold such constants. A factor behind the product of
    two tensors is left in front: it is the end of GELU or HardSwish written out, which the runtime
    fuses (without it an OCR detector took 1.07 of its time).

    onnxruntime does the first for Conv with one factor and one summand by itself; not behind
    MatMul and Gemm, not in front. Quantizers need it: no runtime folds into integer weights.
    """

    stage: ClassVar[Stage] = Stage.FINISH
    consumes = (ARITHMETIC, OPS)

    def apply(self, model: ir.Model) -> int:
        infer_shapes(model)
        opset = model.opset_imports.get("", 0)
        absorber = Absorber(edit.Editor(model.graph))
        count = 0
        for node in nodes_of(model, *OPS):
            if (layer := as_foldable_layer(node)) is not None:
                count += _fuse_following(model, layer, absorber, opset)
                count += _fuse_preceding(model, layer, absorber, opset)
        if count:
            prune.drop_dead(model)
        return count


def _fuse_following(model: ir.Model, at: FoldableLayer, absorber: Absorber, opset: int) -> int:
    affine, chain, value = UNCHANGED, [], at.node.outputs[0]
    while (node := find_consumer(value, *ARITHMETIC)) is not None and node.graph is at.node.graph:
        node_affine = read_affine(node, value, at.channels, opset)
        if node_affine is None or not node_affine.finite:
            constants = [
                v for v in node.inputs if v is not value and edit.const_tensor(v) is not None
            ]
            if any(map(edit.is_overridable, constants)):
                edit.note_refusal(model, node, "a caller may override its constant")
            elif constants:
                edit.note_refusal(
                    model, node, "its constant is not one number a channel of the layer before"
                )
            break
        affine = affine.compose_with(node_affine)
        chain.append(node)
        value = node.outputs[0]
    remaining_shift = at.node.op_type == "MatMul" and affine.shifts
    if len(chain) <= remaining_shift:
        return 0
    why = absorber.absorb_output_affine(at, affine, chain)
    if why:
        edit.note_refusal(model, chain[0], why)
        return 0
    return len(chain) - remaining_shift


def _fuse_preceding(model: ir.Model, at: FoldableLayer, absorber: Absorber, opset: int) -> int:
    if not at.convolves:
        return 0
    affine, count, value = UNCHANGED, 0, at.node.inputs[0]
    first = None
    while value is not None and (node := value.producer()) is not None:
        inside = edit.has_single_use(value) and node.graph is at.node.graph
        if not inside or node.op_type not in ARITHMETIC:
            break
        x, node_affine = _read_operand(node, at, opset)
        if x is None or node_affine is None or not node_affine.finite:
            break
        affine, value, first = node_affine.compose_with(affine), x, first or node
        count += 1
    if first is None or value is None:
        return 0
    node = find_producer(value, "Mul", "Div")
    if node is not None and all(edit.const_tensor(v) is None for v in node.inputs):
        edit.note_refusal(model, first, "it ends an activation written out")
        return 0
    why = absorber.absorb_input_affine(at, affine, value)
    if why:
        edit.note_refusal(model, first, why)
        return 0
    return count


def _read_operand(
    node: ir.Node, at: FoldableLayer, opset: int
) -> tuple[ir.Value | None, Affine | None]:
    """Return the tensor that arithmetic changes and how; it must have the layer's channels."""
    for x in node.inputs:
        shape = edit.shape_of(x)
        if x is None or shape is None or len(shape) != len(at.shape):
            continue
        node_affine = read_affine(node, x, ChannelAxis(at.inputs, 1, len(shape)), opset)
        if node_affine is not None:
            most = max(node_affine.scale.size, node_affine.shift.size)
            return (x, node_affine) if most == 1 or shape[1] == at.inputs else (None, None)
    return None, None
