"""Models as strangers bring them, by kind, and what each command makes of them.

A number is the least SNR in dB of the answers against the source's without optimizers; a text is
in the first of two lines of a refusal. M is the model, D its samples, O what is written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import onnx
from onnx import numpy_helper, parser

Arrays = Mapping[str, np.ndarray]
Outcomes = dict[str, float | str]


class Stranger(NamedTuple):
    """A model, samples of it, and command -> outcome.

    `said` stands in what every command that succeeds prints, `unsaid` nowhere; the result has at
    most `share` times as many bytes of weights, beside 1 MiB where constants were folded.
    """

    name: str
    text: str
    weights: Arrays
    feeds: Sequence[Arrays]
    outcomes: Outcomes
    said: str = ""
    external: bool = False
    unsaid: str = "RuntimeWarning"
    share: float | None = None

    def build(self) -> onnx.ModelProto:
        """Parse the text and add the weights."""
        text = self.text if self.text.lstrip().startswith("<") else f"{HEAD} {self.text}"
        proto = parser.parse_model(text)
        for name, array in self.weights.items():
            proto.graph.initializer.append(numpy_helper.from_array(array, name))
        return proto


HEAD = '<ir_version: 8, opset_import: ["": 17]>'
OWN = '<ir_version: 8, opset_import: ["": 17, "own": 1]>'
FUNCTION = '<opset_import: ["": 17], domain: "own">'


def head(opset: int, ir_version: int = 8, **domains: int) -> str:
    """Return how the text of a model of other versions begins."""
    more = "".join(f', "{name.replace("_", ".")}": {v}' for name, v in domains.items())
    return f'<ir_version: {ir_version}, opset_import: ["": {opset}{more}]>'


def normal(*shape: int, scale: float = 1.0, dtype: str = "f4", seed: int = 0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(dtype)


def samples(count: int = 4, **shapes: tuple[int, ...]) -> list[Arrays]:
    """Return normal numbers; a name that begins with `d` is of float64, `c` is a changing bool."""
    return [
        {
            name: np.array(k % 2 == 0)
            if name == "c"
            else normal(*shape, dtype="f8" if name.startswith("d") else "f4", seed=10 * k + 1)
            for name, shape in shapes.items()
        }
        for k in range(count)
    ]


EXACT: Outcomes = {
    "verify M M --data D": 0.0,
    "convert M O --data D": 100.0,
    "apply M simplify -o O": 100.0,
}
HALF: Outcomes = {"convert M O --precision fp16 --data D": 45.0}
NO_HALF: Outcomes = {"convert M O --precision fp16 --data D": "no float32 operator"}
PAD = "float z = {0}, int64[8] p = {0, 0, 1, 1, 0, 0, 1, 1}"

HIDDEN_ERRORS = [
    Stranger(
        "a function that pads before a pool, called twice",
        f"""{OWN} g (float[b,4,8,8] x) => (float[b,4,2,2] y) {{
          a = own.block(x, w, k) y = own.block(a, w, k) }}
        {FUNCTION} block (x, w, k) => (y) {{
          p = Constant<value = int64[8] {{0, 0, 1, 1, 0, 0, 1, 1}}>()
          z = Constant<value = float {{0}}>() c = Conv<pads = [1, 1, 1, 1]>(x, w, k)
          d = Pad(c, p, z) y = MaxPool<kernel_shape = [3, 3], strides = [2, 2]>(d) }}""",
        {"w": normal(4, 4, 3, 3, scale=0.1), "k": np.full(4, -3, "f4")},
        samples(x=(2, 4, 8, 8)),
        EXACT | HALF,
        "Pad_Fusion changes the answers",
    ),
    Stranger(
        "a loop with a norm whose epsilon differs by row",
        """g (float[b,3,8] x) => (float[b,3,8] y)
        <int64 n = {2}, bool go = {1}, float two = {2}, float[3,1] e = {1, 20, 300}> {
        y = Loop(n, go, x) <body = b (int64 i, bool c, float[b,3,8] h) =>
            (bool d, float[b,3,8] o) {
          d = Identity(c) m = ReduceMean<axes = [-1]>(h) s = Sub(h, m) q = Pow(s, two)
          v = ReduceMean<axes = [-1]>(q) a = Add(v, e) t = Sqrt(a) r = Div(s, t)
          u = Mul(r, w) f = Add(u, w) o = MatMul(f, k) }> }""",
        {"w": normal(8), "k": normal(8, 8, scale=0.3)},
        samples(x=(1, 3, 8)),
        EXACT | HALF,
        "LayerNormFusionL1, SimplifiedLayerNormFusion change the answers",
        external=True,
    ),
    Stranger(
        "a scan of float64 that pads before a pool of one axis",
        """g (double[5,2,9] dx, double[2,5] ds) => (double[2,5] t, double[5,2,5] y)
        <double z = {0}, int64[6] p = {0, 0, 1, 0, 0, 1}, int64[1] at = {0}> {
        t, y = Scan<num_scan_inputs = 1, body = b (double[2,5] h, double[2,9] i) =>
            (double[2,5] o, double[2,5] u) {
          a = Abs(i) g = Neg(a) q = Unsqueeze(g, at) f = Pad(q, p, z)
          m = MaxPool<kernel_shape = [3], strides = [2]>(f) u = Squeeze(m, at) o = Add(h, u)
        }>(ds, dx) }""",
        {},
        samples(dx=(5, 2, 9), ds=(2, 5)),
        EXACT | NO_HALF,
        "Pad_Fusion changes the answers",
    ),
]

INV = (1 / 10000 ** (np.arange(32) / 32)).astype("f4")
POSITIONS = [
    {"x": normal(1, 9, 64, seed=k), "t": (7000 + 11.0 * k + np.arange(9)).astype("f4")}
    for k in range(4)
]
ONES = [{"x": normal(1, 5000, 64, seed=k), "m": np.ones((1, 5000), "i8")} for k in range(3)]

WIDE = [
    Stranger(
        "positions summed from a mask in a function",
        f"""{OWN} g (float[b,t,64] x, int64[b,t] m) => (float[b,t,64] y) {{
          r = own.rope(x, m, inv) y = MatMul(r, w) }}
        {FUNCTION} rope (x, m, inv) => (y) {{
          one = Constant<value = int64 {{1}}>() at = Constant<value = int64[1] {{-1}}>()
          p = CumSum(m, one) q = Sub(p, one) f = Cast<to = 1>(q) u = Unsqueeze(f, at)
          a = Mul(u, inv) c = Cos(a) s = Sin(a) e = Concat<axis = -1>(c, s) y = Mul(x, e) }}""",
        {"inv": INV, "w": normal(64, 64)},
        ONES,
        HALF | {"apply M fp16 -o O": 45.0},
        "left in float32",
    ),
    Stranger(
        "a table of angles by Einsum in two branches",
        """g (float[1,t,64] x, float[t] t, bool c) => (float[1,t,64] y) {
        y = If(c) <
          then_branch = h () => (float[1,t,64] p) { a = Einsum<equation = "i,j->ij">(t, inv)
            k = Cos(a) s = Sin(a) e = Concat<axis = -1>(k, s) m = Mul(x, e) p = MatMul(m, w) },
          else_branch = l () => (float[1,t,64] q) { b = Einsum<equation = "j,i->ij">(inv, t)
            f = Sin(b) g = Cos(b) d = Concat<axis = -1>(f, g) n = Mul(x, d) q = MatMul(n, w) }>
        }""",
        {"inv": INV, "w": normal(64, 64)},
        [feed | {"c": np.array(k % 2 == 0)} for k, feed in enumerate(POSITIONS)],
        HALF,
        "left in float32",
    ),
    Stranger(
        "time steps that Reshape and Expand hand on",
        """g (float[b,64] x, int64[b] s) => (float[b,64] y) <int64[2] shape = {-1, 1}> {
        f = Cast<to = 1>(s) q = Reshape(f, shape) z = Shape(q) e = Expand(q, z) a = Mul(e, inv)
        c = Cos(a) i = Sin(a) k = Concat<axis = -1>(c, i) m = Gemm(k, w) o = Add(m, x)
        y = Gemm(o, w) }""",
        {"inv": INV, "w": normal(64, 64, scale=0.2)},
        [{"x": normal(2, 64, seed=k), "s": np.array([3001, 9999]) - 7 * k} for k in range(4)],
        HALF | {"apply M fp16 -o O": 45.0},
        "left in float32",
        external=True,
    ),
    Stranger(
        "a row number computed in float",
        """g (float[b,8] x, int64[b] s) => (float[b,8] y) <float three = {3}> {
        f = Cast<to = 1>(s) a = Mul(f, three) i = Floor(a) k = Cast<to = 7>(i)
        e = Gather(table, k) o = Add(e, x) y = MatMul(o, w) }""",
        {"table": normal(9000, 8), "w": normal(8, 8)},
        [{"x": normal(2, 8, seed=k), "s": np.array([801, 2899]) + k} for k in range(4)],
        HALF | {"apply M fp16 -o O": 45.0},
        "left in float32",
    ),
    Stranger(
        "a counter that a loop carries",
        """g (float[b,8] x) => (float[b,8] y)
        <int64 n = {6}, bool go = {1}, float start = {5000}, float step = {0.3}> {
        q, y = Loop(n, go, start, x) <body = b (int64 i, bool c, float p, float[b,8] h) =>
            (bool d, float r, float[b,8] o) {
          d = Identity(c) r = Add(p, step) s = Sin(r) m = Mul(h, s) a = Add(m, x)
          k = MatMul(a, w) o = Tanh(k) }> }""",
        {"w": normal(8, 8)},
        samples(x=(2, 8)),
        dict.fromkeys(
            (
                "convert M O --precision fp16 --data D",
                "convert M O --precision bf16",
                "apply M fp16 -o O",
            ),
            "the result differs too much from the source",
        ),
    ),
]


def filled(array: np.ndarray, place: int, value: float) -> np.ndarray:
    array[place] = value
    return array


INTEGERS: Outcomes = {
    "apply M int8-weights -o O --force": 20.0,
    "apply M int8-weights(form=nbits,block=16) -o O --force": 20.0,
    "apply M int8-dynamic(embeddings=true,conv=true) -o O --force": 20.0,
    "apply M int8-static(embeddings=true) --data D -o O --force": 20.0,
}
PICKS = np.random.default_rng(3)

NOT_FINITE = [
    Stranger(
        "a function that adds rows of a table with infinity, called twice",
        f"""{OWN} g (float[b,t,32] x, int64[b,t] i) => (float[b,t,32] y) {{
          a = own.f(x, i, t, w) y = own.f(a, i, t, w) }}
        {FUNCTION} f (x, i, t, w) => (y) {{ e = Gather(t, i) m = MatMul(x, w) s = Add(m, e)
          p = Softmax<axis = 1>(s) y = MatMul(p, w) }}""",
        {"t": filled(normal(64, 32, scale=0.5), 0, -np.inf), "w": normal(32, 32, scale=0.3)},
        [
            {"x": normal(1, 6, 32, seed=k), "i": np.append(1, PICKS.integers(0, 64, 5))[None]}
            for k in range(4)
        ],
        INTEGERS | HALF,
        external=True,
    ),
    Stranger(
        "a loop with a bias of infinity",
        """g (float[b,32] x) => (float[b,32] y) <int64 n = {2}, bool go = {1}> {
        y = Loop(n, go, x) <body = b (int64 i, bool c, float[b,32] h) =>
            (bool d, float[b,32] o) { d = Identity(c) q = Gemm(h, w, k)
          p = Softmax<axis = -1>(q) m = MatMul(p, w) o = Relu(m) }> }""",
        {"k": np.where(np.arange(32) % 5 == 0, -np.inf, 0.1).astype("f4"), "w": normal(32, 32)},
        samples(x=(2, 32)),
        INTEGERS | HALF,
    ),
    Stranger(
        "a convolution with a channel of NaN that is cut off",
        """g (float[b,8,6,6] x) => (float[b,3,6,6] y)
        <int64[1] s = {0}, int64[1] e = {3}, int64[1] at = {1}> {
        a = Conv<pads = [1, 1, 1, 1]>(x, v) h = Relu(a) c = Conv<pads = [1, 1, 1, 1]>(h, w)
        y = Slice(c, s, e, at) }""",
        {
            "v": normal(8, 8, 3, 3, scale=0.2),
            "w": filled(normal(8, 8, 3, 3, scale=0.2, seed=1), 3, np.nan),
        },
        samples(x=(2, 8, 6, 6)),
        HALF
        | {
            "apply M int8-weights -o O": "1 weight with infinity or NaN",
            "apply M int8-dynamic(conv=true) -o O --force": 20.0,
            "apply M int8-static --data D -o O --force": 20.0,
        },
    ),
    Stranger(
        "a table with infinity that is clipped, and branches",
        """g (int64[b,t] i, bool c) => (float[b,t,32] y) <float low = {-3}, float high = {3}> {
        e = Gather(t, i) k = Clip(e, low, high)
        y = If(c) <then_branch = a () => (float[b,t,32] p) { p = MatMul(k, w) },
          else_branch = z () => (float[b,t,32] q) { n = Neg(k) q = MatMul(n, w) }> }""",
        {"t": filled(normal(64, 32), 5, np.inf), "w": normal(32, 32)},
        [{"i": PICKS.integers(0, 64, (1, 5)), "c": np.array(k % 2 == 0)} for k in range(4)],
        INTEGERS | HALF,
    ),
]

CHANCE: Outcomes = {"convert M O --data D": -300.0, "apply M simplify -o O": -300.0}
DRAWS = "does not agree with itself"
RANDOM = [
    Stranger(
        "numbers of a Multinomial beside steady ones",
        """g (float[b,16] x) => (int32[b,3] y, float[b,16] z) {
        z = MatMul(x, w) y = Multinomial<sample_size = 3>(z) }""",
        {"w": normal(16, 16)},
        samples(x=(2, 16)),
        CHANCE,
        DRAWS,
    ),
    Stranger(
        "Dropout in training mode in a function",
        f"""{OWN} g (float[b,16] x) => (float[b,16] y) {{
          a = own.d(x) e = MatMul(a, w) c = own.d(e) y = MatMul(c, w) }}
        {FUNCTION} d (x) => (y) {{ r = Constant<value = float {{0.3}}>()
          t = Constant<value = bool {{1}}>() y = Dropout(x, r, t) }}""",
        {"w": normal(16, 16)},
        samples(x=(2, 16)),
        CHANCE,
        DRAWS,
    ),
    Stranger(
        "noise in a loop, and a steady output",
        """g (float[2,16] x) => (float[2,16] y, float[2,16] q) <int64 n = {3}, bool go = {1}> {
        q = MatMul(x, w)
        y = Loop(n, go, x) <body = b (int64 i, bool c, float[2,16] h) => (bool d, float[2,16] o)
          { d = Identity(c) u = RandomUniform<shape = [2, 16]>() a = Add(h, u) o = MatMul(a, w)
          }> }""",
        {"w": normal(16, 16, scale=0.2)},
        samples(x=(2, 16)),
        CHANCE,
        DRAWS,
    ),
    Stranger(
        "noise of a scale that the samples hold at 0",
        """g (float[b,16] x, float s) => (float[b,16] y) {
        n = RandomNormalLike(x) m = Mul(n, s) a = Add(x, m) y = MatMul(a, w) }""",
        {"w": normal(16, 16)},
        [{"x": normal(2, 16, seed=k), "s": np.zeros((), "f4")} for k in range(4)],
        HALF | {"verify M M --data D": 0.0, "convert M O --data D": 100.0},
    ),
]

TIED_INTEGERS: Outcomes = dict.fromkeys(INTEGERS, 25.0)
TIED = [
    Stranger(
        "a function with an Identity, and a Transpose before Gemm",
        f"""{OWN} g (float[b,64] x) => (float[b,64] y) {{
          a = own.f(x, w) e = own.f(a, w) y = own.g(e, w) }}
        {FUNCTION} f (x, w) => (y) {{ i = Identity(w) m = MatMul(x, i) y = Relu(m) }}
        {FUNCTION} g (x, w) => (y) {{ t = Transpose<perm = [1, 0]>(w)
          y = Gemm<transB = 1>(x, t) }}""",
        {"w": normal(64, 64, scale=0.15)},
        samples(x=(2, 64)),
        TIED_INTEGERS | {"apply M fp16 -o O": 45.0},
        external=True,
        share=0.55,
    ),
    Stranger(
        "a scan that reads a weight, turned and not",
        """g (float[5,64] x, float[64] s) => (float[64] t, float[5,64] y) {
        v = Identity(w) u = Transpose<perm = [1, 0]>(v)
        t, y = Scan<num_scan_inputs = 1, body = b (float[64] h, float[64] i) =>
            (float[64] o, float[64] r) { a = MatMul(i, v) c = MatMul(h, u) d = Add(a, c)
          o = Tanh(d) r = MatMul(o, w) }>(s, x) }""",
        {"w": normal(64, 64, scale=0.15)},
        samples(x=(5, 64), s=(64,)),
        {"apply M int8-weights -o O --force": 25.0, "apply M fp16 -o O": 45.0},
        share=0.55,
    ),
    Stranger(
        "Reshape and Cast that change nothing",
        """g (float[b,64] x) => (float[b,64] y)
        <int64[2] shape = {64, 64}, int64[3] wide = {1, 64, 64}> {
        w1 = Reshape(w, shape) w2 = Reshape(w, wide) w3 = Reshape(w2, shape) w4 = Cast<to = 1>(w)
        a = MatMul(x, w) b1 = Relu(a) c = MatMul(b1, w1) d = Relu(c) e = MatMul(d, w3)
        f = Relu(e) y = MatMul(f, w4) }""",
        {"w": normal(64, 64, scale=0.15)},
        samples(x=(2, 64)),
        TIED_INTEGERS | {"apply M fp16 -o O": 45.0},
        share=0.55,
    ),
    Stranger(
        "an embedding that branches multiply with",
        """g (int64[b,s] i, bool c) => (float[b,s,80] y) { t = Identity(w) e = Gather(t, i)
        y = If(c) <then_branch = a () => (float[b,s,80] p) {
            h = Identity(w) u = Transpose<perm = [1, 0]>(h) p = MatMul(e, u) },
          else_branch = z () => (float[b,s,80] q) {
            k = Tanh(e) v = Transpose<perm = [1, 0]>(w) q = MatMul(k, v) }> }""",
        {"w": normal(80, 32)},
        [{"i": PICKS.integers(0, 80, (1, 5)), "c": np.array(k % 2 == 0)} for k in range(4)],
        TIED_INTEGERS | {"apply M fp16 -o O": 45.0},
        share=0.55,
    ),
]

ALL: Outcomes = {
    "inspect M": 0.0,
    "verify M M --data D": 0.0,
    "apply M simplify -o O": 100.0,
    "convert M O --data D": 100.0,
}
SHADOWED: Outcomes = ALL | HALF | {"apply M int8-dynamic -o O --force": 20.0}
SHADOWS = [
    Stranger(
        "branches that hold equal names, and a function's",
        f"""{OWN} g (float[b,32] x, bool c) => (float[b,32] y) {{ h = MatMul(x, w)
          k = If(c) <
            then_branch = a () => (float[b,32] p) <float[1] s = {{2}}> {{
              m = Mul(h, s) p = own.h(m, w) }},
            else_branch = z () => (float[b,32] p) <float[1] s = {{3}}> {{
              m = Mul(h, s) p = own.h(m, w) }}>
          y = Add(k, h) }}
        {FUNCTION} h (x, w) => (y) {{ m = MatMul(x, w) h = Relu(m) y = Neg(h) }}""",
        {"w": normal(32, 32, scale=0.2)},
        samples(x=(2, 32), c=()),
        SHADOWED,
    ),
    Stranger(
        "a loop whose own values are called as inputs and weights outside",
        """g (float[b,32] x) => (float[b,32] y) <int64 n = {3}, bool go = {1}> { r = Relu(x)
        y = Loop(n, go, r) <body = b (int64 n, bool go, float[b,32] x) =>
            (bool d, float[b,32] o) <float[1] k = {0.5}> {
          d = Identity(go) m = MatMul(x, w) f = Cast<to = 1>(n) q = Add(m, f) o = Mul(q, k) }>
        }""",
        {"w": normal(32, 32, scale=0.2), "k": np.array(9, "f4")},
        samples(x=(2, 32)),
        SHADOWED,
        external=True,
    ),
    Stranger(
        "a scan in a loop, each with an outer name",
        """g (float[4,32] x) => (float[32] y)
        <int64 n = {2}, bool go = {1}, int64[1] at = {0}> {
        z = ReduceSum<keepdims = 0>(x, at) s = MatMul(z, w)
        y = Loop(n, go, s) <body = b (int64 i, bool c, float[32] s) => (bool d, float[32] o) {
          d = Identity(c)
          o, u = Scan<num_scan_inputs = 1, body = e (float[32] s, float[32] x) =>
              (float[32] v, float[32] k) <float[1] z = {1}> {
            q = Add(s, z) r = MatMul(q, w) v = Add(r, x) k = Neg(v) }>(s, x) }> }""",
        {"w": normal(32, 32, scale=0.2)},
        samples(x=(4, 32)),
        SHADOWED,
    ),
]
