"""Preparing steps give a region its constants, and leave all others as they were."""

from __future__ import annotations

import numpy as np
import pytest
from tests.unit.quantizing import model_of, normal, unchecked

from ortune.core.errors import Refused
from ortune.model.graph import edit
from ortune.regions.prepared import Prepared

TEXT = """<ir_version: 8, opset_import: ["": 20]>
g (float[1,4] x) => (float[1,4] y) { p = Gemm(x, a) q = Relu(p) y = MatMul(q, b) }"""
MORE = TEXT.replace("Gemm(x, a)", "Gemm(x, a, c)")


def made(text: str = TEXT, a: float = 1.0, b: float = 1.0, **more: np.ndarray) -> edit.ir.Model:
    held = {"a": a * normal(4, 4), "b": b * normal(4, 4, seed=1)} | more
    model = model_of(text, held)
    for at, node in enumerate(model.graph):
        node.name = f"n{at}"
    return model


def test_a_region_gets_the_constants_of_its_nodes_alone() -> None:
    plain, feeds = made(), {"x": normal(1, 4, seed=2)}
    other = made(MORE, 2.0, 3.0, c=normal(4, seed=3))
    prepared = Prepared(plain, other)
    for names, wanted in (
        (["n0"], made(MORE, 2.0, 1.0, c=normal(4, seed=3))),
        (["n1", "n2"], made(b=3.0)),
        ([], plain),
        (["n0", "n1", "n2"], other),
    ):
        draft = plain.clone()
        prepared.give(draft, names)
        (got,), (want,) = (unchecked(one, feeds, "DISABLE_ALL") for one in (draft, wanted))
        np.testing.assert_array_equal(got, want)
    draft = plain.clone()
    prepared.give(draft, ["n2"])
    assert edit.const_tensor(next(iter(draft.graph)).inputs[1]) is edit.const_tensor(
        next(iter(plain.graph)).inputs[1]
    )


def test_what_changes_the_graph_is_refused() -> None:
    with pytest.raises(Refused, match="change the graph"):
        Prepared(made(), made(TEXT.replace("q = Relu(p) y", "q = Relu(p) r = Relu(q) y")))
    with pytest.raises(Refused, match="is another"):
        Prepared(made(), made(TEXT.replace("Relu", "Neg")))
    looped = """<ir_version: 8, opset_import: ["": 20]>
    g (float[1,4] x, bool s) => (float[1,4] y) {
    y = If (s) <then_branch = t () => (m) { m = Neg(x) },
                else_branch = e () => (n) { n = Abs(x) }> }"""
    one, two = (model_of(looped, {}) for _ in range(2))
    with pytest.raises(Refused, match="body"):
        Prepared(one, two)
