"""The rule that puts the Python operator into a model."""

from __future__ import annotations

import ortune as ot


def swish(op, x):
    return op.Mul(x, op.Sigmoid(x))


def in_python(op, x):
    return op.PythonSwish(x, _domain="ai.onnx.contrib")


fuse_swish = ot.rule(swish, in_python)
