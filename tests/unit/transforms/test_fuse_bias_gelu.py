"""A bias and GELU as one operator, compared on the CPU provider's kernels."""

import pytest
from tests.unit.rewriting import becomes, left_alone, model_of, normal

from ortune.backends.cpu import Cpu
from ortune.core.capabilities import Capabilities
from ortune.transforms.fuse_bias_gelu import FuseBiasGelu

STEP = FuseBiasGelu()
FEEDS = [{"x": normal(2, 3, 4) * 3}, {"x": normal(1, 1, 4)}]


def text(body: str, *, dim: str = "4", kind: str = "float") -> str:
    return f"""<ir_version: 10, opset_import: ["": 20]>
        g ({kind}[b, s, {dim}] x) => ({kind}[b, s, {dim}] y)
        <{kind}[4] bias = {{1, 2, 3, 4}}> {{ {body} }}"""


@pytest.mark.parametrize(
    ("body", "op"),
    [
        ("t = Add(x, bias) y = Gelu(t)", "BiasGelu"),
        ("t = Add(bias, x) y = Gelu(t)", "BiasGelu"),
        ('t = Add(x, bias) y = Gelu<approximate = "tanh">(t)', "FastGelu"),
    ],
)
def test_both_definitions(body: str, op: str) -> None:
    becomes({op: 1}, text(body), STEP, FEEDS, tolerance=1e-5)


@pytest.mark.parametrize(
    ("source", "why"),
    [
        (text("t = Add(x, bias) y = Gelu(t)", dim="d"), "as long as"),
        (text("t = Add(x, bias) y = Gelu(t)", kind="double"), "float64"),
    ],
)
def test_refusals_have_a_reason(source: str, why: str) -> None:
    left_alone(source, STEP, why)


def test_a_sum_of_two_values_is_no_bias() -> None:
    model = model_of(text("z = Neg(x) t = Add(x, z) y = Gelu(t)"))
    assert STEP.apply(model) == 0 and not STEP.suits(Cpu(), Capabilities())
