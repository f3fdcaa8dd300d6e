"""Dynamic integer products in the spelling that onnxruntime makes one kernel of."""

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ortune.core.step import Stage, Transform
from ortune.graph.ir import edit, match, prune


@dataclass(frozen=True)
class FuseDynamicProducts(Transform):
    """MatMulInteger, Cast, Mul by one scale, Mul by the other: both scales multiplied first.

    onnxruntime fuses ``Cast(MatMulInteger) * (a_scale * b_scale)``, with DynamicQuantizeLinear in
    front and a bias behind, into DynamicQuantizeMatMul. One scale after the other stays
    five kernels. Exact up to the order of two float
    multiplications.
    """

    stage: ClassVar[Stage] = Stage.FUSE
    consumes = (("MatMulInteger",),)

    def apply(self, model: ir.Model) -> int:
        return prune.edit_nodes(model, _reorder_factors)


def _reorder_factors(editor: edit.Editor, node: ir.Node) -> bool:
    if node.op_type != "MatMulInteger" or node.domain:
        return False
    cast = match.find_consumer(node.outputs[0], "Cast")
    if cast is None or edit.read_attribute(cast, "to", 0) != int(ir.DataType.FLOAT):
        return False
    first = match.find_consumer(cast.outputs[0], "Mul")
    second = match.find_consumer(first.outputs[0], "Mul") if first is not None else None
    if first is None or second is None or first.graph is not second.graph:
        return False
    near = match.find_other_operand(first, cast.outputs[0])
    far = match.find_other_operand(second, first.outputs[0])
    if near is None or far is None or match.find_producer(near, "Mul") is not None:
        return False
    dynamic = sum(match.find_producer(v, "DynamicQuantizeLinear") is not None for v in (near, far))
    if dynamic != 1 or all(edit.const_tensor(v) is None for v in (near, far)):
        return False
    joined = editor.add_node(second, "Mul", [near, far], name=f"{node.name}_steps")
    second.replace_input_with(0, cast.outputs[0])
    second.replace_input_with(1, joined)
    assert first.graph is not None
    first.graph.remove(first, safe=True)
    return True
