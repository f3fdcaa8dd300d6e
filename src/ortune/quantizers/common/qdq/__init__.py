"""QuantizeLinear and DequantizeLinear: placement, insertion, scales."""
