"""Matrix products of one tensor with several weights become one product."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortune.core.facts import Facts
from ortune.core.step import Stage, Transform
from ortune.model.graph import edit, prune
from ortune.model.graph.match import reader
from ortune.rewrites.layers.affine import constant
from ortune.rewrites.layers.foldable import Host
from ortune.rewrites.layers.siblings import families, side_by_side, split


@dataclass(frozen=True)
class MergeProducts(Transform):
    """Make one product of those that read one tensor, as Q, K and V of attention, and split it.

    ::

        x A, x B  =  split(x [A B]),      x A + a, x B + b  =  split(x [A B] + [a b])

    Exact. It gains nothing on onnxruntime's CPU provider, hence it is not automatic: MiniLM .999
    of its time, BERT .998; with dynamic int8 1.02, since the copies of Split are no smaller than
    before. It is for providers that start each product at a cost.

    Left alone: weights that something else reads, products of which only some have a bias.
    """

    stage: ClassVar[Stage] = Stage.FINISH
    automatic: ClassVar[bool] = False

    def applies(self, facts: Facts) -> bool:
        """There are several products."""
        return facts.ops.get("MatMul", 0) + facts.ops.get("Gemm", 0) > 1

    def apply(self, model: ir.Model) -> int:
        """Edit the model in place and return how many products went."""
        editor = edit.Editor(model.graph)
        opset = model.opset_imports.get("", 0)
        count = 0
        for graph in (model.graph, *model.graph.subgraphs()):
            for op in ("MatMul", "Gemm"):
                for family in families(list(graph), op):
                    count += _merge(model, editor, family, opset)
        if count:
            prune.drop_dead(model)
        return count


def _merge(model: ir.Model, editor: edit.Editor, family: Sequence[Host], opset: int) -> int:
    first = family[0].node
    adds = [_add(at) for at in family]
    made = side_by_side(editor, family)
    if isinstance(made, str):
        edit.refuse(model, first, made)
        return 0
    whole, ends = made.outputs[0], [at.node.outputs[0] for at in family]
    shifts = [shift for _, shift in adds if shift is not None]
    if len(shifts) == len(family):
        bias = editor.constant(f"{first.name}_biases", np.concatenate(shifts))
        add = editor.node("Add", [whole, bias], name=f"{first.name}_biased")
        edit.insert_before(first, add)
        whole, ends = add.outputs[0], [node.outputs[0] for node, _ in adds if node is not None]
        whole.type = ends[0].type
    sizes = [at.outputs for at in family]
    split(editor, first, whole, ends, sizes, axis=-1, opset=opset)
    return len(family) - 1


def _add(at: Host) -> tuple[ir.Node | None, NDArray[Any] | None]:
    """Return the Add of a MatMul's bias, and the bias with one number a channel."""
    value = at.node.outputs[0]
    node = reader(value, "Add") if at.node.op_type == "MatMul" else None
    if node is None or node.graph is not at.node.graph:
        return None, None
    index = 1 if node.inputs[0] is value else 0
    bias = constant(node, index)
    if bias is None or bias.ndim != 1 or bias.size not in (1, at.outputs):
        return None, None
    return node, np.broadcast_to(bias, (at.outputs,))
