"""Mish as a quotient of exponentials."""

import numpy as np
import pytest
from tests.unit.rewriting import becomes, left_alone, model_of, normal, run

from ortune.backends.cpu import Cpu
from ortune.backends.openvino import Openvino
from ortune.core.capabilities import Capabilities
from ortune.transforms.expand_mish import ExpandMish

STEP = ExpandMish()
FEEDS = [
    {"x": normal(2, 5) * 5},
    {"x": np.array([[-80, -20, 0, 44, 1e30]], np.float32)},
    {"x": normal(0, 5)},
]
WRITTEN = {"Min": 1, "Exp": 1, "Add": 2, "Mul": 2, "Div": 1}


def text(body: str, *, opset: int = 18, kind: str = "float", more: str = "") -> str:
    return f"""<ir_version: 8, opset_import: ["": {opset}]>
        g ({kind}[n, 5] x) => ({kind}[n, 5] y{more}) {{ {body} }}"""


@pytest.mark.parametrize(
    ("body", "opset"),
    [
        ("y = Mish(x)", 18),
        ("s = Softplus(x) t = Tanh(s) y = Mul(x, t)", 9),
        ("s = Softplus(x) t = Tanh(s) y = Mul(t, x)", 17),
    ],
)
def test_both_forms(body: str, opset: int) -> None:
    model = becomes(WRITTEN, text(body, opset=opset), STEP, FEEDS, may_grow=True)
    assert list(model.graph)[-1].outputs[0].name == "y"


def test_it_is_as_exact_far_below_zero() -> None:
    model = model_of(text("y = Mish(x)"))
    STEP.apply(model)
    x = np.array([[-30, -17, -5, 3, 25]], np.float32)
    wanted = x * np.tanh(np.log1p(np.exp(x.astype(np.float64))))
    np.testing.assert_allclose(run(model, {"x": x})[0], wanted, rtol=1e-6)


@pytest.mark.parametrize(
    ("body", "more", "why"),
    [
        ("s = Softplus(x) t = Tanh(s) y = Mul(x, t)", ", float[n, 5] s", "read elsewhere"),
        ("s = Softplus(x) t = Tanh(s) y = Neg(t)", "", ""),
        ("t = Tanh(x) y = Mul(x, t)", "", ""),
    ],
)
def test_left_alone(body: str, more: str, why: str) -> None:
    left_alone(text(body, more=more), STEP, why)


def test_only_where_it_was_measured_to_gain() -> None:
    assert STEP.suits(Cpu(), Capabilities()) and not STEP.suits(Openvino(), Capabilities())
