"""Random valid models from a grammar of operators, for property tests.

Every production knows the shapes and types of what it makes, so each drawn graph is valid by
construction. Exporters' idioms (written-out activations, norms, attention, padding by shape
arithmetic) are productions too, drawn with the parts in any order that is equal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

Draw: TypeAlias = Callable[[st.SearchStrategy[Any]], Any]
OPSETS = (13, 17, 20, 23)
_LARGEST = 4096


@dataclass(frozen=True)
class Made:
    """A tensor of the graph; float32 unless said."""

    name: str
    shape: tuple[int, ...]
    dtype: type[Any] = np.float32


@dataclass
class Builder:
    """Nodes and constants so far."""

    draw: Draw
    opset: int
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)
    pool: list[Made] = field(default_factory=list)
    seed: int = 0

    def op(self, kind: str, inputs: Sequence[str], shape: Sequence[int], **more: Any) -> Made:
        """Add a node with one output; `dtype` is the output's."""
        dtype = more.pop("dtype", np.float32)
        made = Made(f"v{len(self.nodes)}", tuple(shape), dtype)
        self.nodes.append(
            helper.make_node(kind, inputs, [made.name], f"n{len(self.nodes)}", **more)
        )
        return made

    def const(self, value: Any, dtype: type[Any] = np.float32) -> str:
        """Add a constant, as initializer or as a node."""
        name = f"c{len(self.constants)}_{len(self.nodes)}"
        tensor = numpy_helper.from_array(np.asarray(value, dtype), name)
        if self.draw(st.booleans()):
            self.constants.append(tensor)
        else:
            self.nodes.append(helper.make_node("Constant", [], [name], f"k{name}", value=tensor))
        return name

    def weight(self, *shape: int, scale: float = 1.0) -> str:
        """Add a random constant, sometimes equal to an earlier one."""
        self.seed = self.draw(st.integers(0, 3))
        array = np.random.default_rng(self.seed).standard_normal(shape) * scale
        return self.const(array.astype(np.float32))

    def either(self, *options: Any) -> Any:
        return self.draw(st.sampled_from(options))

    def any_of(self, fits: Callable[[Made], bool]) -> Made | None:
        found = [made for made in self.pool if fits(made)]
        return self.draw(st.sampled_from(found)) if found else None

    def two(self, kind: str, one: str, two: str, shape: Sequence[int]) -> Made:
        """Add a commutative node with its operands in either order."""
        pair = self.either((one, two), (two, one))
        return self.op(kind, pair, shape)


def _unary(b: Builder, x: Made) -> Made:
    kind = b.either("Relu", "Sigmoid", "Tanh", "Neg", "Abs", "Identity", "Exp", "Softplus", "Erf")
    if kind == "Exp":
        x = b.op("Tanh", [x.name], x.shape)
    return b.op(kind, [x.name], x.shape)


def _binary(b: Builder, x: Made) -> Made:
    y = b.any_of(lambda m: m.shape == x.shape) or x
    return b.op(b.either("Add", "Mul", "Sub", "Max", "Min"), [x.name, y.name], x.shape)


def _constant_arithmetic(b: Builder, x: Made) -> Made:
    """A chain with constants: scalars, per channel, or of the full shape."""
    for _ in range(b.draw(st.integers(1, 4))):
        tail = b.draw(st.integers(0, len(x.shape)))
        shape = [s if b.draw(st.booleans()) else 1 for s in x.shape[len(x.shape) - tail :]]
        kind = b.either("Add", "Mul", "Sub", "Div")
        value = np.random.default_rng(b.draw(st.integers(0, 3))).uniform(0.5, 2, shape)
        if b.draw(st.integers(0, 5)) == 0:
            value = np.full(shape, 1.0 if kind in ("Mul", "Div") else 0.0)
        c = b.const(value)
        x = b.op(
            kind, b.either((x.name, c), (c, x.name)) if kind != "Div" else (x.name, c), x.shape
        )
    return x


