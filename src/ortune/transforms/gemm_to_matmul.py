"""Gemm as MatMul and Add, its factors and transposes in the weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from ortune.core.facts import Facts
from ortune.core.step import Stage, Transform
from ortune.model.graph import edit, prune
from ortune.model.graph.replace import forward, remove
from ortune.rewrites.layers.affine import constant
from ortune.rewrites.layers.foldable import host
from ortune.rewrites.simplify.constants import LARGE_BYTES


@dataclass(frozen=True)
class GemmToMatmul(Transform):
    """Gemm with a constant weight, taken apart for what knows MatMul alone.

    ::

        alpha op(A) op(B) + beta C  =  op(A) (alpha op(B)) + (beta C)

    The factors and the transpose of B go into the constants, computed in float64; a transposed A
    gets a Transpose. Exact up to the rounding of the new weights. onnxruntime makes a Gemm of it
    again, so on its CPU provider nothing is gained: GPT-2 with its 24 Gemm takes .996 of the time.

    Left alone: weights that are read elsewhere too, a bias that is computed and has a factor.
    """

    stage: ClassVar[Stage] = Stage.FINISH
    automatic: ClassVar[bool] = False
    needs_opset: ClassVar[int] = 7
    """Add broadcasts from here on."""

    def applies(self, facts: Facts) -> bool:
        """There is a Gemm."""
        return facts.has("Gemm")

    def apply(self, model: ir.Model) -> int:
        """Edit the model in place and return how many were taken apart."""
        if model.opset_imports.get("", 0) < self.needs_opset:
            return 0
        editor = edit.Editor(model.graph)
        count = 0
        for graph in (model.graph, *model.graph.subgraphs()):
            for node in list(graph):
                if node.op_type == "Gemm" and not node.domain:
                    why = _apart(editor, node)
                    if why:
                        edit.refuse(model, node, why)
                    count += not why
        if count:
            prune.drop_dead(model)
        return count


def _apart(editor: edit.Editor, node: ir.Node) -> str | None:
    at, weight = host(node), constant(node, 1)
    if at is None or weight is None or node.inputs[0] is None:
        return "its weight or bias is not constant"
    value = node.inputs[1]
    turned = edit.attribute(node, "transB", 0)
    alpha, beta = (edit.attribute(node, name, 1.0) for name in ("alpha", "beta"))
    if turned or alpha != 1:
        if value is not None and len(value.uses()) > 1:
            return "its weight is read elsewhere too"
        if weight.nbytes > LARGE_BYTES:
            return "its weight is too large to be computed again"
        made = weight.T if turned else weight
        if alpha != 1:
            made = (made.astype(np.float64) * alpha).astype(weight.dtype)
        value = editor.constant(f"{node.name}_weight", np.ascontiguousarray(made))
    x, chain = node.inputs[0], []
    if edit.attribute(node, "transA", 0):
        chain.append(editor.node("Transpose", [x], {"perm": [1, 0]}, name=f"{node.name}_turned"))
        chain[-1].outputs[0].type = x.type
        x = chain[-1].outputs[0]
    chain.append(editor.node("MatMul", [x, value], name=f"{node.name}_matmul"))
    bias = constant(node, 2)
    if bias is not None:
        held = node.inputs[2]
        if beta != 1:
            scaled = (bias.astype(np.float64) * beta).astype(bias.dtype)
            held = editor.constant(f"{node.name}_bias", scaled)
        chain[-1].outputs[0].type = node.outputs[0].type
        chain.append(editor.node("Add", [chain[-1].outputs[0], held], name=f"{node.name}_add"))
    edit.insert_before(node, *chain)
    result, old = chain[-1].outputs[0], node.outputs[0]
    name, result.type, result.shape = old.name, old.type, old.shape
    forward(old, result)
    remove(node)
    result.name = name
    return None
