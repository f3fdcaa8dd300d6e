"""A residual sum and its norm as one operator, compared on the CPU provider's kernels."""

import pytest
from tests.unit.rewriting import becomes, model_of, normal, transformed

from ortune.backends.cpu import Cpu
from ortune.backends.openvino import Openvino
from ortune.core.capabilities import Capabilities
from ortune.graph.ir.edit import take_notes
from ortune.transforms.fuse_skip_layer_norm import FuseSkipLayerNorm

STEP = FuseSkipLayerNorm()
FEEDS = [{"x": normal(b, s, 4), "z": normal(b, s, 4, seed=1) * 9} for b, s in ((2, 3), (1, 1))]
LAYER = "y = LayerNormalization<epsilon = 0.001>(t, scale, shift)"
RMS = "y = RMSNormalization<epsilon = 0.001>(t, scale)"


def text(body: str, *, shape: str = "b, s, 4", second: str = "b, s, 4", more: str = "") -> str:
    return f"""<ir_version: 10, opset_import: ["": 23]>
        g (float[{shape}] x, float[{second}] z) => (float[{shape}] y{more})
        <float[4] scale = {{1, 2, 3, 4}}, float[4] shift = {{4, 3, 2, 1}},
         float[4] bias = {{0.5, 1, 1.5, 2}}> {{ {body} }}"""


@pytest.mark.parametrize(
    ("norm", "op"), [(LAYER, "SkipLayerNormalization"), (RMS, "SkipSimplifiedLayerNormalization")]
)
@pytest.mark.parametrize(
    "sums", ["t = Add(x, z)", "u = Add(x, bias) t = Add(u, z)", "u = Add(bias, z) t = Add(x, u)"]
)
def test_sums(sums: str, norm: str, op: str) -> None:
    model = becomes({op: 1}, text(f"{sums} {norm}"), STEP, FEEDS, tolerance=1e-5)
    assert model.opset_imports["com.microsoft"] == 1


@pytest.mark.parametrize("norm", [LAYER, RMS])
def test_a_sum_that_is_read_elsewhere_is_an_output(norm: str) -> None:
    source = text(f"t = Add(x, z) w = Neg(t) {norm}", more=", float[b, s, 4] w, float[b, s, 4] t")
    model, count = transformed(source, STEP, FEEDS, tolerance=1e-5)
    assert count == 1 and len(model.graph) == 2


def test_a_norm_without_a_shift() -> None:
    body = "t = Add(x, z) y = LayerNormalization(t, scale)"
    becomes({"SkipLayerNormalization": 1}, text(body), STEP, FEEDS, tolerance=1e-5)


@pytest.mark.parametrize(
    ("source", "why"),
    [
        (text(f"t = Add(x, z) {LAYER}", second="1, s, 4"), "same shape"),
        (text(f"t = Add(x, z) {LAYER}", shape="a, b, s, 4", second="a, b, s, 4"), "rank 2 or 3"),
        (text("t = Add(x, z) c = Neg(scale) y = LayerNormalization(t, c)"), "not constant"),
        (text("t = Add(x, z) y, m = LayerNormalization(t, scale) n = Neg(m)"), ""),
    ],
)
def test_refusals_have_a_reason(source: str, why: str) -> None:
    model = model_of(source)
    if why:
        assert STEP.apply(model) == 0 and why in take_notes(model)


def test_the_cpu_provider_loses_by_it() -> None:
    assert (
        not STEP.automatic
        and not STEP.suits(Cpu(), Capabilities())
        and not STEP.suits(Openvino(), Capabilities())
    )
