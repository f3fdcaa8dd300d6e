"""Which regions read what others make."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from onnx import numpy_helper, parser

from ortune.model.io import names
from ortune.regions.grouping import regions
from ortune.regions.neighbours import neighbours

HEAD = """<ir_version: 8, opset_import: ["": 17]> g (float[4, 8] x) => (float[4, 8] y)
<int64[1] axes = {0}>"""


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("[a] p = MatMul(x, v) [b] y = MatMul(p, w)", [("a", "b")]),
        ("[a] p = MatMul(x, v) [r] q = Relu(p) [b] y = MatMul(q, w)", [("a", "b")]),
        (
            """[a] p = MatMul(x, v) [s] q = Unsqueeze(p, axes) [t] r = Squeeze(q, axes)
            [b] y = MatMul(r, w)""",
            [("a", "b")],
        ),
        (
            "[a] p = MatMul(x, v) [b] q = MatMul(p, w) [c] r = MatMul(p, u) [d] y = Add(q, r)",
            [("a", "b"), ("a", "c")],
        ),
        # a sum is another tensor than what goes into it
        ("[a] p = MatMul(x, v) [s] q = Add(p, x) [b] y = MatMul(q, w)", []),
        ("[a] p = MatMul(x, v) [b] q = MatMul(x, w) [d] y = Mul(q, p)", []),
    ],
    ids=["in a row", "behind an activation", "moved", "two readers", "a sum", "side by side"],
)
def test_who_reads_what_another_makes_is_its_neighbour(
    body: str, found: list[tuple[str, str]]
) -> None:
    made = parser.parse_model(f"{HEAD} {{ {body} }}")
    weights = np.full((8, 8), 0.5, np.float32)
    made.graph.initializer.extend(numpy_helper.from_array(weights, name) for name in "uvw")
    model = ir.from_proto(made)
    names.unique(model)
    assert list(neighbours(model, regions(model))) == found
