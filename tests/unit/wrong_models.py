"""Models that onnxruntime 1.31 makes wrong, refuses to load, or that draw random numbers."""

from __future__ import annotations

_HEAD = '<ir_version: 8, opset_import: ["": 17]>'

POOLED = f"""{_HEAD} g (float[b,3,8,8] x) => (float[b,3,4,4] y)
<int64[8] p = {{0, 0, 1, 1, 0, 0, 1, 1}}, float z = {{0}}> {{
  a = Abs(x) n = Neg(a) c = Pad(n, p, z)
  y = MaxPool<kernel_shape = [3, 3], strides = [2, 2]>(c) }}"""

_NORM = f"""{_HEAD} g (float[b,3,8] x) => (float[b,3,8] y)
<float[1] power = {{POWER}}, float[3, 1] e = {{EPSILON}},
 float[8] k = {{1, 2, 3, 4, 5, 6, 7, 8}}> {{
  m = ReduceMean<axes = [-1]>(x) d = Sub(FIRST) q = Pow(d, power)
  v = ReduceMean<axes = [-1]>(q) w = Add(v, e) s = Sqrt(w) n = Div(d, s)
  o = Mul(n, k) y = Add(o, k) }}"""

NORMALIZED = (
    _NORM.replace("POWER", "4").replace("float[3, 1] e", "float[1] e").replace("FIRST", "x, m")
).replace("EPSILON", "0.5")
NORMALIZED_BY_ROW = (
    _NORM.replace("POWER", "2").replace("EPSILON", "1, 20, 300").replace("FIRST", "x, m")
)
NORMALIZED_UPSIDE_DOWN = (
    _NORM.replace("POWER", "2").replace("float[3, 1] e", "float[1] e").replace("FIRST", "m, x")
).replace("EPSILON", "0.5")

DOUBLE = f"""{_HEAD} g (double[b,3,8] x) => (double[b,3,8] y)
<double[1] two = {{2}}, double[1] e = {{0.5}}, double[8] k = {{1, 2, 3, 4, 5, 6, 7, 8}}> {{
  q = Pow(x, two) v = ReduceMean<axes = [-1]>(q) w = Add(v, e) s = Sqrt(w) n = Div(x, s)
  y = Mul(n, k) }}"""

SCALED_BY_ROW = f"""{_HEAD} g (float[b,3,8] x) => (float[b,3,8] y)
<float[1] two = {{2}}, float[3, 1] e = {{1, 20, 300}}, float[8] k = {{1, 2, 3, 4, 5, 6, 7, 8}}> {{
  q = Pow(x, two) v = ReduceMean<axes = [-1]>(q) w = Add(v, e) s = Sqrt(w) n = Div(x, s)
  y = Mul(n, k) }}"""

DILATED = f"""{_HEAD} g (float[b,3,8,8] x) => (float[b,3,8,8] y)
<int64[8] p = {{0, 0, 1, 1, 0, 0, 1, 1}}> {{
  a = Abs(x) n = Neg(a) c = Pad(n, p)
  y = MaxPool<kernel_shape = [2, 2], dilations = [2, 2]>(c) }}"""

PADDED_FAR = f"""{_HEAD} g (float[b,3,8,8] x) => (float[b,3,9,8] y)
<int64[8] p = {{0, 0, 2, 0, 0, 0, 0, 1}}> {{
  c = Pad(x, p) y = AveragePool<kernel_shape = [2, 2]>(c) }}"""

IN_A_BODY = f"""{_HEAD} g (float[b,3,8,8] x, bool c) => (float[b,3,4,4] y)
<int64[8] p = {{0, 0, 1, 1, 0, 0, 1, 1}}, float z = {{0}}> {{
  y = If (c) <
    then_branch = t () => (float[b,3,4,4] u) {{ a = Abs(x) n = Neg(a) d = Pad(n, p, z)
      u = MaxPool<kernel_shape = [3, 3], strides = [2, 2]>(d) }},
    else_branch = f () => (float[b,3,4,4] w) {{ e = Abs(x) g = Neg(e) h = Pad(g, p, z)
      w = MaxPool<kernel_shape = [3, 3], strides = [2, 2]>(h) }}> }}"""

