"""Write the two models of the measurement: swish alone, and a scaled and shifted one."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

BLOCKS, WIDTH = 4, 512


def model(scaled: bool, rows: int, width: int, blocks: int = BLOCKS) -> onnx.ModelProto:
    """Return blocks of MatMul and swish; `scaled` puts a Mul and an Add by channel between."""
    draw = np.random.default_rng(0)
    nodes, weights, value = [], [], "x"
    for block in range(blocks):
        name = f"b{block}"

        def held(kind: str, array: np.ndarray, name: str = name) -> str:
            found = array.astype(np.float32)
            weights.append(numpy_helper.from_array(found, f"{name}_{kind}"))
            return f"{name}_{kind}"

        def put(op: str, *inputs: str, name: str = name) -> str:
            nodes.append(helper.make_node(op, inputs, [f"{name}_{op}"], name=f"{name}_{op}"))
            return f"{name}_{op}"

        if block:
            mixing = draw.standard_normal((width, width)) / width**0.5
            value = put("MatMul", value, held("w", mixing))
        if scaled:
            value = put("Mul", value, held("scale", draw.uniform(0.5, 2, width)))
            value = put("Add", value, held("bias", draw.standard_normal(width)))
        gate = put("Sigmoid", value)
        nodes.append(helper.make_node("Mul", [value, gate], [f"{name}_y"], name=f"{name}_y"))
        value = f"{name}_y"
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [rows, width])
        for name in ("x", value)
    ]
    graph = helper.make_graph(nodes, "swish", ends[:1], ends[1:], weights)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(made)
    return made


def main(folder: Path) -> None:
    """Write swish.onnx and scaled.onnx, and the same without products: the operators alone."""
    for scaled, name in ((False, "swish"), (True, "scaled")):
        onnx.save(model(scaled, 256, WIDTH), folder / f"{name}.onnx")
        onnx.save(model(scaled, 256, 4096, blocks=1), folder / f"{name}_alone.onnx")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
