"""DepthToSpace with channels last moves the same values; integer convolutions gain by it."""

import pytest
from tests.unit.rewriting import model_of, normal, ops, transformed

from ortune.graph.ir import edit
from ortune.transforms.depth_to_space_nhwc import DepthToSpaceNhwc

STEP = DepthToSpaceNhwc()


def network(mode: str, sizes: str = "3, 5", between: str = "Relu", behind: str = "Conv") -> str:
    return f"""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[n, 8, {sizes}] x, float[8, 8, 1, 1] w, float[2, 2, 1, 1] v)
        => (float[n, 2, h, l] y) {{
            c = Conv(x, w)
            r = {between}(c)
            d = DepthToSpace <blocksize: int = 2, mode: string = "{mode}"> (r)
            e = Add(d, d)
            y = {behind}(e, v)
        }}
    """


def test_the_values_are_the_same() -> None:
    weight, last = normal(8, 8, 1, 1), normal(2, 2, 1, 1, seed=1)
    feeds = [{"x": normal(n, 8, 3, 5), "w": weight, "v": last} for n in (1, 2, 0)]
    after, count = transformed(network("DCR"), STEP, feeds, tolerance=0, may_grow=True)
    assert count == 1
    assert ops(after) == {"Conv": 2, "Relu": 1, "Add": 1, "Transpose": 3, "Reshape": 2}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (network("CRD"), "inside the channels"),
        (network("DCR", "a, b"), "not known"),
        (network("DCR", "0, 3"), "not known"),
        (network("DCR", between="Sin"), "not behind a Conv"),
        (network("DCR", behind="Mul"), "no Conv reads it"),
    ],
)
def test_what_is_left_alone_is_named(text: str, said: str) -> None:
    model = model_of(text)
    assert STEP.apply(model) == 0 and said in edit.take_notes(model)
