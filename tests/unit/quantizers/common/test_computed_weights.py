"""Weights that the graph puts together from constants, in branches too."""

import numpy as np
import onnx_ir as ir
import pytest
from tests.unit.quantizing import model_of, normal, quantize, run, snr

from ortune.core.errors import Refused
from ortune.core.plugins.spelling import parse_plugin
from ortune.core.step import Quantizer, Transform
from ortune.quantizers.common.layers import evaluate_constant
from ortune.quantizers.int8_dynamic import Int8Dynamic

GATES = """
  {p}low = Slice(gates, {p}zero, {p}half)
  {p}high = Slice(gates, {p}half, {p}end)
  {p}joined = Concat<axis = 0>({p}high, {p}low)
  {p}w = Unsqueeze({p}joined, {p}zero)
  {p}y, {p}h, {p}c = LSTM<hidden_size = 16>(a, {p}w, recurrent)
  {p}out = Squeeze({p}y, {p}one)
"""
CONSTANTS = """
  {p}zero = Constant<value = int64[1] {{0}}>()
  {p}half = Constant<value = int64[1] {{32}}>()
  {p}end = Constant<value = int64[1] {{64}}>()
  {p}one = Constant<value = int64[1] {{1}}>()
"""


def branch(prefix: str) -> str:
    return (CONSTANTS + GATES).format(p=prefix)


def model() -> ir.Model:
    return model_of(
        f"""g (float[s,1,16] x, bool c) => (float[s,1,16] y) {{
          a = Neg(x)
          y = If(c) <
            then_branch = t () => (float[s,1,16] t_out) {{ {branch("t_")} }},
            else_branch = e () => (float[s,1,16] e_out) {{ {branch("e_")} }}>
        }}""",
        {"gates": normal(64, 16, scale=0.3), "recurrent": normal(1, 64, 16, seed=1, scale=0.3)},
    )


@pytest.mark.parametrize("taken", [True, False])
def test_recurrent_layers_of_branches_share_their_integers(taken: bool) -> None:
    made, feed = model(), {"x": normal(5, 1, 16), "c": np.array(taken)}
    before = run(made, feed)[0]
    assert quantize(made, Int8Dynamic(reduce_range=True)) == 2
    proto = ir.to_proto(made)
    after = _run(proto, feed)
    assert 25 < snr(before, after) < 60
    big = [t for t in proto.graph.initializer if np.prod(t.dims) >= 64 * 16]
    assert [t.data_type for t in big] == [3, 3], "one pair of gates, int8"
    kinds = {n.op_type for n in made.graph.all_nodes()}
    assert not {"Slice", "Concat", "LSTM"} & kinds


def _run(proto: object, feed: dict[str, np.ndarray]) -> np.ndarray:
    import onnxruntime as ort

    session = ort.InferenceSession(proto.SerializeToString())  # type: ignore[attr-defined]
    return np.asarray(session.run(None, feed)[0])


def test_what_depends_on_an_input_is_no_weight() -> None:
    made = model_of(
        """g (float[4,4] x) => (float[4,8] y, float[8,4] z) {
          y = Concat<axis = 1>(x, held)
          both = Concat<axis = 1>(held, held)
          z = Transpose(both)
        }""",
        {"held": normal(4, 4)},
    )
    values = {v.name: v for node in made.graph for v in node.outputs}
    assert evaluate_constant(values["y"], 17) is None
    found = evaluate_constant(values["z"], 17)
    assert found is not None
    assert np.array_equal(found, np.hstack([normal(4, 4)] * 2).T)


@pytest.mark.parametrize("name", ["int8-dynamic", "int8-weights", "int4-weights"])
def test_weights_of_another_type_behind_a_cast_take_simplify_first(name: str) -> None:
    half = normal(64, 64, scale=0.3).astype(np.float16)
    made = model_of(
        """g (float[s,64] x) => (float[s,64] y) { w = Cast<to = 1>(half) y = MatMul(x, w) }""",
        {"half": half},
    )
    step = parse_plugin(Quantizer, name)
    with pytest.raises(Refused) as refused:
        quantize(made, step)
    assert "apply simplify first" in refused.value.fix
    parse_plugin(Transform, "simplify").apply(made)
    assert quantize(made, step) > 0
