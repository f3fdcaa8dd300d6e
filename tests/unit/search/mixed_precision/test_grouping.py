"""Layers are grouped with what is fused with them, and equal structure has one pattern."""

from collections import Counter

import numpy as np
import onnx_ir as ir
import pytest
from onnx import numpy_helper, parser
from tests.unit.quantizing import model_of, normal
from tests.unit.search.mixed_precision.models import HEADER, transformer

from ortune.graph.io import names
from ortune.graph.ir import edit
from ortune.search.mixed_precision.grouping import find_neighbours, find_regions, find_weights


@pytest.mark.parametrize("blocks", [1, 6])
def test_equal_blocks_are_equal_regions(blocks: int) -> None:
    found = find_regions(transformer(blocks))
    kinds = Counter(one.pattern for one in found)
    assert list(kinds.values()) == [blocks] * 4
    assert [one.ops for one in found[:4]] == [("MatMul",) * 3, *[("MatMul",)] * 3]
    assert len({one.name for one in found}) == len(found)
    assert all(one.name in one.layers for one in found)


def test_projections_that_share_an_input_are_one_with_their_biases() -> None:
    first, *others = find_regions(transformer(1))
    assert first.bytes == 3 * 32 * 32 * 4
    assert len(first.nodes) == 4
    assert [one.bytes for one in others] == [32 * 32 * 4, 32 * 64 * 4, 64 * 32 * 4]


def test_by_node_every_layer_is_alone_and_by_op_all_are_together() -> None:
    model = transformer(2)
    assert len(find_regions(model, "node")) == 12
    (one,) = find_regions(model, "op")
    assert (one.name, len(one.layers)) == ("MatMul", 12)


def test_every_layer_lies_in_exactly_one_region() -> None:
    model = transformer(3)
    held = [node for node in edit.walk_nodes(model) if find_weights(node)]
    for by in ("region", "node", "op"):
        found = Counter(name for one in find_regions(model, by) for name in one.nodes)
        assert set(found.values()) == {1}
        layers = [name for one in find_regions(model, by) for name in one.layers]
        assert len(layers) == len(held)


def test_what_is_fused_with_a_convolution_goes_with_it() -> None:
    model = model_of(
        f"""{HEADER}
        g (float[1,3,8,8] x) => (float[1,4,8,8] y) {{
          a = Conv<pads=[1,1,1,1]>(x, w)
          s = Sigmoid(a)
          b = Mul(a, s)
          c = Conv<pads=[1,1,1,1]>(b, v)
          d = Add(c, b)
          y = Relu(d)
        }}""",
        {"w": normal(4, 3, 3, 3), "v": normal(4, 4, 3, 3)},
    )
    one, two = find_regions(model)
    assert [len(one.nodes), len(two.nodes)] == [3, 1]
    assert one.pattern != two.pattern


def test_a_larger_picture_is_another_pattern() -> None:
    text = f"""{HEADER}
    g (float[1,4,SIZE,SIZE] x) => (float[1,4,SIZE,SIZE] y) {{
      y = Conv<pads=[1,1,1,1]>(x, w)
    }}"""
    held = {"w": normal(4, 4, 3, 3)}
    small, large, same = (
        find_regions(model_of(text.replace("SIZE", size), held))[0].pattern
        for size in ("8", "16", "8")
    )
    assert small == same != large


def test_layers_that_share_a_weight_are_one_whatever_is_asked() -> None:
    model = model_of(
        f"""{HEADER}
        g (int64[1,8] ids) => (float[1,8,64] y) {{
          h = Gather(table, ids)
          m = MatMul(h, w)
          t = Transpose<perm=[1,0]>(table)
          y = MatMul(m, t)
        }}""",
        {"table": normal(64, 32), "w": normal(32, 32)},
    )
    for by in ("region", "node"):
        tied, alone = find_regions(model, by)
        assert tied.ops == ("Gather", "MatMul")
        assert tied.bytes == 64 * 32 * 4
        assert alone.ops == ("MatMul",)


def test_layers_in_bodies_count_and_weights_put_together_in_the_graph() -> None:
    model = model_of(
        f"""{HEADER}
        g (float[4,1,8] x, bool c) => (float[4,1,1,8] y) {{
          y = If(c) <
            then_branch = t () => (float[4,1,1,8] u) {{
              w = Concat<axis=1>(w1, w2)
              u, uh = LSTM<hidden_size=8>(x, w, r)
            }},
            else_branch = e () => (float[4,1,1,8] v) {{
              v, vh = LSTM<hidden_size=8>(x, w3, r)
            }}>
        }}""",
        {
            "w1": normal(1, 16, 8),
            "w2": normal(1, 16, 8),
            "w3": normal(1, 32, 8),
            "r": normal(1, 32, 8),
        },
    )
    (one,) = find_regions(model)  # they share the recurrent weight
    assert one.ops == ("LSTM", "LSTM")
    assert one.bytes == 3 * 32 * 8 * 4


def test_grouping_leaves_the_model_as_it_is() -> None:
    model = transformer(1)
    before = [node.name for node in model.graph]
    find_regions(model)
    assert [node.name for node in model.graph] == before


CHAIN = """<ir_version: 8, opset_import: ["": 17]> g (float[4, 8] x) => (float[4, 8] y)
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
    made = parser.parse_model(f"{CHAIN} {{ {body} }}")
    weights = np.full((8, 8), 0.5, np.float32)
    made.graph.initializer.extend(numpy_helper.from_array(weights, name) for name in "uvw")
    model = ir.from_proto(made)
    names.make_names_unique(model)
    assert list(find_neighbours(model, find_regions(model, "node"))) == found
