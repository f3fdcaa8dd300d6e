"""Half of one model and half of another: valid, and it computes what both halves say."""

from __future__ import annotations

import numpy as np
import pytest
from tests.unit.rewriting import model_of, run

from ortune.analysis.verification.bisect import splice
from ortune.core.errors import BadModel
from ortune.graph.io.wellformed import check_model, describe_signature
from ortune.graph.parts.extract import extract

HOST = """<ir_version: 8, opset_import: ["": 17]>
g (float[2] x, bool c) => (float[2] y, float[2] a) <float[2] w = {1, 2}> {
  a = Add(x, w)
  b = If(c) <
    then_branch = t () => (float[2] p) { p = Mul(a, w) },
    else_branch = e () => (float[2] q) { q = Sub(a, w) }
  >
  y = Neg(b)
}"""
OTHER = HOST.replace("{1, 2}", "{10, 20}")
X = np.array([1, 1], np.float32)


@pytest.mark.parametrize("flag", [True, False])
@pytest.mark.parametrize(
    ("starts", "ends", "low", "high"),
    [([], ["a"], 10, 1), (["a"], ["b"], 1, 10), ([], ["b"], 10, 10), ([], ["y", "a"], 10, 10)],
)
def test_values_come_from_where_they_are_said_to(
    flag: bool, starts: list[str], ends: list[str], low: float, high: float
) -> None:
    host, other = model_of(HOST), model_of(OTHER)
    mixed = splice(host, extract(other, starts, ends))
    check_model(mixed, describe_signature(host), "splice")
    y, a = run(mixed, {"x": X, "c": np.array(flag)})
    w = np.array([1, 2], np.float32)
    first = X + low * w
    np.testing.assert_array_equal(y, -(first * (high * w) if flag else first - high * w))
    named = first if ends != ["b"] or starts else X + w  # a itself is the host's then
    np.testing.assert_array_equal(a, named)
    assert run(host, {"x": X, "c": np.array(flag)})[1].tolist() == (X + w).tolist()


def test_other_opsets_and_other_tensors_are_refused() -> None:
    host = model_of(HOST)
    newer = model_of(OTHER.replace(": 17]", ": 20]"))
    with pytest.raises(BadModel, match="opset 20"):
        splice(host, extract(newer, (), ["a"]))
    renamed = model_of(OTHER.replace("a = Add", "z = Add").replace("(a, w)", "(z, w)")
                       .replace("float[2] a)", "float[2] z)"))  # fmt: skip
    with pytest.raises(BadModel, match="no tensor 'z'"):
        splice(host, extract(renamed, (), ["z"]))
