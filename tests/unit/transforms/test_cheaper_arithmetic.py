"""Powers and quotients by constants."""

import numpy as np
import pytest
from tests.unit.rewriting import becomes, left_alone, normal

from ortune.transforms.cheaper_arithmetic import CheaperArithmetic

STEP = CheaperArithmetic()
FEEDS = [{"x": np.abs(normal(2, 5)) + 0.01}, {"x": np.array([[1e-20, 1e-5, 1, 2, 1e15]], "f")}]


def text(body: str, value: float = 1.0, *, kind: str = "float", shape: str = "") -> str:
    return f"""<ir_version: 8, opset_import: ["": 16]>
        g ({kind}[n, 5] x) => ({kind}[n, 5] y) <{kind}{shape} c = {{{value}}}> {{ {body} }}"""


@pytest.mark.parametrize(
    ("value", "wanted"), [(2.0, {"Mul": 1}), (0.5, {"Sqrt": 1}), (-1.0, {"Reciprocal": 1})]
)
def test_powers(value: float, wanted: dict[str, int]) -> None:
    becomes(wanted, text("y = Pow(x, c)", value), STEP, FEEDS[:1])


def test_the_inverse_of_a_root() -> None:
    becomes(
        {"Sqrt": 1, "Reciprocal": 1}, text("y = Pow(x, c)", -0.5), STEP, FEEDS[:1], may_grow=True
    )


@pytest.mark.parametrize("value", [8.0, 0.125, -2.0])
def test_division_by_a_power_of_two(value: float) -> None:
    becomes({"Mul": 1}, text("y = Div(x, c)", value), STEP, FEEDS, tolerance=0)


@pytest.mark.parametrize("value", [3.0, 0.0, 10.0, 2.0**40])
def test_division_by_others_is_named(value: float) -> None:
    left_alone(text("y = Div(x, c)", value), STEP, "not exact")


@pytest.mark.parametrize("value", [3.0, 1.5, 0.0])
def test_other_powers_are_left_alone(value: float) -> None:
    left_alone(text("y = Pow(x, c)", value), STEP)


def test_a_constant_that_widens_is_named() -> None:
    source = text("y = Div(x, c)", 2.0, shape="[1, 1, 1]").replace("[n, 5] y", "[1, n, 5] y")
    left_alone(source, STEP, "higher rank")


def test_integers_and_constants_in_front_are_left_alone() -> None:
    left_alone(text("y = Div(x, c)", 2, kind="int64"), STEP)
    left_alone(text("y = Div(c, x)", 2.0), STEP)
    left_alone(text("y = Pow(c, x)", 2.0), STEP)


def test_an_exponent_of_another_type() -> None:
    source = """<ir_version: 8, opset_import: ["": 16]>
        g (float[n, 5] x) => (float[n, 5] y) <int64 c = {2}> { y = Pow(x, c) }"""
    becomes({"Mul": 1}, source, STEP, FEEDS[:1])
