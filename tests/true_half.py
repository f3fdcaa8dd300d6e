"""Run a 16-bit model with every value between its nodes rounded, wherever the runtime would not.

onnxruntime's CPU provider computes most float16 operators in float32 and rounds where it likes;
OpenVINO takes whichever precision its plug-in prefers. The graph made here computes each node in
float32 and rounds its outputs to the type that the file declares: what any runtime that keeps that
type between nodes must answer, overflow included. Sums inside a node stay float32.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortune.graph.ir import edit

NARROW = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


MEANS = ("GlobalAveragePool", "ReduceMean")


def rounded(model: ir.Model, *, sums: bool = False) -> ir.Model:
    """Return a float32 model that rounds where `model` declares a 16-bit type; edits `model`.

    Inputs and outputs must be float32; bodies of If, Loop and Scan are handled too.

    Args:
        sums: Round too the sums inside means, as kernels do that add up in 16 bits.
    """
    editor = edit.Editor(model.graph)
    for graph in edit.walk_graphs(model):
        assert isinstance(graph, ir.Graph)
        for value in graph.initializers.values():
            _widen(value)
        for value in graph.inputs:
            if value.dtype in NARROW:
                value.type = ir.TensorType(ir.DataType.FLOAT)
        for node in list(graph):
            if sums and node.op_type in MEANS and node.outputs[0].dtype in NARROW:
                _round_sum(node, editor)
            _round(node, editor)
    return model


def _round_sum(node: ir.Node, editor: edit.Editor) -> None:
    """Write a 16-bit mean as mean * n, rounded, / n."""
    x, y = node.inputs[0], node.outputs[0]
    assert x is not None and y.dtype is not None
    wide = {"to": int(ir.DataType.FLOAT)}
    users = list(y.uses())
    sizes = [editor.make_node("Size", [value]) for value in (x, y)]
    floats = [editor.make_node("Cast", [size.outputs[0]], wide) for size in sizes]
    n = editor.make_node("Div", [made.outputs[0] for made in floats])
    total = editor.make_node("Mul", [y, n.outputs[0]])
    down = editor.make_node("Cast", [total.outputs[0]], {"to": int(y.dtype)})
    up = editor.make_node("Cast", [down.outputs[0]], wide)
    mean = editor.make_node("Div", [up.outputs[0], n.outputs[0]])
    for made in (*sizes, *floats, n, total, down, up, mean):
        made.outputs[0].type = None
    mean.outputs[0].type, mean.outputs[0].shape = ir.TensorType(y.dtype), y.shape
    edit.insert_after(node, *sizes, *floats, n, total, down, up, mean)
    y.type = ir.TensorType(ir.DataType.FLOAT)
    for user, index in users:
        user.replace_input_with(index, mean.outputs[0])
    _round(mean, editor)


def _widen(value: ir.Value) -> None:
    if value.dtype in NARROW and value.const_value is not None:
        array = value.const_value.numpy().astype(np.float32)
        value.const_value = ir.tensor(array, name=value.name)
        value.type = ir.TensorType(ir.DataType.FLOAT)


def _round(node: ir.Node, editor: edit.Editor) -> None:
    attribute = node.attributes.get("value")
    if node.op_type in ("Constant", "ConstantOfShape") and attribute is not None:
        tensor = attribute.value
        if tensor.dtype in NARROW:
            wide = ir.tensor(tensor.numpy().astype(np.float32))
            node.attributes["value"] = ir.AttrTensor("value", wide)
            node.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
            return
    for value in node.outputs:
        narrow = value.dtype
        if narrow not in NARROW:
            continue
        if node.op_type in ("Cast", "SequenceEmpty"):
            name = "to" if node.op_type == "Cast" else "dtype"
            node.attributes[name] = ir.AttrInt64(name, int(ir.DataType.FLOAT))
        if isinstance(value.type, ir.SequenceType):
            value.type = ir.SequenceType(ir.TensorType(ir.DataType.FLOAT))
            continue
        value.type = ir.TensorType(ir.DataType.FLOAT)
        users, end = list(value.uses()), value.is_graph_output()
        down = editor.make_node("Cast", [value], {"to": int(narrow)}, name=f"{value.name}_down")
        up = editor.make_node(
            "Cast", [down.outputs[0]], {"to": int(ir.DataType.FLOAT)}, name=f"{value.name}_up"
        )
        down.outputs[0].type = ir.TensorType(narrow)
        up.outputs[0].type, up.outputs[0].shape = ir.TensorType(ir.DataType.FLOAT), value.shape
        edit.insert_after(node, down, up)
        for user, index in users:
            user.replace_input_with(index, up.outputs[0])
        if end and node.graph is not None:
            for index, out in enumerate(node.graph.outputs):
                if out is value:
                    node.graph.outputs[index] = up.outputs[0]
