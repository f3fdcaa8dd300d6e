"""Target `model`: files of every kind to what loads, inspects, compares and makes samples up."""

from __future__ import annotations

import math
import zlib
from functools import cache
from pathlib import Path
from random import Random

import onnx
from hypothesis import HealthCheck, Phase, given, seed, settings
from onnx import TensorProto

from ortune.core.facts import TensorSpec
from ortune.data import synthetic
from ortune.graph.io import file
from ortune.graph.ir import edit
from tests import graphs
from tests.fuzz import model_cases, mutate, wire
from tests.fuzz.answers import answer
from tests.fuzz.target import Case, Target

FIXTURES = Path(__file__).parents[1] / "fixtures" / "before_rooms"
_FEW, _MANY = 1 << 24, 1 << 36
"""Elements of an input: fewer fit everywhere, more nowhere."""
_LARGEST = 64_000
"""Bytes of a file that others are made from: what is large is slow, not odd."""

_BODIES = """<ir_version: 8, opset_import: ["": 17, "local": 1]>
g (float[N,4] x, bool c, int64 n) => (float[N,4] y, float[N,4] z) <float[4] w = {1,2,3,4}> {
  a = local.twice <alpha = 2.0> (x)
  b = If (c) <then_branch = t () => (float[N,4] t) { t = Add(a, w) },
              else_branch = e () => (float[N,4] e) { e = Mul(x, w) }>
  y, s = Loop (n, c, b) <body = l (int64 i, bool k, float[N,4] p)
    => (bool q, float[N,4] r, float[N,4] o) { q = Identity(k) r = Relu(p) o = Identity(r) }>
  z = Identity(b)
}
<domain: "local", opset_import: ["": 17]>
twice <alpha: float = 1.0> (p) => (q) {
  k = Constant <value_float: float = @alpha> ()
  q = Mul(p, k)
}
"""
_QUANTIZED = """<ir_version: 8, opset_import: ["": 17]>
g (float[1,3,8,8] x) => (float[1,4,8,8] y) <float s = {0.1}, uint8 z = {128}, float t = {0.02},
  int8 o = {0}, int8[4,3,1,1] w = {1,2,3,4,5,6,7,8,9,10,11,12}, int64[4] p = {1,4,8,8}> {
  q = QuantizeLinear(x, s, z)
  d = DequantizeLinear(q, s, z)
  v = DequantizeLinear(w, t, o)
  c = Conv <kernel_shape = [1,1]> (d, v)
  y = Reshape(c, p)
}
"""


@cache
def seeds() -> tuple[bytes, ...]:
    """Return models that are whole: of the tests, of a grammar, and with bodies and integers."""
    found = [path.read_bytes() for path in sorted(FIXTURES.rglob("*.onnx"))]
    found += [onnx.parser.parse_model(text).SerializeToString() for text in (_BODIES, _QUANTIZED)]
    found += [one.SerializeToString() for one in _drawn()]
    return tuple({one: None for one in found if len(one) <= _LARGEST})


def _drawn(count: int = 24) -> list[onnx.ModelProto]:
    found: list[onnx.ModelProto] = []

    @seed(16)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(graphs.models())
    def collect(model: onnx.ModelProto) -> None:
        found.append(model)

    collect()
    return found


def draw(rng: Random) -> Case:
    """Change a whole model: mostly by fields, sometimes by bytes, or move its weights out."""
    data = rng.choice(seeds())
    kind = rng.randrange(10)
    if kind < 7:
        return Case("fields changed", {"model.onnx": wire.change(rng, data)})
    if kind == 7:
        return Case("bytes changed", {"model.onnx": mutate.raw(rng, data)})
    if kind == 8:
        return Case("both", {"model.onnx": mutate.raw(rng, wire.change(rng, data))})
    return _external(rng, data)


def _external(rng: Random, data: bytes) -> Case:
    """Weights in a file beside it, at places that may lie outside of it."""
    model = onnx.ModelProto.FromString(data)
    weights = bytearray()
    for tensor in model.graph.initializer:
        if not tensor.raw_data:
            continue
        length = len(tensor.raw_data)
        offset = rng.choice((len(weights), len(weights), -1, -length, 2**40, 2**63, "x", ""))
        size = rng.choice((length, length, length - 1, -1, 2**40, "", "nan"))
        weights += tensor.raw_data
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        place = rng.choice(
            ("w.bin", "w.bin", "w.bin", "./w.bin", "../w.bin", "", ".", "a\0b", "/w")
        )
        for key, value in (("location", place), ("offset", offset), ("length", size)):
            if rng.random() < 0.9:
                tensor.external_data.add(key=key, value=str(value))
        if rng.random() < 0.1:
            tensor.dims[:] = [rng.choice((-1, 0, 2**31, 2**62)) for _ in tensor.dims]
    kept = weights[: rng.choice((len(weights), len(weights), len(weights) // 2, 0))]
    return Case(
        "weights moved out", {"model.onnx": model.SerializeToString(), "w.bin": bytes(kept)}
    )


def read(case: Case, folder: Path) -> None:
    """Inspect the file; compare it with itself and make samples up where it loads."""
    given_path = str(folder / "model.onnx")
    answer(["inspect", given_path])
    if zlib.crc32(case.files["model.onnx"]) % 3 == 0:
        answer(["diff", given_path, given_path])
    inputs = edit.list_inputs(file.load(given_path))
    if any(_FEW < _elements(one) < _MANY for one in inputs):
        return  # made-up samples are as large as they are asked for
    synthetic.generate_feeds(inputs, folder / "made", shapes={}, ranges={}, count=1)


def _elements(one: TensorSpec) -> int:
    """Return about how many elements a made-up sample has; a free dimension counts as 64."""
    return math.prod(dim if isinstance(dim, int) else 64 for dim in one.shape or ())


TARGET = Target("model", lambda: model_cases.CASES, draw, read)
