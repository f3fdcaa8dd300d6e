"""LeakyRelu in its other spellings, and what is none."""

import numpy as np
import pytest
from tests.unit.rewriting import becomes, left_alone, normal

from ortune.transforms.fuse_leaky_relu import FuseLeakyRelu

STEP = FuseLeakyRelu()
FEEDS = [{"x": normal(2, 5) * 9}, {"x": np.array([[-1e9, -0.0, 0, 6, 1e9]], np.float32)}]


def text(body: str, *, kind: str = "float", more: str = "") -> str:
    return f"""<ir_version: 8, opset_import: ["": 16]>
        g ({kind}[n, 5] x) => ({kind}[n, 5] y{more})
        <{kind}[1] a = {{0.2}}, {kind} zero = {{0}}, {kind} big = {{1.5}}, {kind} minus = {{-0.5}},
         {kind}[5] many = {{0, 1, 2, 3, 4}}> {{ {body} }}"""


@pytest.mark.parametrize(
    "body",
    [
        "y = PRelu(x, a)",
        "y = PRelu(x, big)",
        "y = PRelu(x, minus)",
        "m = Mul(x, a) y = Max(x, m)",
        "m = Mul(a, x) y = Max(m, x)",
        "c = Less(x, zero) m = Mul(x, a) y = Where(c, m, x)",
        "c = LessOrEqual(x, zero) m = Mul(x, big) y = Where(c, m, x)",
        "c = Greater(x, zero) m = Mul(minus, x) y = Where(c, x, m)",
        "c = GreaterOrEqual(x, zero) m = Div(x, big) y = Where(c, x, m)",
    ],
)
def test_spellings(body: str) -> None:
    becomes({"LeakyRelu": 1}, text(body), STEP, FEEDS)


@pytest.mark.parametrize(
    "body",
    [
        "y = PRelu(x, many)",
        "m = Mul(x, big) y = Max(x, m)",
        "m = Mul(x, minus) y = Max(x, m)",
        "m = Mul(x, many) y = Max(x, m)",
        "c = Less(x, a) m = Mul(x, a) y = Where(c, m, x)",
        "c = Greater(x, zero) m = Mul(x, a) y = Where(c, m, x)",
        "z = Neg(x) c = Less(z, zero) m = Mul(x, a) y = Where(c, m, x)",
    ],
)
def test_something_else(body: str) -> None:
    left_alone(text(body), STEP)


@pytest.mark.parametrize(
    ("source", "why"),
    [
        (text("y = PRelu(x, a)", kind="double"), "float64"),
        (text("m = Mul(x, a) y = Max(x, m)", more=", float[n, 5] m"), "read elsewhere"),
    ],
)
def test_refusals_have_a_reason(source: str, why: str) -> None:
    left_alone(source, STEP, why)
