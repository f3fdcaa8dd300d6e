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
}
"""What it is -> a model that answers otherwise with the optimizers of these names than without."""

UNLOADABLE = {
    "a Clip to below zero": (CLIPPED, ("FuseReluClip",)),
    "zeros beyond the kernel": (PADDED_FAR, ("Pad_Fusion",)),
}
"""What it is -> a model that the optimizers of these names keep from loading."""
