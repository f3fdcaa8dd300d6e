"""Transposes that a matrix product does by itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ortune.core.facts import Facts
from ortune.core.step import Stage, Transform
from ortune.model.graph import edit, prune
from ortune.model.graph.edit import Editor, attribute
from ortune.model.graph.match import maker
from ortune.model.graph.replace import forward, remove
from ortune.model.graph.spec import dims
from ortune.model.graph.uses import alone
from ortune.model.shapes.infer import infer
from ortune.rewrites.simplify.reshapes import permutation


@dataclass(frozen=True)
class FuseTranspose(Transform):
    """A Transpose of a matrix goes into ``transA`` or ``transB`` of the Gemm that reads it.

    ::

        gemm(transpose(A), B)   = gemm(A, B, transA=1)
        matmul(A, transpose(B)) = gemm(A, B, transB=1)        both of rank 2

    The second where the Transpose goes with it. Exact. A weight that only one product reads is
    stored transposed by `simplify`; this one serves weights that several read, such as a table of
    embeddings that is the last layer too, and products of what is computed. onnxruntime stores the
    other form of such a table once more while it loads: 8,000 x 512 floats read by Gather and by
    the last MatMul take 103 MB instead of 134, and the same time (0.94 [0.74, 1.18]).

    Left alone: MatMul of more dimensions, integers, types that Gemm does not have; a Transpose
    behind arithmetic, which one in front of it may undo (`cancel-transposes`).
    """

    stage: ClassVar[Stage] = Stage.FINISH

    def applies(self, facts: Facts) -> bool:
        """There is a Transpose and a product."""
        return facts.has("Transpose") and facts.has("Gemm", "MatMul")

    def apply(self, model: ir.Model) -> int:
        """Edit the model in place and return how many Transposes were taken over."""
        if model.opset_imports.get("", 0) < _FIRST:
            return 0
        infer(model)
        editor = Editor(model.graph)
        count = 0
        for node in edit.every_node(model):
            if node.domain or node.graph is None:
                continue
            if node.op_type == "Gemm":
                count += sum(_into_gemm(model, node, index) for index in (0, 1))
            elif node.op_type == "MatMul":
                count += _into_matmul(model, node, editor)
        if count:
            prune.drop_dead(model)
        return count


_FIRST = 11
"""Opset from which Gemm needs no third input."""

_SOURCES = ("MatMul", "Gemm", "Gather", "Reshape", "Squeeze", "Slice", "Split", "Constant")
"""What a Transpose may come from. Behind arithmetic it may be undone by one in front of that."""

_TYPES = (ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16)


def _turned(model: ir.Model, value: ir.Value | None) -> ir.Node | None:
    """Return the Transpose of a matrix that a value comes from, if nothing else reads it."""
    node = maker(value, "Transpose")
    if node is None or node.inputs[0] is None or permutation(node) != (1, 0):
        return None
    before = node.inputs[0].producer()
    plain = before is None or (not before.domain and before.op_type in _SOURCES)
    if not alone(node.outputs[0]):
        edit.refuse(model, node, "what it turns is read elsewhere too")
    elif not plain:
        edit.refuse(model, node, "it may be undone by a Transpose in front of the arithmetic")
    else:
        return node
    return None


def _into_gemm(model: ir.Model, node: ir.Node, index: int) -> int:
    turn = _turned(model, node.inputs[index])
    if turn is None:
        return 0
    name = ("transA", "transB")[index]
    node.attributes[name] = ir.AttrInt64(name, 1 - attribute(node, name, 0))
    node.replace_input_with(index, turn.inputs[0])
    return 1


def _into_matmul(model: ir.Model, node: ir.Node, editor: Editor) -> int:
    shapes = [dims(value.shape) if value is not None else None for value in node.inputs]
    turns = [_turned(model, value) for value in node.inputs]
    flat = all(shape is not None and len(shape) == 2 for shape in shapes)
    first = node.inputs[0]
    if not flat or not any(turns) or first is None or first.dtype not in _TYPES:
        return 0
    if node.graph is None or 0 in {d for shape in shapes for d in shape or ()}:
        return 0
    read = [
        turn.inputs[0] if turn is not None else value
        for turn, value in zip(turns, node.inputs, strict=True)
    ]
    flags = {name: int(turn is not None) for name, turn in zip(_FLAGS, turns, strict=True)}
    gemm = editor.node("Gemm", read, flags, name=f"{node.name}_gemm")
    gemm.outputs[0].type, gemm.outputs[0].shape = node.outputs[0].type, node.outputs[0].shape
    edit.insert_before(node, gemm)
    forward(node.outputs[0], gemm.outputs[0])
    remove(node)
    return sum(flags.values())


_FLAGS = ("transA", "transB")
