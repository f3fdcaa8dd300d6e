"""float8 pairs: the arithmetic, stored weights, and the error that the format makes one expect."""

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator
from tests.unit.quantizing import model_of, normal, ops, quantize, run, snr, unchecked

from ortune.backends.cpu import Cpu
from ortune.core.backend import Backend
from ortune.core.capabilities import Capabilities
from ortune.core.errors import BadSettings, Refused
from ortune.core.facts import Facts
from ortune.graph.analysis.facts import read_facts
from ortune.graph.ir import edit
from ortune.quantizers.fp8 import Fp8, compute_weight_steps, to_float8

TEXT = """<ir_version: 9, opset_import: ["": 19]> g (float[n,32] x) => (float[n,32] y) {
  a = MatMul(x, w)
  r = Relu(a)
  z = Gemm<transB = 1>(r, v, c)
  y = Add(z, x)
}"""


def network(scale: float = 1.0) -> ir.Model:
    uneven = np.logspace(-3, 3, 64, dtype=np.float32) * np.float32(scale)
    held = {"w": normal(32, 64) * uneven, "v": normal(32, 64, seed=1) / uneven, "c": normal(32)}
    return model_of(TEXT, held)


FEED = {"x": normal(64, 32)}


def reference(model: ir.Model) -> np.ndarray:
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    return np.asarray(ReferenceEvaluator(proto).run(None, FEED)[0])


def test_weights_are_stored_in_float8_and_activations_pass_a_pair() -> None:
    model = network()
    assert quantize(model, Fp8(), [FEED]) == 2
    assert ops(model).count("QuantizeLinear") == 2
    assert ops(model).count("DequantizeLinear") == 4
    held = {str(v.name): v.dtype for v in model.graph.initializers.values()}
    assert held["w_float8"] == held["v_float8"] == ir.DataType.FLOAT8E4M3FN
    assert held["c"] == ir.DataType.FLOAT
    assert "w" not in held
    made = next(
        n for n in model.graph if n.inputs[0] is not None and n.inputs[0].name == "v_float8"
    )
    assert edit.read_attribute(made, "axis", None) == 0


def test_the_error_is_that_of_a_4_bit_significand() -> None:
    """Rounding to 4 bits leaves about 31 dB; two factors and two layers take 6 of them."""
    model = model_of(TEXT, {"w": normal(32, 64), "v": normal(32, 64, seed=1), "c": normal(32)})
    before = run(model, FEED)[0]
    quantize(model, Fp8(), [FEED])
    assert 22 < snr(before, reference(model)) < 32


def test_one_step_a_channel_keeps_small_channels() -> None:
    """float8's own exponent does much of what channels do for integers, and not all of it."""
    before = run(network(), FEED)[0]
    found = {}
    for each in (True, False):
        model = network()
        quantize(model, Fp8(per_channel=each), [FEED])
        found[each] = snr(before, reference(model))
    assert found[True] > found[False] + 1


def test_the_cpu_provider_agrees_with_the_reference_at_level_basic() -> None:
    model = network()
    quantize(model, Fp8(), [FEED])
    assert snr(reference(model), unchecked(model, FEED, "ENABLE_BASIC")[0]) > 60


def test_rounding_is_that_of_quantize_linear() -> None:
    array = np.array([[500, -448, 0.1, 26.9], [1, 2, 3, 1e-6]], np.float32)
    for axis in (None, 0, 1):
        steps = compute_weight_steps(array, axis)
        model = model_of(
            """<ir_version: 9, opset_import: ["": 19]>
            g (float[2,4] x) => (float8e4m3fn[2,4] y) { y = QuantizeLinear<axis = AT>(x, s, z) }
            """.replace("AT", str(axis or 0)),
            {"s": steps, "z": np.zeros(steps.shape, ml_dtypes.float8_e4m3fn)},
        )
        expected = ReferenceEvaluator(ir.to_proto(model)).run(None, {"x": array})[0]
        ours = to_float8(array, steps, axis or 0)
        assert np.array_equal(np.asarray(expected).astype(np.float32), ours.astype(np.float32))


@pytest.mark.parametrize(
    ("op", "weight", "taken"),
    [
        ("Conv", (32, 32, 3, 3), True),
        ("Conv", (32, 16, 3, 3), False),
        ("Conv", (32, 32, 6, 6), False),
        ("MatMul", (32, 16), True),
        ("MatMul", (32, 15), False),
    ],
)
def test_layers_that_float8_kernels_do_not_take(
    op: str, weight: tuple[int, ...], taken: bool
) -> None:
    shape = f"1,{weight[1]},8,8" if op == "Conv" else f"1,{weight[0]}"
    text = f"""<ir_version: 9, opset_import: ["": 19]>
    g (float[{shape}] x) => (float y) {{ y = {op}(x, w) }}""".replace("float y", "float[d0] y")
    rank = "a,b,c,d" if op == "Conv" else "a,b"
    model = model_of(text.replace("[d0]", f"[{rank}]"), {"w": normal(*weight)})
    assert bool(Fp8().probes(model)) is taken
    if not taken:
        with pytest.raises(Refused, match="large enough"):
            Fp8().apply(model, {})


def test_excluded_layers_and_shared_activations() -> None:
    text = """<ir_version: 9, opset_import: ["": 19]> g (float[n,32] x) => (float[n,32] y) {
      a = MatMul(x, w) b = MatMul(x, v) y = Add(a, b)
    }"""
    model = model_of(text, {"w": normal(32, 32), "v": normal(32, 32, seed=1)})
    for node in model.graph:
        node.name = f"at_{node.outputs[0].name}"
    both = model.clone()
    assert quantize(both, Fp8(), [FEED]) == 2
    assert ops(both).count("QuantizeLinear") == 1
    assert quantize(model, Fp8(exclude=("at_b",)), [FEED]) == 1
    with pytest.raises(BadSettings, match="matches no node"):
        Fp8(exclude=("nowhere",)).probes(model)


def test_offered_where_float8_is_faster_and_there_alone() -> None:
    class Gpu(Cpu):
        @property
        def arithmetic(self) -> frozenset[str]:
            return frozenset({"fp8"})

    def offered(backend: Backend) -> list[Fp8]:
        found: Facts = read_facts(network())
        return list(Fp8.offers(found, backend, Capabilities()))

    assert offered(Gpu()) == [Fp8()]
    assert offered(Cpu()) == []
