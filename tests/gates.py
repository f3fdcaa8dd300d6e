"""A model of gates whose weights are denormal: element-wise operators that x86 slows down on.

On a Zen 4 core GEMM and convolution kernels take denormals at full speed; Sqrt, Div, Tanh and
Sigmoid take 3 times, Log 4 and Pow 6 times as long. Intel cores slow down in more operators.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

RANGE = {"x": (0.5, 2.0)}
_TEXT = """
<ir_version: 9, opset_import: ["": 17]>
gates (float[1, 65536] x) => (float[1, 65536] y) {
    a = Mul(x, decay)  root = Sqrt(a)  part = Div(a, x)
    t = Tanh(part)  g = Sigmoid(a)  p = Mul(t, g)  q = Tanh(p)  r = Sqrt(q)
    u = Add(r, root)  y = Add(x, u)
}
"""


def write(path: Path, *, scale: float = 1e-41) -> Path:
    """Write the model with weights from 1 to 100 times `scale`; 1e-41 makes all denormal."""
    model = onnx.parser.parse_model(_TEXT)
    weights = np.random.default_rng(0).uniform(1, 100, (1, 65536)) * scale
    model.graph.initializer.append(numpy_helper.from_array(weights.astype(np.float32), "decay"))
    onnx.save(model, path)
    return path
