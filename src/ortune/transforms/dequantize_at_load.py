"""Constant DequantizeLinear as Cast and Mul, which onnxruntime folds at load."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from ortune.core.backend import Backend
from ortune.core.capabilities import Capabilities
from ortune.core.step import Stage, Transform
from ortune.graph.ir import edit, prune, qdq

_CONVOLUTIONS = ("Conv", "ConvTranspose", "FusedConv")


@dataclass(frozen=True)
class DequantizeAtLoad(Transform):
    """Exact: DequantizeLinear(w, s, 0) = Cast(w) * s, with s along the axis.

    onnxruntime 1.31 folds no DequantizeLinear: weights behind one are widened in every inference,
    and convolutions lose their blocked layout (1.2 to 2.3 times the latency). Cast and Mul it
    folds: the file stays small and runs at float speed. Only weights of convolutions whose other
    inputs are float are rewritten, so integer kernels keep theirs. The search does so for models
    that arrive with such weights, on onnxruntime's CPU kernels.
    """

    stage: ClassVar[Stage] = Stage.FINISH
    consumes = (("DequantizeLinear",), _CONVOLUTIONS)

    def suits(self, backend: Backend, capabilities: Capabilities) -> bool:
        """OpenVINO keeps the integers until they are used; onnxruntime's CPU kernels cannot."""
        return backend.name() == "cpu"

    def apply(self, model: ir.Model) -> int:
        return prune.edit_nodes(model, _replace_by_cast_and_mul)


def _replace_by_cast_and_mul(editor: edit.Editor, node: ir.Node) -> bool:
    if node.op_type != "DequantizeLinear" or not _widens_a_kernel(node):
        return False
    weight = edit.const_array(node.inputs[0])
    scale = edit.const_array(node.inputs[1])
    zero = edit.const_array(node.inputs[2]) if len(node.inputs) > 2 else None
    if weight is None or scale is None or scale.ndim > 1 or (zero is not None and zero.any()):
        return False
    axis = int(edit.read_attribute(node, "axis", 1)) % weight.ndim
    shape = [-1 if i == axis else 1 for i in range(weight.ndim)]
    wide = node.outputs[0]
    stem = str(wide.name)
    to = {"to": int(ir.DataType.FLOAT)}
    cast = editor.make_node("Cast", [node.inputs[0]], to, name=f"{stem}_cast")
    factor = editor.add_constant(f"{stem}_factor", scale.reshape(shape).astype(np.float32))
    product = editor.make_node("Mul", [cast.outputs[0], factor], name=f"{stem}_wide")
    product.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
    return edit.replace_node(node, cast, product)


def _widens_a_kernel(node: ir.Node) -> bool:
    """Whether all readers are convolutions that take it as weight beside a float input."""
    uses = list(node.outputs[0].uses())
    weights = all(use.node.op_type in _CONVOLUTIONS and use.idx == 1 for use in uses)
    return bool(uses) and weights and not any(qdq.is_integer(use.node.inputs[0]) for use in uses)
