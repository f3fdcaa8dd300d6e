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
_VARIANTS = {
    "Conv": "ConvInteger",
    "MatMul": "MatMulInteger MatMulIntegerToFloat DynamicQuantizeMatMul MatMulNBits MatMulFpQ4 "
    "FusedMatMul TransposeMatMul Gemm QGemm FusedGemm",
    "LSTM": "DynamicQuantizeLSTM",
    "LayerNormalization": "SkipLayerNormalization EmbedLayerNormalization",
    "RMSNormalization": "SkipSimplifiedLayerNormalization SimplifiedLayerNormalization",
    "Gelu": "BiasGelu FastGelu",
    "Softmax": "BiasSoftmax",
    "MaxPool": "NhwcMaxPool",
    "Gather": "GatherBlockQuantized",
    "Attention": "QAttention MultiHeadAttention",
}
_ROLES = {variant: op for op, variants in _VARIANTS.items() for variant in variants.split()}
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
