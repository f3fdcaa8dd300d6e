"""Toys for the table of rules: each operator between pairs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

PAIR = "q_{0} = QuantizeLinear({0}, {1}, zero) {0}_r = DequantizeLinear(q_{0}, {1}, zero)"


@dataclass(frozen=True)
class Toy:
    """An operator between pairs.

    Attributes:
        line: What makes `y` of the rounded `x_r` (and of `v_r`).
        shape: Of `x` and `v`.
        out: Scale behind it: another than in front, unless the operator only moves values.
        weights: Constants that the line reads.
        pair: Whether `y` gets a pair.
        parts: Lines in front.
        opset: Of the file.
    """

    line: str
    shape: str = "1,4,8,8"
    out: str = "other"
    weights: Mapping[str, Any] | None = None
    pair: bool = True
    parts: str = ""
    opset: int = 17

    def proto(self) -> onnx.ModelProto:
        """Build the file."""
        tail = (
            f"{PAIR.format('y', self.out)} z = Identity(y_r)" if self.pair else "z = Identity(y)"
        )
        read = [("x", "scale"), ("v", "other")][: 2 if "v_r" in self.line else 1]
        pairs = " ".join(PAIR.format(name, scale) for name, scale in read)
        sets = f'"": {self.opset}, "com.microsoft": 1'
        text = f"""<ir_version: 9, opset_import: [{sets}]>
        g (float[{self.shape}] x, float[{self.shape}] v) => (float z) {{
          {pairs} {self.parts} {self.line} {tail}
        }}"""
        proto = onnx.parser.parse_model(text)
        proto.graph.output[0].type.tensor_type.ClearField("shape")
        held = {
            "scale": np.float32(0.02),
            "other": np.float32(0.05),
            "zero": np.uint8(0),
            **(self.weights or {}),
        }
        for name, array in held.items():
            if name not in {node.output[0] for node in proto.graph.node}:
                proto.graph.initializer.append(
                    onnx.numpy_helper.from_array(np.asarray(array), name)
                )
        return proto


def integers(*shape: int, axis: int, kind: type = np.int8) -> dict[str, Any]:
    """Return a weight with one step a channel."""
    size = shape[axis]
    return {
        "w": np.random.default_rng(0).integers(-127, 127, shape).astype(kind),
        "ws": np.linspace(0.005, 0.02, size).astype(np.float32),
        "wz": np.zeros(size, kind),
    }


KERNEL, SQUARE = integers(6, 4, 3, 3, axis=0), integers(16, 24, axis=1)
WIDE = "w_r = DequantizeLinear<axis = {}>(w, ws, wz)"
UP = integers(4, 6, 2, 2, axis=1)
SIXTEEN = {"x_zero": np.uint16(30000), "x_scale": np.float32(1e-4)}
SIXTEEN_PAIR = (
    "s = com.microsoft.QuantizeLinear(x, x_scale, x_zero) "
    "s_r = com.microsoft.DequantizeLinear(s, x_scale, x_zero)"
)


def ints(name: str, *values: int) -> dict[str, Any]:
    """Return a constant list of int64."""
    return {name: np.array(values, np.int64)}


TOYS: dict[tuple[str, str], Toy] = {
    ("Conv", ""): Toy("y = Conv(x_r, w_r)", weights=KERNEL, parts=WIDE.format(0)),
    ("MatMul", ""): Toy(
        "y = MatMul(x_r, w_r)", "b,3,16", weights=SQUARE, pair=False, parts=WIDE.format(1)
    ),
    ("Gemm", ""): Toy(
        "y = Gemm(x_r, w_r)", "b,16", weights=SQUARE, pair=False, parts=WIDE.format(1)
    ),
    ("Add", ""): Toy("y = Add(x_r, v_r)"),
    ("Mul", ""): Toy("y = Mul(x_r, v_r)"),
    ("Concat", ""): Toy("y = Concat<axis = 1>(x_r, v_r)"),
    ("AveragePool", ""): Toy("y = AveragePool<kernel_shape = [2,2]>(x_r)"),
    ("GlobalAveragePool", ""): Toy("y = GlobalAveragePool(x_r)"),
    ("LeakyRelu", ""): Toy("y = LeakyRelu(x_r)"),
    ("Sigmoid", ""): Toy("y = Sigmoid(x_r)"),
    ("Softmax", "attention"): Toy("y = Softmax(x_r)"),
    ("Expand", ""): Toy("y = Expand(x_r, to)", out="scale", weights=ints("to", 2, 4, 8, 8)),
    ("Flatten", ""): Toy("y = Flatten(x_r)", out="scale"),
    ("MaxPool", ""): Toy("y = MaxPool<kernel_shape = [2,2]>(x_r)", out="scale"),
    ("Reshape", ""): Toy("y = Reshape(x_r, to)", out="scale", weights=ints("to", 4, 64)),
    ("Slice", ""): Toy(
        "y = Slice(x_r, start, end)",
        out="scale",
        weights=ints("start", 0, 0, 1, 1) | ints("end", 1, 4, 5, 5),
    ),
    ("Squeeze", ""): Toy("y = Squeeze(x_r, axes)", out="scale", weights=ints("axes", 0)),
    ("Tile", ""): Toy("y = Tile(x_r, times)", out="scale", weights=ints("times", 1, 1, 2, 2)),
    ("Transpose", ""): Toy("y = Transpose<perm = [0,2,3,1]>(x_r)", out="scale"),
    ("Unsqueeze", ""): Toy("y = Unsqueeze(x_r, axes)", out="scale", weights=ints("axes", 0)),
    ("DepthToSpace", ""): Toy("y = DepthToSpace<blocksize = 2>(x_r)", out="scale"),
    ("Resize", "nearest"): Toy(
        'y = Resize<mode = "nearest">(x_r, , by)',
        out="scale",
        weights={"by": np.array([1, 1, 2, 2], np.float32)},
    ),
    ("Resize", ""): Toy(
        'y = Resize<mode = "linear">(x_r, , by)',
        out="scale",
        weights={"by": np.array([1, 1, 2, 2], np.float32)},
    ),
    ("Relu", "behind Conv, Gemm or Add"): Toy(
        "c = Conv(x_r, w_r) y = Relu(c)", weights=KERNEL, parts=WIDE.format(0)
    ),
    ("Clip", "behind Conv, from 0"): Toy(
        "c = Conv(x_r, w_r) y = Clip(c, least, most)",
        out="fits",
        weights=KERNEL
        | {"least": np.float32(0), "most": np.float32(6), "fits": np.float32(0.0235)},
        parts=WIDE.format(0),
    ),
    ("ConvTranspose", ""): Toy(
        "y = ConvTranspose<strides = [2,2]>(x_r, w_r)", weights=UP, parts=WIDE.format(1)
    ),
    ("Div", ""): Toy("y = Div(x_r, v_r)"),
    ("Erf", ""): Toy("y = Erf(x_r)"),
    ("Exp", ""): Toy("y = Exp(x_r)"),
    ("Gelu", ""): Toy("y = com.microsoft.Gelu(x_r)"),
    ("HardSigmoid", ""): Toy("y = HardSigmoid(x_r)"),
    ("HardSwish", ""): Toy("y = HardSwish(x_r)"),
    ("LayerNormalization", ""): Toy(
        "y = LayerNormalization(x_r, gain)", weights={"gain": np.ones(8, np.float32)}
    ),
    ("Neg", ""): Toy("y = Neg(x_r)"),
    ("Pad", ""): Toy("y = Pad(x_r, by)", weights=ints("by", 0, 0, 1, 1, 0, 0, 1, 1)),
    ("ReduceMean", ""): Toy("y = ReduceMean<axes = [2,3]>(x_r)"),
    ("Relu", ""): Toy("y = Relu(x_r)"),
    ("Split", ""): Toy("y, rest = Split<axis = 1>(x_r, sizes)", weights=ints("sizes", 2, 2)),
    ("Sqrt", ""): Toy("y = Sqrt(x_r)"),
    ("Sub", ""): Toy("y = Sub(x_r, v_r)"),
    ("Tanh", ""): Toy("y = Tanh(x_r)"),
    ("Mul", "by a float constant"): Toy("y = Mul(x_r, by)", weights={"by": np.float32(3)}),
    ("Gemm", "before a Relu that no pair repeats"): Toy(
        "p = Gemm(x_r, w_r) r = Relu(p) y = Exp(r)",
        "b,16",
        weights=SQUARE,
        pair=False,
        parts=WIDE.format(1),
    ),
    ("Gemm", "read by a pair and by others"): Toy(
        "p = Gemm(x_r, w_r) "
        "q_p = QuantizeLinear(p, other, zero) p_r = DequantizeLinear(q_p, other, zero) "
        "y = Sub(p, p_r)",
        "b,16",
        weights=SQUARE,
        pair=False,
        parts=WIDE.format(1),
    ),
    ("Relu", "behind MaxPool"): Toy("p = MaxPool<kernel_shape = [2,2]>(x_r) y = Relu(p)"),
    ("Conv", "float output"): Toy(
        "y = Conv(x_r, w_r)", weights=KERNEL, pair=False, parts=WIDE.format(0)
    ),
    ("Conv", "16-bit activations"): Toy(
        "y = Conv(s_r, w_r)", weights=KERNEL | SIXTEEN, parts=f"{SIXTEEN_PAIR} {WIDE.format(0)}"
    ),
    ("MatMul", "16-bit activations"): Toy(
        "y = MatMul(s_r, w_r)",
        "b,3,16",
        weights=SQUARE | SIXTEEN,
        pair=False,
        parts=f"{SIXTEEN_PAIR} {WIDE.format(1)}",
    ),
}
