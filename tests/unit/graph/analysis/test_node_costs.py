"""What nodes compute and move, and the biggest parts of a model."""

from __future__ import annotations

import onnx_ir as ir
import pytest
from tests.unit.rewriting import model_of, normal

from ortune.graph.analysis.node_costs import (
    Account,
    list_accounts,
    list_large_tensors,
    local_bodies,
    local_functions,
    sum_by_region,
)
from ortune.graph.shapes.infer import infer_copy

TEXT = """
<ir_version: 10, opset_import: ["" : 18]>
g (float[n, 4] x, int64[n] ids) => (float[n, 8] y, float[n, 4] e)
<float[4, 8] w, float[1000, 4] table, int64[2] shape = {-1, 8}>
{
  [product] a = MatMul(x, w)
  [view] b = Reshape(a, shape)
  [act] y = Relu(b)
  [pick] e = Gather(table, ids)
}
"""


def text_model(text: str = TEXT) -> ir.Model:
    filled = text.replace("float[4, 8] w,", f"float[4, 8] w = {_values(32)},").replace(
        "float[1000, 4] table,", f"float[1000, 4] table = {_values(4000)},"
    )
    return model_of(filled)


def _values(count: int) -> str:
    return "{" + ", ".join(str(round(float(v), 3)) for v in normal(count)) + "}"


def by_name(found: list[Account]) -> dict[str, Account]:
    return {one.name: one for one in found}


def test_a_node_counts_what_it_reads_and_writes() -> None:
    found = by_name(list_accounts(infer_copy(text_model(), {"x": (3, 4), "ids": (3,)})[0]))
    product = found["product"]
    assert product.flops == 2 * 3 * 4 * 8
    assert product.weights == 4 * 8 * 4
    assert product.read == 3 * 4 * 4 + 4 * 8 * 4 and product.written == 3 * 8 * 4
    assert product.intensity == product.flops / (product.read + product.written)
    assert found["act"].flops == 24 and found["act"].moved == 2 * 96


def test_trees_count_a_comparison_a_level_and_an_addition_a_tree() -> None:
    modes = '"BRANCH_LEQ", "BRANCH_LEQ", "BRANCH_LEQ", "LEAF", "LEAF", "LEAF", "LEAF"'
    seven = [0, 1, 2, 3, 4, 5, 6]  # nodes of each of two trees: three levels, the last of leaves
    text = f"""
<ir_version: 10, opset_import: ["ai.onnx.ml" : 3]> g (float[3, 4] x) => (float[3, 1] y)
{{
  [trees] y = ai.onnx.ml.TreeEnsembleRegressor<n_targets = 1,
    nodes_treeids = {[0] * 7 + [1] * 7}, nodes_nodeids = {seven * 2},
    nodes_featureids = {[0] * 14}, nodes_modes = [{modes}, {modes}],
    nodes_values = {[0.5] * 14}, nodes_truenodeids = {[1, 3, 5, 0, 0, 0, 0] * 2},
    nodes_falsenodeids = {[2, 4, 6, 0, 0, 0, 0] * 2},
    target_treeids = [0], target_nodeids = [3], target_ids = [0], target_weights = [1.0]>(x)
}}"""
    (trees,) = list_accounts(infer_copy(model_of(text))[0])
    assert trees.flops == 3 * 2 * (3 + 1)


def test_dynamic_dimensions_count_as_one() -> None:
    found = by_name(list_accounts(infer_copy(text_model())[0]))
    assert found["product"].flops == 2 * 4 * 8
    assert found["product"].shape == ("n", 8)


def test_views_move_nothing_and_picks_what_they_write() -> None:
    found = by_name(list_accounts(infer_copy(text_model(), {"ids": (3,)})[0]))
    assert found["view"].moved == 0 and found["view"].intensity is None
    assert found["pick"].weights == 16000
    assert found["pick"].written == 3 * 16 and found["pick"].read == 3 * 16 + 3 * 8


def test_regions_add_up_to_the_whole_and_count_shared_weights_once() -> None:
    text = TEXT.replace("[act] y = Relu(b)", "c = Relu(b)  d = MatMul(x, w)  y = Add(c, d)")
    model = infer_copy(text_model(text))[0]
    names = [str(node.name) for node in model.graph]
    every = list_accounts(model, dict.fromkeys(names, "all"))
    (found,) = sum_by_region(model, every)
    assert found.nodes == len(every) == 6
    assert found.flops == sum(one.flops or 0 for one in every)
    assert found.moved == sum(one.moved or 0 for one in every)
    assert found.weights == 4 * 8 * 4 + 16000 + 16, "w is read twice"
    parts = sum_by_region(model, list_accounts(model, {name: name[:1] for name in names}))
    assert sum(one.moved for one in parts) == found.moved


def test_what_is_not_known_is_said() -> None:
    text = """
<ir_version: 10, opset_import: ["" : 18]>
g (float x, float[4, 8] v) => (float y) { [product] y = MatMul(x, v) }
"""
    model = model_of(text)
    model.graph.inputs[0].shape = None
    model.graph.outputs[0].shape = None
    (one,) = list_accounts(infer_copy(model)[0])
    assert one.flops is None and one.moved is None and one.intensity is None
    (total,) = sum_by_region(model, [one])
    assert total.unknown == 1


BODIES = """
<ir_version: 10, opset_import: ["" : 18, "own" : 1]>
g (float[4] x, bool flag) => (float[4] y)
{
  [outer] a = own.twice(x)
  [branch] y = If (flag) <
    then_branch = t () => (float[4] one) { [inner] one = Mul(a, a) },
    else_branch = e () => (float[4] two) { [other] two = Neg(x) }
  >
}
<domain: "own", opset_import: ["" : 18]> twice (p) => (q) { q = Add(p, p) }
"""


def test_bodies_are_counted_by_their_own_nodes() -> None:
    model = model_of(BODIES)
    found = by_name(list_accounts(infer_copy(model)[0]))
    assert found["branch"].flops == 0 and found["branch"].moved == 0
    assert found["inner"].flops == 4 and found["inner"].parent == "branch"
    assert found["inner"].read == 16, "one tensor, read twice, is one tensor"
    bodies = list(local_bodies(model))
    assert [(b.node, b.attribute, b.nodes) for b in bodies] == [
        ("branch", "then_branch", 1),
        ("branch", "else_branch", 1),
    ]
    assert bodies[0].captured == 2
    (function,) = local_functions(model)
    assert (function.name, function.nodes, function.calls) == ("own::twice", 1, 1)


@pytest.mark.parametrize("count", [1, 2])
def test_the_biggest_tensors(count: int) -> None:
    model = text_model()
    found = list_large_tensors(model, infer_copy(model, {"x": (3, 4)})[0], count)
    assert [one.kind for one in found] == ["weight"] * count + ["activation"] * count
    table, biggest = found[0], found[count]
    assert (table.name, table.shape, table.size) == ("table", (1000, 4), 16000)
    assert (table.readers, table.read_by) == (1, ("pick",))
    assert biggest.size == 3 * 8 * 4 and biggest.shape == (3, 8)