CLIPPED = """<ir_version: 5, opset_import: ["": 9]> g (float[4, 8] x) => (float[4, 8] y) {
  r = Relu(x) c = Clip<min = -3.0, max = -1.0>(r) y = Add(c, x) }"""

SOUND = f"""{_HEAD} g (float[b,4] x) => (float[b,4] y, int64[b,1] i)
<float[4, 4] w = {{1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7}},
 float[4] k = {{1, 2, 3, 4}}> {{
  m = MatMul(x, w) a = Add(m, k) y = Relu(a) i = ArgMax<axis = 1>(y) }}"""

CHAOTIC = f"""{_HEAD} g (float[b,2,3,3] x) => (float[b,2,3,3] y)
<float[2,2,1,1] w = {{1.1, 2.3, 3.7, 0.4}}, float[2,1,1] k = {{0.3, 0.7}},
 float[1] large = {{1e6}}> {{
  c = Conv(x, w) m = Mul(c, k) t = Mul(m, large) y = Sin(t) }}"""

NOISY = f"""{_HEAD} g (float[b,4] x) => (float[b,4] y, float[b,4] z) {{
  n = RandomNormalLike(x) y = Add(x, n) z = Abs(x) }}"""

SEEDED = f"""{_HEAD} g (float[b,4] x) => (float[b,4] y) {{
  n = RandomUniformLike<seed = 7.0>(x) y = Add(x, n) }}"""

TOSSED = f"""{_HEAD} g (float[b,4] x) => (float[b,4] y) {{
  s = Sigmoid(x) t = Bernoulli(s) y = Mul(x, t) }}"""

NOISY_BODY = f"""{_HEAD} g (float[b,4] x, bool c) => (float[b,4] y) {{
  y = If (c) <
    then_branch = t () => (float[b,4] u) {{ n = RandomNormal<shape = [1, 4]>() u = Add(x, n) }},
    else_branch = f () => (float[b,4] w) {{ m = RandomNormal<shape = [1, 4]>()
      w = Sub(x, m) }}> }}"""

QUOTIENT = f"""{_HEAD} g (int64[b,4] x, int64[b,4] d) => (int64[b,4] y) <int64 one = {{1}}> {{
  e = Mul(d, d) n = Add(e, one) q = Div(one, n) y = Mul(q, x) }}"""

QUOTIENT_OF_MORE_AXES = f"""{_HEAD} g (float[b,4] x, float[4] d) => (float[1,b,4] y)
<float[1,1,1] one = {{1}}> {{ e = Exp(d) q = Div(one, e) y = Mul(x, q) }}"""

TWO_PAIRS = f"""{_HEAD} g (float[b,4] x) => (float[b,4] y)
<float s = {{0.01}}, int8 z = {{0}}, float t = {{0.5}}, int8 w = {{0}}> {{
  a = QuantizeLinear(x, s, z) c = DequantizeLinear(a, s, z)
  d = QuantizeLinear(c, t, w) y = DequantizeLinear(d, t, w) }}"""

_ONE = "float one = {1}, float other = {1}, float z = {0}"
_FOLDED = f"""{_HEAD} g (float[b,4] x) => (float[b,4] y) <{_ONE}> {{
  m = PASS f = Div(one, other) w = Mul(m, f) y = Add(w, z) }}"""

WIDENED = f"""{_HEAD} g (float[b,3,1] x) => (float[b,3,2] y)
<float two = {{2}}, float e = {{0.5}}, float[2] k = {{1, 2}}> {{
  m = ReduceMean<axes = [-1]>(x) d = Sub(x, m) q = Pow(d, two)
  v = ReduceMean<axes = [-1]>(q) w = Add(v, e) s = Sqrt(w) n = Div(d, s)
  o = Mul(n, k) y = Add(o, k) }}"""

WIDENED_BY_SCALE = f"""{_HEAD} g (float[b,1] x) => (float[b,2] y)
<float two = {{2}}, float e = {{0.5}}, float[2] k = {{1, 2}}> {{
  q = Pow(x, two) v = ReduceMean<axes = [-1]>(q) w = Add(v, e) s = Sqrt(w) n = Div(x, s)
  y = Mul(n, k) }}"""

CLIPPED_DOUBLE = f"""{_HEAD} g (double[b,4] x) => (double[b,4] y)
<double low = {{-1}}, double high = {{1}}> {{ r = Relu(x) y = Clip(r, low, high) }}"""