def _activation(b: Builder, x: Made) -> Made:
    """Written-out GELU, SiLU, hard swish, quick GELU, Mish."""
    n, shape = x.name, x.shape
    kind = b.either("gelu", "tanh", "silu", "quick", "hard", "relu6", "mish")
    if kind == "gelu":
        root = float(np.sqrt(2))
        inner = b.either(
            lambda: b.op("Div", [n, b.const(root)], shape),
            lambda: b.two("Mul", n, b.const(1 / root), shape),
        )()
        one = b.two("Add", b.op("Erf", [inner.name], shape).name, b.const(1.0), shape)
        half = b.const(0.5)
        if b.draw(st.booleans()):
            return b.two("Mul", b.two("Mul", n, one.name, shape).name, half, shape)
        return b.two("Mul", b.two("Mul", n, half, shape).name, one.name, shape)
    if kind == "tanh":
        cube = b.op("Pow", [n, b.const(3.0)], shape)
        scaled = b.two("Mul", cube.name, b.const(0.044715), shape)
        total = b.two("Add", n, scaled.name, shape)
        inner = b.two("Mul", total.name, b.const(float(np.sqrt(2 / np.pi))), shape)
        one = b.two("Add", b.op("Tanh", [inner.name], shape).name, b.const(1.0), shape)
        return b.two("Mul", b.two("Mul", n, b.const(0.5), shape).name, one.name, shape)
    if kind in ("silu", "quick"):
        inner = x if kind == "silu" else b.two("Mul", n, b.const(1.702), shape)
        return b.two("Mul", n, b.op("Sigmoid", [inner.name], shape).name, shape)
    if kind == "mish":
        soft = b.op("Softplus", [n], shape)
        return b.two("Mul", n, b.op("Tanh", [soft.name], shape).name, shape)
    if kind == "relu6":
        return b.op("Clip", [n, b.const(0.0), b.const(6.0)], shape)
    moved = b.two("Add", n, b.const(3.0), shape)
    clipped = b.op("Clip", [moved.name, b.const(0.0), b.const(6.0)], shape)
    if b.draw(st.booleans()):
        return b.op("Div", [b.two("Mul", n, clipped.name, shape).name, b.const(6.0)], shape)
    return b.two("Mul", n, b.op("Div", [clipped.name, b.const(6.0)], shape).name, shape)


def _mean(b: Builder, x: Made, axis: int) -> Made:
    shape = list(x.shape)
    shape[axis] = 1
    if b.opset < 18:
        return b.op("ReduceMean", [x.name], shape, axes=[axis])
    return b.op("ReduceMean", [x.name, b.const([axis], np.int64)], shape)


def _norm(b: Builder, x: Made) -> Made | None:
    """Written-out LayerNorm or RMSNorm over the last axis."""
    if len(x.shape) < 2 or x.shape[-1] < 2:
        return None
    shape = x.shape
    if b.draw(st.booleans()):
        x = b.op("Sub", [x.name, _mean(b, x, -1).name], shape)
    square = b.either(
        lambda: b.op("Pow", [x.name, b.const(2.0)], shape),
        lambda: b.op("Mul", [x.name, x.name], shape),
    )()
    var = _mean(b, square, -1)
    root = b.op("Sqrt", [b.two("Add", var.name, b.const(1e-5), var.shape).name], var.shape)
    out = b.either(
        lambda: b.op("Div", [x.name, root.name], shape),
        lambda: b.two("Mul", x.name, b.op("Reciprocal", [root.name], var.shape).name, shape),
    )()
    if b.draw(st.booleans()):
        out = b.two("Mul", out.name, b.weight(shape[-1]), shape)
    if b.draw(st.booleans()):
        out = b.two("Add", out.name, b.weight(shape[-1]), shape)
    return out


def _softmax(b: Builder, x: Made) -> Made | None:
    if not x.shape:
        return None
    axis = b.either(-1, len(x.shape) - 1, 0)
    if b.draw(st.booleans()):
        return b.op(b.either("Softmax", "LogSoftmax"), [x.name], x.shape, axis=axis)
    shape = [*x.shape]
    shape[axis] = 1
    top = b.op("ReduceMax", [x.name], shape, axes=[axis]) if b.opset < 18 else b.op(
        "ReduceMax", [x.name, b.const([axis], np.int64)], shape
    )  # fmt: skip
    power = b.op("Exp", [b.op("Sub", [x.name, top.name], x.shape).name], x.shape)
    total = b.op("ReduceSum", [power.name, b.const([axis], np.int64)], shape)
    return b.op("Div", [power.name, total.name], x.shape)


