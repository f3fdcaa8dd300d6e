"""Toys of a layer, an activation and what follows: which kernels onnxruntime really runs."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir
from tests.unit.quantizing import model_of, normal, optimized, quantize, run, snr

from ortune.quantizers.int8_static import Int8Static

FLOAT = {"Conv", "FusedConv", "NhwcFusedConv", "Gemm", "FusedGemm", "MatMul", "FusedMatMul"}
INTEGER = {"QLinearConv", "QGemm", "QLinearMatMul", "MatMulIntegerToFloat"}

ACTIVATIONS = {
    "none": "a = Neg(y)",
    "Relu": "a = Relu(y)",
    "Relu6": "a = Clip(y, zero, six)",
    "from 0": "a = Clip(y, zero)",
    "to 1": "a = Clip(y, , one)",
    "both": "a = Clip(y, minus, one)",
    "Max": "a = Max(y, zero)",
    "LeakyRelu": "a = LeakyRelu(y)",
    "PRelu": "a = PRelu(y, slope)",
    "Elu": "a = Elu(y)",
    "Sigmoid": "a = Sigmoid(y)",
    "SiLU": "s = Sigmoid(y) a = Mul(y, s)",
    "Tanh": "a = Tanh(y)",
    "HardSwish": "a = HardSwish(y)",
    "HardSigmoid": "a = HardSigmoid(y)",
    "Softmax": "a = Softmax(y)",
}
PRODUCTS = {
    "Gemm": "y = Gemm(x, w, b)",
    "MatMul": "y = MatMul(x, w)",
    "MatMul, Add": "p = MatMul(x, w) y = Add(p, b)",
    "Add, MatMul": "p = MatMul(x, w) y = Add(b, p)",
    "residual": "p = MatMul(x, w) y = Add(p, x)",
    "Reshape": "p = MatMul(x, w) y = Reshape(p, same)",
}
BEHIND_PRODUCTS = {
    "layer": "z = MatMul(a, v)",
    "two layers": "p1 = MatMul(a, v) p2 = MatMul(a, u) z = Add(p1, p2)",
    "float": "z = Exp(a)",
    "float layer": "z = MatMul(a, float)",
    "layer and float": "t = MatMul(a, v) z = Add(t, a)",
    "output": "",
}
CONVOLUTIONS = {
    "Conv": "y = Conv(x, k, c)",
    "Add": "p = Conv(x, k) q = Conv(x, k2) y = Add(p, q)",
    "Mul": "p = Conv(x, k) q = Conv(x, k2) y = Mul(p, q)",
    "AveragePool": "p = Conv(x, k) y = AveragePool<kernel_shape = [2,2]>(p)",
    "GlobalAveragePool": "p = Conv(x, k) y = GlobalAveragePool(p)",
    "MaxPool": "p = Conv(x, k) y = MaxPool<kernel_shape = [2,2], strides = [2,2]>(p)",
    "Concat": "p = Conv(x, k) q = Conv(x, k2) r = Concat<axis = 2>(p, q) y = Neg(r)",
}
BEHIND_CONVOLUTIONS = {
    "layer": "z = Conv(a, k)",
    "float": "z = Exp(a)",
    "layer and float": "t = Conv(a, k) z = Add(t, a)",
    "output": "",
}
SHAPES = {"matrix": "b,32", "sequence": "b,s,32", "fixed": "2,3,32", "image": "b,8,8,8"}
SAMPLES = {"matrix": (5, 32), "sequence": (2, 3, 32), "fixed": (2, 3, 32), "image": (2, 8, 8, 8)}
HELD = {
    "zero": np.float32(0),
    "one": np.float32(1),
    "six": np.float32(6),
    "minus": np.float32(-1),
    "slope": np.array([0.1], np.float32),
    "b": normal(32, seed=1),
    "c": normal(8, seed=1),
    "k": normal(8, 8, 1, 1, seed=2, scale=0.4),
    "k2": normal(8, 8, 1, 1, seed=3, scale=0.4),
    **{name: normal(32, 32, seed=4 + i, scale=0.2) for i, name in enumerate("wvu")},
    "float": normal(32, 32, seed=9),
}


@dataclass(frozen=True)
class Kernels:
    """What runs of a quantized toy.

    Attributes:
        taken: Layers that the step made integer.
        kernels: Operator -> how often onnxruntime runs it.
        db: Signal over noise of the answer.
    """

    taken: int
    kernels: Counter[str]
    db: float

    @property
    def integer(self) -> int:
        """Integer kernels of layers."""
        return sum(self.kernels[op] for op in INTEGER)

    @property
    def float(self) -> int:
        """Float kernels of layers."""
        return sum(self.kernels[op] for op in FLOAT)

    @property
    def halves(self) -> int:
        """Halves of pairs that are left."""
        return self.kernels["QuantizeLinear"] + self.kernels["DequantizeLinear"]


def toy(line: str, activation: str, behind: str, form: str) -> ir.Model:
    """Build a chain on an input of some form."""
    last = ACTIVATIONS[activation] if behind else ACTIVATIONS[activation].replace("a =", "z =")
    body = f"{line} {last} {behind}"
    rank = SHAPES[form].count(",") + 1
    text = f"""<ir_version: 9, opset_import: ["": 17]>
    g (float[{SHAPES[form]}] x) => (float[{",".join("efgh"[:rank])}] z) {{ {body} }}"""
    read = set(body.replace("(", " ").replace(")", " ").replace(",", " ").split())
    held = HELD | {"same": np.array([0] * (rank - 1) + [32])}
    model = model_of(text, {name: value for name, value in held.items() if name in read})
    for node in model.graph:
        node.name = f"n_{node.outputs[0].name}"
    return model


def kernels(model: ir.Model, step: Int8Static, form: str, folder: Path) -> Kernels:
    """Quantize a toy and look at what onnxruntime makes of it."""
    feeds = [{"x": normal(*SAMPLES[form], seed=seed)} for seed in (11, 12)]
    before = run(model, feeds[0])[0]
    taken = quantize(model, step, feeds)
    found = Counter(optimized(model, folder))
    return Kernels(taken, found, snr(before, run(model, feeds[0])[0]))
