"""Rules that put the operators of libfused_swish.so into a model.

ortune apply model.onnx ./swish_rules.py:fuse_scale_swish --custom-ops ./libfused_swish.so ...
"""

from __future__ import annotations

import onnx_ir as ir

import ortune as ot

DOMAIN = "example.ops"


def swish(op, x):
    return op.Mul(x, op.Sigmoid(x))


def scale_swish(op, x, scale, bias):
    scaled = op.Add(op.Mul(x, scale), bias)
    return op.Mul(scaled, op.Sigmoid(scaled))


def fused(op, x):
    return op.FusedSwish(x, _domain=DOMAIN)


def fused_scale(op, x, scale, bias):
    return op.FusedScaleSwish(x, scale, bias, _domain=DOMAIN)


def is_float(x: ir.Value) -> bool | str:
    return x.dtype == ir.DataType.FLOAT or "it is not float32"


def fits(x: ir.Value, scale: ir.Value, bias: ir.Value) -> bool | str:
    """The library takes constants of one element, or as long as the last dimension."""
    if is_float(x) is not True:
        return "it is not float32"
    if x.shape is None:
        return "its shape is not known"
    held = [None if one.const_value is None else one.const_value for one in (scale, bias)]
    if None in held:
        return "scale or bias is not a constant"
    sizes = {one.size for one in held}
    if sizes == {1}:
        return all(len(one.shape) <= len(x.shape) for one in held) or "it would gain a dimension"
    plain = all(len(one.shape) == 1 for one in held)
    return (plain and sizes == {x.shape[-1]}) or "scale and bias are not as long as a row"


fuse_swish = ot.rule(swish, fused, is_float)
fuse_scale_swish = ot.rule(scale_swish, fused_scale, fits)
