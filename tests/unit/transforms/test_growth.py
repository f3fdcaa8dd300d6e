"""Constants whose size a few bytes of a model decide: what would be too large is not made."""

import numpy as np
import onnx_ir as ir
import pytest
from tests.unit.rewriting import model_of

from ortune.core.step import Transform
from ortune.graph.ir import edit
from ortune.transforms.fuse_layer_norm import FuseLayerNorm
from ortune.transforms.merge_arithmetic import MergeArithmetic
from ortune.transforms.split_conv_transpose import SplitConvTranspose
from ortune.transforms.widen_groups import WidenGroups

_MANY = 1 << 20
_HEAD = '<ir_version: 8, opset_import: ["": 17]>'
_PHASES = f"""{_HEAD} g (float[1, 1, 4, 4] x, float[1, 1, 2, 2] a) => (float[n, 1, h, w] y)
    {{ y = ConvTranspose<strides = [S, S], dilations = [D, D]>(x, a) }}"""
_NORM = f"""{_HEAD} g (float[1, {_MANY << 20}] x) => (float[n, m] y) <float e = {{0.00001}}>
    {{ m = ReduceMean<axes = [-1]>(x) d = Sub(x, m) q = Mul(d, d) v = ReduceMean<axes = [-1]>(q)
       w = Add(v, e) s = Sqrt(w) y = Div(d, s) }}"""
_PAIR = f"float[{_MANY}, 1] a, float[1, {_MANY}] b"
_TABLE = f"{_HEAD} g (float[1, 1] x, {_PAIR}) => (float[n, m] y)"
_GROUPS = f"""{_HEAD} g (float[1, 65537, 4, 4] x, float[131074, 1, 1, 1] a) => (float[n, m] y)
    {{ c = Conv<group = 65537>(x, a) y = Flatten(c) }}"""


@pytest.mark.parametrize(
    ("step", "source", "note", "count"),
    [
        (
            SplitConvTranspose(),
            _PHASES.replace("S", f"{_MANY << 11}").replace("D", "1"),
            "times",
            0,
        ),
        (SplitConvTranspose(), _PHASES.replace("S", "2").replace("D", f"{_MANY}"), "times", 0),
        (FuseLayerNorm(), _NORM, "too large", 0),
        (MergeArithmetic(), _TABLE + "{ t = Mul(x, a) y = Mul(t, b) }", "", 0),
        (MergeArithmetic(), _TABLE + "{ t = Add(x, a) y = Add(t, b) }", "", 0),
        (MergeArithmetic(), _TABLE + "{ t = Mul(x, a) u = Add(t, b) y = Neg(u) }", "", 0),
        (WidenGroups(), _GROUPS, "65537", 0),
    ],
)
def test_what_would_be_too_large_is_left_alone(
    step: Transform, source: str, note: str, count: int
) -> None:
    """Each would take 1 TB or more; made, it would end in MemoryError."""
    model = model_of(source)
    for value in list(model.graph.inputs)[1:]:
        shape = [int(size) for size in value.shape or ()]
        value.const_value = ir.tensor(np.full(shape, 2, np.float32), name=value.name)
        model.graph.inputs.remove(value)
        model.graph.register_initializer(value)
    assert step.apply(model) == count
    assert note in edit.take_notes(model)
    assert sum(tensor.nbytes for _, tensor in edit.list_named_weights(model)) <= 9 * _MANY
