"""PRelu as a product and a maximum."""

import numpy as np
import pytest
from tests.unit.rewriting import becomes, left_alone, normal

from ortune.transforms.expand_prelu import ExpandPrelu

STEP = ExpandPrelu()
FEEDS = [{"x": normal(2, 3, 5) * 9}, {"x": np.zeros((1, 3, 5), np.float32)}]


def text(slopes: str, *, more: str = "") -> str:
    return f"""<ir_version: 8, opset_import: ["": 16]>
        g (float[n, 3, 5] x{more}) => (float[n, 3, 5] y)
        <float[3, 1] s = {{{slopes}}}> {{ y = PRelu(x, s) }}"""


@pytest.mark.parametrize(
    ("slopes", "op"), [("0.1, -0.5, 1", "Max"), ("1, 1.5, 2", "Min"), ("1, 1, 1", "Max")]
)
def test_all_slopes_on_one_side(slopes: str, op: str) -> None:
    becomes({"Mul": 1, op: 1}, text(slopes), STEP, FEEDS, tolerance=0, may_grow=True)


@pytest.mark.parametrize(
    ("source", "why"),
    [
        (text("0.5, 1.5, 0"), "both sides"),
        (text("0.5, 0.5, 0", more=", float[3, 1] s"), "not constant"),
    ],
)
def test_refusals_have_a_reason(source: str, why: str) -> None:
    left_alone(source, STEP, why)
