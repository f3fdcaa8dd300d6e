"""What operators are to each other: variants, copies, moves, and those that take integers."""

from __future__ import annotations

from ortune.model.mapping.tensors import ADDED

MOVING = frozenset(ADDED) | {"Identity", "Dropout", "Flatten"}
"""What computes nothing: it forwards its first input in another form."""
PASSED_ON = frozenset({"Identity", "Dropout"})
"""What forwards its first input as it is."""
QUANTIZE = frozenset({"QuantizeLinear", "DequantizeLinear"})
LAYOUT = frozenset({"ReorderInput", "ReorderOutput", "MemcpyToHost", "MemcpyFromHost"})
"""What a runtime adds to hand a tensor to a kernel in another layout or place."""
_ROLES = {
    "ConvInteger": "Conv",
    "MatMulInteger": "MatMul",
    "MatMulIntegerToFloat": "MatMul",
    "DynamicQuantizeMatMul": "MatMul",
    "MatMulNBits": "MatMul",
    "MatMulFpQ4": "MatMul",
    "FusedMatMul": "MatMul",
    "TransposeMatMul": "MatMul",
    "Gemm": "MatMul",
    "QGemm": "MatMul",
    "FusedGemm": "MatMul",
    "DynamicQuantizeLSTM": "LSTM",
    "SkipLayerNormalization": "LayerNormalization",
    "EmbedLayerNormalization": "LayerNormalization",
    "SkipSimplifiedLayerNormalization": "RMSNormalization",
    "SimplifiedLayerNormalization": "RMSNormalization",
    "BiasGelu": "Gelu",
    "FastGelu": "Gelu",
    "BiasSoftmax": "Softmax",
    "NhwcMaxPool": "MaxPool",
    "GatherBlockQuantized": "Gather",
    "QAttention": "Attention",
    "MultiHeadAttention": "Attention",
}
COMMUTATIVE = frozenset({"Add", "Mul", "And", "Or", "Xor", "Equal", "Sum", "Max", "Min", "Mean"})


def role(op_type: str) -> str:
    """Return the operator of ONNX that a runtime's operator is a variant of."""
    found = _ROLES.get(op_type)
    if found is None:
        for start in ("QLinear", "Fused", "Nhwc"):
            if op_type.startswith(start) and len(op_type) > len(start):
                return role(op_type.removeprefix(start))
    return found or op_type


def quantizing(op: str) -> bool:
    """Say whether an operator takes integers for numbers: Q/DQ are a part of it."""
    name = op.rpartition("::")[2]
    return name.startswith(("QLinear", "QGemm", "QAttention", "DynamicQuantize")) or name in (
        "ConvInteger",
        "MatMulInteger",
        "MatMulIntegerToFloat",
        "MatMulNBits",
        "GatherBlockQuantized",
    )
