"""Which attributes of a standard operator its integer form in com.microsoft takes."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

SUPPORTED_ATTRIBUTES = {
    "DynamicQuantizeLSTM": "hidden_size direction activations activation_alpha activation_beta "
    "clip input_forget",
    "QAttention": "num_heads unidirectional scale mask_filter_value",
    "QGemm": "alpha transA transB",
    "QLinearAdd": "",
    "QLinearAveragePool": "kernel_shape strides pads auto_pad ceil_mode count_include_pad",
    "QLinearConcat": "axis",
    "QLinearGlobalAveragePool": "",
    "QLinearLeakyRelu": "alpha",
    "QLinearMul": "",
    "QLinearSigmoid": "",
    "QLinearSoftmax": "axis",
}
"""Operator -> the attributes that it has in common with the standard one."""

_NEUTRAL = {
    "layout": 0,
    "dilations": 1,
    "beta": 1.0,
    "do_rotary": 0,
    "past_present_share_buffer": 0,
}
"""Values, of every item of a list, at which an attribute says nothing and can be left out."""


def transfer_attributes(node: ir.Node, op: str) -> dict[str, ir.Attr] | None:
    """Return the attributes of a node for its form `op`; None when one would be lost.

    An attribute that an operator does not know makes the model invalid, whatever its value:
    exporters write ``layout=0`` and ``dilations=[1, 1]``, which are the defaults.
    """
    supported = SUPPORTED_ATTRIBUTES[op].split()
    for name, attribute in node.attributes.items():
        if name not in supported and (
            attribute.is_ref()
            or not (name in _NEUTRAL and bool(np.all(np.equal(attribute.value, _NEUTRAL[name]))))
        ):
            return None
    return {name: attribute for name, attribute in node.attributes.items() if name in supported}
