"""MatMul and Add of matrices as Gemm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ortune.core.facts import Facts
from ortune.core.step import Stage, Transform
from ortune.model.graph import edit, prune
from ortune.model.graph.match import reader
from ortune.model.graph.replace import forward, remove
from ortune.model.shapes.infer import infer
from ortune.rewrites.layers.affine import of_node
from ortune.rewrites.layers.foldable import host


@dataclass(frozen=True)
class MatmulToGemm(Transform):
    """Write MatMul and Add as Gemm: ``x W + b`` of a matrix x, one number of b a column.

    Exact. onnxruntime does it by itself, so on its CPU provider nothing is gained (GPT-2, the
    other way: .996 of the time); and the Gemm of a float bias is one that integer kernels do
    not take. For runtimes that know Gemm better.

    Left alone: a bias that is not one number a column, a product that something else reads.
    """

    stage: ClassVar[Stage] = Stage.FINISH
    automatic: ClassVar[bool] = False
    needs_opset: ClassVar[int] = 7
    """Gemm broadcasts its bias from here on."""

    def applies(self, facts: Facts) -> bool:
        """There are a MatMul and an Add."""
        return facts.has("MatMul") and facts.has("Add")

    def apply(self, model: ir.Model) -> int:
        """Edit the model in place and return how many were joined."""
        opset = model.opset_imports.get("", 0)
        if opset < self.needs_opset:
            return 0
        infer(model)
        editor = edit.Editor(model.graph)
        count = 0
        for graph in (model.graph, *model.graph.subgraphs()):
            for node in list(graph):
                if node.op_type == "MatMul" and not node.domain:
                    count += _join(model, editor, node, opset)
        if count:
            prune.drop_dead(model)
        return count


def _join(model: ir.Model, editor: edit.Editor, node: ir.Node, opset: int) -> int:
    at, value = host(node), node.outputs[0]
    add = reader(value, "Add")
    if at is None or add is None or at.channels.rank != 2 or add.graph is not node.graph:
        return 0
    if of_node(add, value, at.channels, opset) is None:
        edit.refuse(model, node, "its bias is not one constant number a column")
        return 0
    bias = add.inputs[1 if add.inputs[0] is value else 0]
    gemm = editor.node("Gemm", [*node.inputs, bias], name=f"{node.name}_gemm")
    edit.insert_before(add, gemm)
    result, old = gemm.outputs[0], add.outputs[0]
    name, result.type, result.shape = old.name, old.type, old.shape
    forward(old, result)
    remove(add)
    remove(node)
    result.name = name
    return 1
