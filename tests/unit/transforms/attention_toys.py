"""Attention in its parts, as ONNX text: the spellings of exporters and of people."""

import numpy as np
from numpy.typing import NDArray
from tests.unit.rewriting import normal

COUNT, SIZE = 2, 4
WIDTH = COUNT * SIZE

CONSTANTS = {
    "split": "int64[4] split = {0,0,2,4}",
    "split5": "int64[5] split5 = {0,0,3,2,4}",
    "merge": "int64[3] merge = {0,0,8}",
    "rows": "int64[2] rows = {-1,8}",
    "quarter": "float quarter = {0.25}",
    "four": "float four = {4.0}",
    "half": "float half = {0.5}",
    "negative": "float negative = {-0.5}",
    "one": "float one = {1.0}",
    "zero": "float zero = {0.0}",
    "ones": "float[1] ones = {1.0}",
    "lowest": "float lowest = {-3.4028234663852886e38}",
    "tenthousand": "float tenthousand = {-10000.0}",
    "nine": "float nine = {-0.9}",
    "ax0": "int64[1] ax0 = {0}",
    "ax1": "int64[1] ax1 = {1}",
    "ax2": "int64[1] ax2 = {2}",
    "ax3": "int64[1] ax3 = {3}",
    "ax12": "int64[2] ax12 = {1,2}",
    "two": "int64[1] two = {2}",
    "end": "int64[1] end = {9223372036854775807}",
    "minus": "int64[1] minus = {-1}",
    "d4": "int64[1] d4 = {4}",
    "i0": "int64 i0 = {0}",
    "i1": "int64 i1 = {1}",
    "i2": "int64 i2 = {2}",
    "three": "int64[3] three = {1,1,1}",
    "spread": "int64[5] spread = {1,1,2,1,1}",
    "few": "int64[4] few = {0,0,1,4}",
    "many": "int64[4] many = {0,2,-1,4}",
    "rate": "float[2] rate = {1.0, 0.01}",
}
Q = "q4 = Reshape(q, split) q5 = Transpose<perm = [0,2,1,3]>(q4) "
V = "v4 = Reshape(v, split) vh = Transpose<perm = [0,2,1,3]>(v4) "
K = "k4 = Reshape(k, split) kt = Transpose<perm = [0,2,3,1]>(k4) "
K_TWICE = (
    "k4 = Reshape(k, split) kh = Transpose<perm = [0,2,1,3]>(k4)"
    " kt = Transpose<perm = [0,1,3,2]>(kh) "
)
K_FLAT = (
    "k4 = Reshape(k, split) kh = Transpose<perm = [0,2,1,3]>(k4) ks = Shape(kh)"
    " kl = Slice(ks, ax2, ax3) kf = Concat<axis = 0>(minus, kl, d4) k3 = Reshape(kh, kf)"
    " kr = Transpose<perm = [0,2,1]>(k3) kb = Slice(ks, ax0, ax2)"
    " kd = Concat<axis = 0>(kb, d4, kl) kt = Reshape(kr, kd) "
)
PACKED = (
    "p5 = Reshape(p, split5) pt = Transpose<perm = [2,0,3,1,4]>(p5)"
    " qs, ks, vs = Split<axis = 0>(pt, three) q5 = Squeeze(qs, ax0) kh = Squeeze(ks, ax0)"
    " vh = Squeeze(vs, ax0) kt = Transpose<perm = [0,1,3,2]>(kh) "
)
GATHERED = (
    "p5 = Reshape(p, split5) pt = Transpose<perm = [2,0,3,1,4]>(p5)"
    " q5 = Gather<axis = 0>(pt, i0) kh = Gather<axis = 0>(pt, i1) vh = Gather<axis = 0>(pt, i2)"
    " kt = Transpose<perm = [0,1,3,2]>(kh) "
)
S = "s = MatMul(q5, kt) "
P = "r = Softmax<axis = -1>(s) "
GUARD = "t = IsNaN(r) g = Where(t, zero, r) "
OUT = "o = MatMul(r, vh) "
MERGE = "ot = Transpose<perm = [0,2,1,3]>(o) y = Reshape(ot, merge) "
INPUTS = "float[b,s,8] q, float[b,t,8] k, float[b,t,8] v"


def text(body: str, inputs: str = INPUTS, outputs: str = "float[b,s,8] y", opset: int = 23) -> str:
    """Return a model with the constants that the body reads."""
    words = set(body.replace("(", " ").replace(")", " ").replace(",", " ").split())
    held = ", ".join(line for name, line in CONSTANTS.items() if name in words)
    head = f'<ir_version: 10, opset_import: ["": {opset}]> g ({inputs}) => ({outputs})'
    return f"{head} <{held}> {{ {body} }}"


def qkv(batch: int, queries: int, keys: int, seed: int = 0) -> dict[str, NDArray[np.float32]]:
    """Return feeds of the three inputs, large enough that rows differ."""
    rows = {"q": queries, "k": keys, "v": keys}
    return {n: normal(batch, rows[n], WIDTH, seed=seed + i) * 2 for i, n in enumerate(rows)}
