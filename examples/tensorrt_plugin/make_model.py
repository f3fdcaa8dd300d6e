"""Write ``swish.onnx``: a MatMul and a Swish of a domain that only the plug-in knows.

python make_model.py FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper


def model() -> onnx.ModelProto:
    """Return the model; the parser of TensorRT looks plug-ins up by the operator's name."""
    weight = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32) / 8
    graph = onnx.helper.make_graph(
        [
            onnx.helper.make_node("MatMul", ["x", "w"], ["h"]),
            onnx.helper.make_node("Swish", ["h"], ["y"], domain="example"),
        ],
        "swish",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["N", 64])],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["N", 64])],
        [onnx.numpy_helper.from_array(weight, "w")],
    )
    opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("example", 1)]
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8)


if __name__ == "__main__":
    onnx.save(model(), Path(sys.argv[1]) / "swish.onnx")