def _matmul(b: Builder, x: Made) -> Made | None:
    if len(x.shape) < 2:
        return None
    k, n = x.shape[-1], b.draw(st.integers(1, 6))
    if len(x.shape) == 2 and b.draw(st.booleans()):
        turned = b.either(0, 1)
        weight = b.weight(*((n, k) if turned else (k, n)), scale=k**-0.5)
        bias = [b.weight(n)] if b.draw(st.booleans()) else []
        more = b.either({}, {"alpha": 0.5}, {"beta": 2.0})
        return b.op("Gemm", [x.name, weight, *bias], (x.shape[0], n), transB=turned, **more)
    out = b.op("MatMul", [x.name, b.weight(k, n, scale=k**-0.5)], (*x.shape[:-1], n))
    return b.two("Add", out.name, b.weight(n), out.shape) if b.draw(st.booleans()) else out


def _attention(b: Builder, x: Made) -> Made | None:
    """Heads split, scaled products, softmax, heads merged."""
    if len(x.shape) != 3:
        return None
    batch, length, width = x.shape
    heads, size = b.either(1, 2), b.either(2, 4)
    inner = heads * size

    def split(perm: Sequence[int]) -> Made:
        made = b.op("MatMul", [x.name, b.weight(width, inner, scale=0.5)], (batch, length, inner))
        to = b.const([b.either(batch, 0), b.either(-1, length), heads, size], np.int64)
        made = b.op("Reshape", [made.name, to], (batch, length, heads, size))
        return b.op("Transpose", [made.name], [made.shape[i] for i in perm], perm=perm)

    q, k, v = split((0, 2, 1, 3)), split((0, 2, 3, 1)), split((0, 2, 1, 3))
    shape = (batch, heads, length, length)
    root = float(np.sqrt(size))
    if b.draw(st.booleans()):
        q = b.two("Mul", q.name, b.const(1 / root), q.shape)
        scores = b.op("MatMul", [q.name, k.name], shape)
    else:
        scores = b.op("MatMul", [q.name, k.name], shape)
        scores = b.op("Div", [scores.name, b.const(root)], shape)
    if b.draw(st.booleans()):
        mask = np.where(np.arange(length) < max(1, length - 1), 0.0, -10000.0)
        scores = b.two("Add", scores.name, b.const(mask.reshape(1, 1, 1, length)), shape)
    probs = b.op("Softmax", [scores.name], shape, axis=-1)
    out = b.op("MatMul", [probs.name, v.name], (batch, heads, length, size))
    out = b.op("Transpose", [out.name], (batch, length, heads, size), perm=[0, 2, 1, 3])
    to = b.const([b.either(batch, 0), b.either(-1, length), inner], np.int64)
    return b.op("Reshape", [out.name, to], (batch, length, inner))


