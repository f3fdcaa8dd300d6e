"""A QDQ model written as integer operators: the form that older tools and runtimes read."""

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ortune.core.errors import Refused
from ortune.core.observer import Ranges
from ortune.core.step import Quantizer
from ortune.graph.ir import edit, qdq
from ortune.quantizers.common.nodes import replace_value
from ortune.quantizers.common.qdq.qoperators import Operators


@dataclass(frozen=True)
class Qoperator(Quantizer):
    """Layers between pairs become QLinearConv, QLinearMatMul, QLinearAdd and the like.

    Convolutions and matrix products are of the standard; QGemm and the element-wise QLinear
    operators are of com.microsoft. What only moves integers (MaxPool, Reshape, Transpose) works on
    them directly. A node that has no such operator stays between its pairs, which plain
    onnxruntime runs too. Answers differ by rounding: products are summed and scaled in integers,
    so a result may be one step beside. An export form: the search works on QDQ.
    """

    needs_opset: ClassVar[int] = 13

    def apply(self, model: ir.Model, ranges: Ranges) -> int:
        edit.inline_functions(model)
        count, foreign = 0, False
        for graph in [model.graph, *model.graph.subgraphs()]:
            editor = edit.Editor(graph)
            operators = Operators(editor)
            for node in list(graph):
                operator = operators.find_operator(node) if node.graph is graph else None
                if operator is not None:
                    new_node = editor.make_node(
                        operator.op,
                        operator.inputs,
                        operator.attributes,
                        name=f"{node.name}_{operator.op}",
                        domain=qdq.MICROSOFT if operator.foreign else "",
                    )
                    edit.insert_before(node, new_node)
                    replace_value(operator.last.outputs[0], new_node.outputs[0])
                    foreign = foreign or operator.foreign
                    count += 1
        if not count:
            fix = "quantize first, such as `ortune apply M int8-static qoperator --data D`"
            if any(node.op_type == "DequantizeLinear" for node in edit.walk_nodes(model)):
                fix = "leave qoperator out: onnxruntime runs the pairs as they are"
            raise Refused("no layer stands between quantize / dequantize pairs", fix=fix)
        if foreign:
            model.opset_imports.setdefault(qdq.MICROSOFT, 1)
        return count
