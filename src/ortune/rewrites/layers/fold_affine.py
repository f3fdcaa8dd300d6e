"""Put a factor and a summand a channel into the weights of the layer beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortune.model.graph.edit import Editor, attribute, const_tensor, insert_before
from ortune.model.graph.replace import forward, remove
from ortune.rewrites.layers.affine import Affine, constant
from ortune.rewrites.layers.foldable import FoldableLayer, spread_in, spread_out
from ortune.rewrites.simplify.constants import LARGE_BYTES


@dataclass
class Absorber:
    """Computes new weights in float64 and stores them in the old ones' type.

    Equal weights that take up equal maps are stored once. Every method returns why it can not be
    done, having changed nothing; None when it is done.
    """

    editor: Editor
    _made: dict[tuple[Any, ...], ir.Value] = field(default_factory=dict)

    def behind(self, at: FoldableLayer, affine: Affine, chain: Sequence[ir.Node]) -> str | None:
        """Let a layer compute what the end of a chain behind it did.

        ``f (W x + b) + t = (f W) x + (f b + t)``. Gemm is ``alpha A B + beta C``: C becomes
        ``f beta C + t`` and beta 1. MatMul has no bias: an Add takes the shift.

        Args:
            at: The layer; the chain alone reads it.
            affine: What the whole chain does, in channels of the layer's output.
            chain: The nodes, in order; all of the layer's graph and each read by the next alone.
        """
        affine = affine.over(at.outputs)
        node, has_bias = at.node, at.node.op_type != "MatMul"
        bias = self._bias(at, affine) if has_bias else None
        if isinstance(bias, str):
            return bias
        weight = self._weight(at, spread_out(at, affine.scale))
        if isinstance(weight, str):
            return weight
        node.replace_input_with(1, weight)
        if bias is not None:
            self._set_bias(node, bias)
        end, result = chain[-1], node.outputs[0]
        if not has_bias and affine.shifts:
            result = self._add(at, affine.shift, end)
        name, old = end.outputs[0].name, end.outputs[0]
        if result.shape is None:
            result.shape, result.type = old.shape, result.type or old.type
        forward(old, result)
        for step in reversed(chain):
            remove(step)
        # Calibration knows tensors by name: a name that stays must stand for the values it had.
        result.name = name
        return None

    def before(self, at: FoldableLayer, affine: Affine, x: ir.Value) -> str | None:
        """Let a convolution read `x` where it read ``affine(x)``.

        ``W (s x + t) + b = (W s) x + (W t + b)``, the shift summed over all that an output reads.
        For that every tap must lie on the input: zeros of the padding are not shifted.
        """
        if affine.shifts and at.node.op_type == "ConvTranspose":
            return "the shift in front of a transposed convolution is not the same at its borders"
        if affine.shifts and at.padded:
            return "the shift in front of it does not reach the zeros of its padding"
        affine = affine.over(at.inputs)
        bias = self._shifted(at, affine) if affine.shifts else None
        if isinstance(bias, str):
            return bias
        weight = self._weight(at, spread_in(at, affine.scale))
        if isinstance(weight, str):
            return weight
        at.node.replace_input_with(1, weight)
        if bias is not None:
            self._set_bias(at.node, bias)
        at.node.replace_input_with(0, x)
        return None

    def _weight(self, at: FoldableLayer, factor: NDArray[np.float64]) -> ir.Value | str:
        value = at.node.inputs[1]
        tensor = const_tensor(value)
        if value is None or tensor is None:
            return "its weight is not constant"
        if (factor == 1).all():
            return value
        if any(user.op_type != at.node.op_type for user, _ in value.uses()):
            return "its weight is read by other operators too"
        if tensor.nbytes > LARGE_BYTES:
            return "its weight is too large to be computed again"
        key = (value, factor.shape, factor.tobytes())
        if key not in self._made:
            old = np.asarray(tensor.numpy())
            made = (old.astype(np.float64) * factor).astype(old.dtype)
            if not np.isfinite(made.astype(np.float64)).all():
                return "the new weights are not finite"
            self._made[key] = self.editor.constant(f"{at.node.name}_weight_scaled", made)
        return self._made[key]

    def _bias(self, at: FoldableLayer, affine: Affine) -> NDArray[Any] | str | None:
        held = constant(at.node, 2)
        beta = attribute(at.node, "beta", 1.0) if at.node.op_type == "Gemm" else 1.0
        if held is None and not affine.shifts:
            return None
        old = np.zeros(1) if held is None else beta * held.astype(np.float64)
        return _stored(at, affine.scale * old + affine.shift)

    def _shifted(self, at: FoldableLayer, affine: Affine) -> NDArray[Any] | str:
        weight, held = constant(at.node, 1), constant(at.node, 2)
        if weight is None:
            return "its weight is not constant"
        axes = tuple(range(1, weight.ndim))
        summed = (weight.astype(np.float64) * spread_in(at, affine.shift)).sum(axis=axes)
        return _stored(at, summed if held is None else summed + held.astype(np.float64))

    def _set_bias(self, node: ir.Node, array: NDArray[Any]) -> None:
        if len(node.inputs) < 3:
            node.resize_inputs(3)
        node.replace_input_with(2, self.editor.constant(f"{node.name}_bias_shifted", array))
        if node.op_type == "Gemm":
            node.attributes["beta"] = ir.AttrFloat32("beta", 1.0)

    def _add(self, at: FoldableLayer, shift: NDArray[np.float64], end: ir.Node) -> ir.Value:
        tensor = const_tensor(at.node.inputs[1])
        dtype = np.float32 if tensor is None else tensor.dtype.numpy()
        bias = self.editor.constant(f"{at.node.name}_bias", shift.astype(dtype))
        add = self.editor.node("Add", [at.node.outputs[0], bias], name=f"{at.node.name}_add")
        insert_before(end, add)
        value, old = add.outputs[0], end.outputs[0]
        value.type, value.shape = old.type, old.shape
        return value


def _stored(at: FoldableLayer, numbers: NDArray[np.float64]) -> NDArray[Any] | str:
    tensor = const_tensor(at.node.inputs[1])
    if tensor is None:
        return "its weight is not constant"
    made = numbers.astype(tensor.dtype.numpy())
    finite = np.isfinite(made.astype(np.float64)).all()
    return made if finite else "the new bias is not finite"
