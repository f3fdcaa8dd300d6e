"""An operator in Python for onnxruntime, by way of onnxruntime-extensions.

Give this file as the library: ``--custom-ops ./swish_ops.py``. It is run in every process that
loads the model, which defines the operator, and tells where the library is that calls it.
"""

from __future__ import annotations

import numpy as np
from onnxruntime_extensions import PyCustomOpDef, get_library_path, onnx_op

__all__ = ["get_library_path"]


@onnx_op(
    op_type="PythonSwish",
    inputs=[PyCustomOpDef.dt_float],
    outputs=[PyCustomOpDef.dt_float],
)
def python_swish(x: np.ndarray) -> np.ndarray:
    """Return x sigmoid(x)."""
    return x / (1 + np.exp(-x))