# Wrong in an older release alone.
TURNED = f"""{_HEAD} g (float[4,4] x) => (float[4,4] y)
<float[4,4] w = {{1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7}}, float[4] k = {{1, 2, 3, 4}}> {{
  t = Transpose<perm = [0, 1]>(x) y = Gemm(t, w, k) }}"""

GATED_DOUBLE = f"""{_HEAD} g (double[b,4] x) => (double[b,4] y) <double a = {{1.702}}> {{
  s = Mul(x, a) g = Sigmoid(s) y = Mul(x, g) }}"""

SIGNED = """<ir_version: 10, opset_import: ["": 21]> g (int8[4,4] x) => (float[16] y)
<float s = {0.5}, int64[1] t = {16}> {
  n = Neg(x) d = DequantizeLinear(n, s) r = Reshape(d, t) y = Neg(r) }"""

POOLED_BEYOND = f"""{_HEAD} g (float[1,1,4,4] x) => (float[1,1,3,3] y)
<int64[8] p = {{0, 0, 1, 1, 0, 0, 0, 0}}> {{ c = Pad(x, p)
  y = AveragePool<kernel_shape = [2, 2], strides = [2, 2], ceil_mode = 1>(c) }}"""

ADDED_BEFORE = f"""{_HEAD} g (float[2,3,4] x, float[2,3,4] z) => (float[2,3,4] y)
<float[3,4] k = {{1, 2, 3, 4, 1, 2, 3, 4, 5, 6, 7, 8}}> {{
  b = Add(x, z) y = LayerNormalization<axis = 1>(b, k, k) }}"""

WRONG = {
    "zeros before MaxPool": (POOLED, ("Pad_Fusion",)),
    "zeros before a dilated MaxPool": (DILATED, ("Pad_Fusion",)),
    "the same in a body": (IN_A_BODY, ("Pad_Fusion",)),
    "a layer norm by another power": (NORMALIZED, ("LayerNormFusionL1",)),
    "a layer norm with an epsilon a row": (
        NORMALIZED_BY_ROW,
        ("LayerNormFusionL1", "SimplifiedLayerNormFusion"),
    ),
    "a layer norm upside down": (NORMALIZED_UPSIDE_DOWN, ("LayerNormFusionL1",)),
    "an RMS norm in float64": (DOUBLE, ("SimplifiedLayerNormFusion",)),
    "an RMS norm with an epsilon a row": (SCALED_BY_ROW, ("SimplifiedLayerNormFusion",)),
    "a quotient of integers": (QUOTIENT, ("DivMulFusion",)),
    "a quotient of more axes": (QUOTIENT_OF_MORE_AXES, ("DivMulFusion",)),
    "two Q/DQ pairs of other steps": (TWO_PAIRS, ("DoubleQDQPairsRemover",)),
}
"""What it is -> a model that answers otherwise with the optimizers of these names than without."""

UNLOADABLE = {
    "a Clip to below zero": (CLIPPED, ("FuseReluClip",)),
    "zeros beyond the kernel": (PADDED_FAR, ("Pad_Fusion",)),
    "a Clip of float64": (CLIPPED_DOUBLE, ("FuseReluClip",)),
    **{
        f"{node} before a folded one": (_FOLDED.replace("PASS", node), (name,))
        for node, name in (
            ("Identity(x)", "EliminateIdentity"),
            ("Dropout(x)", "EliminateDropout"),
            ("Cast<to = 1>(x)", "CastElimination"),
        )
    },
}
"""What it is -> a model that the optimizers of these names keep from loading."""

FAILING = {
    "a layer norm that its scale widens": (
        WIDENED,
        ("LayerNormFusionL1", "SimplifiedLayerNormFusion"),
    ),
    "an RMS norm that its scale widens": (WIDENED_BY_SCALE, ("SimplifiedLayerNormFusion",)),
}
"""What it is -> a model that loads with the optimizers of these names, and does not run."""

FORMERLY = {
    "a Transpose that does nothing before Gemm": TURNED,
    "a gate of float64": GATED_DOUBLE,
    "int8 without a zero point": SIGNED,
    "zeros before an AveragePool that rounds up": POOLED_BEYOND,
    "a sum before a norm of two axes": ADDED_BEFORE,
}
"""What it is -> a model that an older release than the installed one makes wrong."""