def _conv(b: Builder, x: Made) -> Made | None:
    """Perhaps padded before, and with a norm or constant arithmetic behind."""
    if len(x.shape) != 4 or min(x.shape[2:]) < 1:
        return None
    if b.draw(st.booleans()):
        x = _pad(b, x) or x
    n, c, h, w = x.shape
    kernel = b.either(1, 2, 3)
    pads = b.either((0, 0, 0, 0), (1, 1, 1, 1), (0, 1, 1, 0))
    stride, group = b.either(1, 2), b.either(1, c)
    tall, wide = h + pads[0] + pads[2] - kernel, w + pads[1] + pads[3] - kernel
    if tall < 0 or wide < 0:
        return None
    out = group * b.draw(st.integers(1, 2)) if group > 1 else b.draw(st.integers(1, 4))
    weight = b.weight(out, c // group, kernel, kernel, scale=(c * kernel**2) ** -0.5)
    bias = [b.weight(out)] if b.draw(st.booleans()) else []
    shape = (n, out, tall // stride + 1, wide // stride + 1)
    made = b.op(
        "Conv", [x.name, weight, *bias], shape, kernel_shape=[kernel] * 2,
        pads=pads, strides=[stride] * 2, group=group,
    )  # fmt: skip
    if b.draw(st.booleans()):
        scale, shift, mean = b.weight(out), b.weight(out), b.weight(out)
        var = b.const(np.random.default_rng(b.seed).uniform(0.5, 2, out))
        made = b.op("BatchNormalization", [made.name, scale, shift, mean, var], shape)
    elif b.draw(st.booleans()):
        factor = b.weight(out, 1, 1)
        made = b.two(b.either("Mul", "Add"), made.name, factor, shape)
    return made


def _conv_transpose(b: Builder, x: Made) -> Made | None:
    if len(x.shape) != 4:
        return None
    n, c, h, w = x.shape
    kernel, stride, pad = b.either((4, 2, 1), (2, 2, 0), (3, 1, 1), (3, 2, 1))
    out = b.draw(st.integers(1, 3))
    tall, wide = ((s - 1) * stride + kernel - 2 * pad for s in (h, w))
    if tall < 1 or wide < 1:
        return None
    weight = b.weight(c, out, kernel, kernel, scale=(c * kernel**2) ** -0.5)
    bias = [b.weight(out)] if b.draw(st.booleans()) else []
    return b.op(
        "ConvTranspose", [x.name, weight, *bias], (n, out, tall, wide),
        kernel_shape=[kernel] * 2, pads=[pad] * 4, strides=[stride] * 2,
    )  # fmt: skip


def _branches(b: Builder, x: Made) -> Made | None:
    """Parallel convolutions over one input, joined."""
    if len(x.shape) != 4:
        return None
    n, c, h, w = x.shape
    parts = []
    for _ in range(b.draw(st.integers(2, 3))):
        out = b.draw(st.integers(1, 3))
        weight = b.weight(out, c, 1, 1, scale=c**-0.5)
        bias = [b.weight(out)] if b.draw(st.booleans()) else []
        made = b.op("Conv", [x.name, weight, *bias], (n, out, h, w), kernel_shape=[1, 1])
        parts.append(b.op("Relu", [made.name], made.shape) if b.draw(st.booleans()) else made)
    total = sum(part.shape[1] for part in parts)
    return b.op("Concat", [part.name for part in parts], (n, total, h, w), axis=b.either(1, -3))


def _pad(b: Builder, x: Made) -> Made | None:
    if len(x.shape) != 4:
        return None
    amounts = [b.either(0, 0, 1) if i % 4 > 1 else 0 for i in range(8)]
    shape = [s + amounts[i] + amounts[i + 4] for i, s in enumerate(x.shape)]
    mode = b.either("constant", "constant", "edge")
    value = [b.const(b.either(0.0, 0.0, 0.5))] if mode == "constant" and b.either(0, 1) else []
    return b.op("Pad", [x.name, b.const(amounts, np.int64), *value], shape, mode=mode)


def _pool(b: Builder, x: Made) -> Made | None:
    if len(x.shape) != 4 or min(x.shape[2:]) < 2:
        return None
    if b.draw(st.booleans()):
        return b.op("GlobalAveragePool", [x.name], (*x.shape[:2], 1, 1))
    shape = (*x.shape[:2], x.shape[2] - 1, x.shape[3] - 1)
    return b.op(b.either("MaxPool", "AveragePool"), [x.name], shape, kernel_shape=[2, 2])


def _transpose(b: Builder, x: Made) -> Made | None:
    """One, or one there and one back around something element-wise."""
    if len(x.shape) < 2:
        return None
    perm = b.draw(st.permutations(range(len(x.shape))))
    made = b.op("Transpose", [x.name], [x.shape[i] for i in perm], perm=perm)
    if b.draw(st.booleans()):
        made = _unary(b, made)
        back = [int(i) for i in np.argsort(perm)]
        made = b.op("Transpose", [made.name], x.shape, perm=back)
    return made


def _reshape(b: Builder, x: Made) -> Made:
    """By a constant, by shape arithmetic, or by Squeeze, Unsqueeze and Flatten."""
    size = int(np.prod(x.shape, dtype=np.int64))
    kind = b.either("constant", "shape", "unsqueeze", "squeeze", "flatten")
    if kind == "flatten" and x.shape:
        first = x.shape[0]
        return b.op("Flatten", [x.name], (first, size // max(first, 1)))
    if kind == "unsqueeze":
        axis = b.draw(st.integers(0, len(x.shape)))
        shape = (*x.shape[:axis], 1, *x.shape[axis:])
        return b.op("Unsqueeze", [x.name, b.const([axis], np.int64)], shape)
    ones = [i for i, s in enumerate(x.shape) if s == 1]
    if kind == "squeeze" and ones:
        axis = b.draw(st.sampled_from(ones))
        shape = x.shape[:axis] + x.shape[axis + 1 :]
        return b.op("Squeeze", [x.name, b.const([axis], np.int64)], shape)
    if kind == "shape" and x.shape:
        got = b.op("Shape", [x.name], (len(x.shape),), dtype=np.int64)
        first = b.op("Gather", [got.name, b.const([0], np.int64)], (1,), dtype=np.int64, axis=0)
        to = b.op("Concat", [first.name, b.const([-1], np.int64)], (2,), dtype=np.int64, axis=0)
        return b.op("Reshape", [x.name, to.name], (x.shape[0], size // max(x.shape[0], 1)))
    divisors = [d for d in range(1, size + 1) if size % d == 0][:12] or [1]
    first = b.draw(st.sampled_from(divisors))
    to = b.either([first, size // first], [first, -1], [-1, size // first])
    return b.op("Reshape", [x.name, b.const(to, np.int64)], (first, size // first))


def _reduce(b: Builder, x: Made) -> Made | None:
    if not x.shape:
        return None
    axis = b.draw(st.integers(0, len(x.shape) - 1))
    return _mean(b, x, axis)


def _slice(b: Builder, x: Made) -> Made | None:
    if not x.shape:
        return None
    axis = b.draw(st.integers(0, len(x.shape) - 1))
    start = b.draw(st.integers(0, x.shape[axis] - 1))
    end = b.draw(st.integers(start + 1, x.shape[axis]))
    stop = b.either(end, end, 2**31) if end == x.shape[axis] else end
    parts = [b.const([v], np.int64) for v in (start, stop, axis)]
    shape = (*x.shape[:axis], end - start, *x.shape[axis + 1 :])
    return b.op("Slice", [x.name, *parts], shape)


def _concat(b: Builder, x: Made) -> Made | None:
    if not x.shape:
        return None
    axis = b.draw(st.integers(0, len(x.shape) - 1))
    y = b.any_of(
        lambda m: (
            len(m.shape) == len(x.shape)
            and all(
                s == t for i, (s, t) in enumerate(zip(m.shape, x.shape, strict=True)) if i != axis
            )
        )
    )
    parts = [x, y or x]
    shape = list(x.shape)
    shape[axis] = sum(part.shape[axis] for part in parts)
    return b.op("Concat", [part.name for part in parts], shape, axis=axis)


def _split(b: Builder, x: Made) -> Made | None:
    if not x.shape or x.shape[-1] < 2:
        return None
    one = b.draw(st.integers(1, x.shape[-1] - 1))
    sizes = [one, x.shape[-1] - one]
    parts = [Made(f"s{len(b.nodes)}_{i}", (*x.shape[:-1], s)) for i, s in enumerate(sizes)]
    inputs = [x.name, b.const(sizes, np.int64)]
    b.nodes.append(
        helper.make_node("Split", inputs, [p.name for p in parts], f"n{len(b.nodes)}", axis=-1)
    )
    b.pool.append(parts[0])
    return parts[1]


def _casts(b: Builder, x: Made) -> Made:
    """To another type and back; only what loses nothing here, or loses it for good."""
    kinds = {"double": TensorProto.DOUBLE, "int32": TensorProto.INT32, "bool": TensorProto.BOOL}
    kind = b.either(*kinds)
    dtype = {"double": np.float64, "int32": np.int32, "bool": np.bool_}[kind]
    made = b.op("Cast", [x.name], x.shape, to=kinds[kind], dtype=dtype)
    if kind == "int32" and b.draw(st.booleans()):
        made = b.op("Cast", [made.name], x.shape, to=TensorProto.INT64, dtype=np.int64)
    return b.op("Cast", [made.name], x.shape, to=TensorProto.FLOAT)


def _where(b: Builder, x: Made) -> Made:
    y = b.any_of(lambda m: m.shape == x.shape) or x
    if b.draw(st.booleans()):
        flag = b.const(b.draw(st.booleans()), np.bool_)
    else:
        flag = b.op("Greater", [x.name, b.const(0.0)], x.shape, dtype=np.bool_).name
    return b.op("Where", [flag, x.name, y.name], x.shape)


def _idle(b: Builder, x: Made) -> Made:
    """What exporters leave behind: it does nothing."""
    kind = b.either("Identity", "Dropout", "Add", "Mul", "Expand", "Concat", "Reshape", "Clip")
    n, shape = x.name, x.shape
    if kind == "Add":
        return b.two("Add", n, b.const(0.0), shape)
    if kind == "Mul":
        return b.two("Mul", n, b.const(1.0), shape)
    if kind == "Expand" and shape:
        return b.op("Expand", [n, b.const([1] * len(shape), np.int64)], shape)
    if kind == "Concat" and shape:
        return b.op("Concat", [n], shape, axis=0)
    if kind == "Reshape" and shape:
        return b.op("Reshape", [n, b.const([0] * len(shape), np.int64)], shape)
    if kind == "Clip":
        return b.op("Clip", [n], shape)
    return b.op("Dropout" if kind == "Dropout" else "Identity", [n], shape)


def _twice(b: Builder, x: Made) -> Made:
    """The same computation two times, as exporters write it."""
    one, two = (b.op("Tanh", [x.name], x.shape) for _ in range(2))
    return b.op("Add", [one.name, two.name], x.shape)


def _branch(b: Builder, x: Made) -> Made:
    """An If whose bodies capture values of the graph around them."""
    number = len(b.nodes)
    kept = TensorProto.FLOAT

    def body(kind: str) -> onnx.GraphProto:
        out = f"b{number}_{kind}"
        node = helper.make_node(kind, [x.name], [out], f"n{out}")
        info = helper.make_tensor_value_info(out, kept, x.shape)
        return helper.make_graph([node], f"g{out}", [], [info])

    if b.draw(st.booleans()):
        flag = b.const(b.draw(st.booleans()), np.bool_)
    else:
        top = b.op("ReduceMax", [x.name], (), keepdims=0)
        flag = b.op("Greater", [top.name, b.const(1.0)], (), dtype=np.bool_).name
    return b.op("If", [flag], x.shape, then_branch=body("Neg"), else_branch=body("Relu"))


PRODUCTIONS: tuple[Callable[[Builder, Made], Made | None], ...] = (
    _unary, _binary, _constant_arithmetic, _activation, _norm, _softmax, _matmul, _attention,
    _conv, _conv_transpose, _branches, _pad, _pool, _transpose, _reshape, _reduce, _slice, _concat,
    _split, _casts, _where, _idle, _twice, _branch,
)  # fmt: skip


@st.composite
def models(draw: Draw, largest: int = 10) -> onnx.ModelProto:
    """Draw a model of one or two inputs named ``x0``, ``x1`` and one to three outputs."""
    builder = Builder(draw, draw(st.sampled_from(OPSETS)))
    inputs = []
    for index in range(draw(st.integers(1, 2))):
        rank = draw(st.sampled_from((2, 3, 3, 4, 4)))
        shape = tuple(draw(st.integers(1, 5)) for _ in range(rank))
        inputs.append(Made(f"x{index}", shape))
    builder.pool += inputs
    for _ in range(draw(st.integers(1, largest))):
        x = draw(st.sampled_from(builder.pool[-4:]))
        made = draw(st.sampled_from(PRODUCTIONS))(builder, x)
        if made is not None and 0 < np.prod(made.shape, dtype=np.int64) <= _LARGEST:
            builder.pool.append(made)
    written = [made for made in builder.pool if made not in inputs]
    if not written:
        written = [builder.op("Relu", [inputs[0].name], inputs[0].shape)]
    chosen = draw(st.lists(st.sampled_from(written), max_size=2, unique_by=lambda m: m.name))
    outputs = list(dict.fromkeys([*chosen, written[-1]]))
    return _model(builder, inputs, outputs, dynamic=draw(st.booleans()))


def _model(
    builder: Builder, inputs: Sequence[Made], outputs: Sequence[Made], *, dynamic: bool
) -> onnx.ModelProto:
    """Put it together; a dynamic one declares no shapes but the ranks of its inputs."""
    given = [
        helper.make_tensor_value_info(
            one.name,
            TensorProto.FLOAT,
            [f"{one.name}_{i}" if dynamic and i == 0 else s for i, s in enumerate(one.shape)],
            doc_string=" ".join(map(str, one.shape)),
        )
        for one in inputs
    ]
    wanted = [
        helper.make_tensor_value_info(
            one.name, TensorProto.FLOAT, [None] * len(one.shape) if dynamic else one.shape
        )
        for one in outputs
    ]
    graph = helper.make_graph(builder.nodes, "random", given, wanted, builder.constants)
    opset = helper.make_opsetid("", builder.opset)
    return helper.make_model(graph, opset_imports=[opset], ir_version=9)


def feeds(model: onnx.ModelProto, seed: int) -> dict[str, np.ndarray]:
    """Return random inputs, of the sizes that a drawn model's constants were made for."""
    rng = np.random.default_rng(seed)
    return {
        value.name: rng.standard_normal([int(s) for s in value.doc_string.split()]).astype(
            np.float32
        )
        for value in model.graph.input
    }
