"""Dynamic integer products in the spelling that onnxruntime makes one kernel of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ortune.core.step import Stage, Transform
from ortune.graph.ir import edit
from ortune.graph.ir.match import maker, other, reader


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
        count = 0
        for graph in edit.every_graph(model):
            editor = edit.Editor(graph)
            for node in list(graph):
                if node.op_type == "MatMulInteger" and not node.domain:
                    count += _respell(editor, node)
        return count


def _respell(editor: edit.Editor, node: ir.Node) -> bool:
    cast = reader(node.outputs[0], "Cast")
    if cast is None or edit.attribute(cast, "to", 0) != int(ir.DataType.FLOAT):
        return False
    first = reader(cast.outputs[0], "Mul")
    second = reader(first.outputs[0], "Mul") if first is not None else None
    if first is None or second is None or first.graph is not second.graph:
        return False
    one = other(first, cast.outputs[0])
    two = other(second, first.outputs[0])
    if one is None or two is None or maker(one, "Mul") is not None:
        return False
    scales = sum(maker(v, "DynamicQuantizeLinear") is not None for v in (one, two))
    if scales != 1 or not any(edit.const_tensor(v) is not None for v in (one, two)):
        return False
    joined = editor.node("Mul", [one, two], name=f"{node.name}_steps")
    edit.insert_before(second, joined)
    second.replace_input_with(0, cast.outputs[0])
    second.replace_input_with(1, joined.outputs[0])
    assert first.graph is not None
    first.graph.remove(first, safe=True)
    return True
