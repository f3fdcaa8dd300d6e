"""Two models side by side: every node in one group, and fusions followed through other names."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import numpy_helper, parser
from tests import graphs
from tests.unit.rewriting import loaded

from ortune.cli.main import main
from ortune.data import zoo
from ortune.graph.diff.compare import diff_models
from ortune.graph.diff.result import Diff, Group
from ortune.transforms.fuse_batch_norm import FuseBatchNorm
from ortune.transforms.fuse_gelu import FuseGelu
from ortune.transforms.simplify import Simplify

HEAD = '<ir_version: 9, opset_import: ["": 20, "com.microsoft": 1]>'
TOY = settings(
    max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
PLAIN = """
m (float[1,16,8,8] x) => (float[1,16,8,8] y)
<float[16,16,3,3] w1, float[16,16,1,1] w2, float[16] s, float[16] b, float[16] mean, float[16] var>
{
  c1 = Conv<pads = [1,1,1,1]>(x, w1)
  n1 = BatchNormalization(c1, s, b, mean, var)
  r1 = Relu(n1)
  i1 = Identity(r1)
  c2 = Conv(i1, w2)
  sum = Add(c2, r1)
  half = Mul(sum, sum)
  y = Relu(half)
}
"""
GELU = """
m (float[2,16] x) => (float[2,16] y)
<float[16,16] w, float root = {1.4142135}, float one = {1}, float half = {0.5}>
{
  h = MatMul(x, w)
  d = Div(h, root)
  e = Erf(d)
  p = Add(e, one)
  m = Mul(h, p)
  g = Mul(m, half)
  y = MatMul(g, w)
}
"""
LOOP = """
m (float[4] x, int64 n, bool go) => (float[4] y)
{
  s = Relu(x)
  y = Loop(n, go, s) <body = inner (int64 i, bool c, float[4] v) => (bool c2, float[4] w) {
    c2 = Identity(c)
    t = Sigmoid(v)
    w = Add(t, s)
  }>
}
"""


def filled(text: str, seed: int = 0) -> onnx.ModelProto:
    """Read ONNX text; weights without values become random, variances positive."""
    proto = parser.parse_model(HEAD + text)
    draw = np.random.default_rng(seed)
    for value in proto.graph.value_info:
        kind = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        shape = tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
        array = draw.uniform(0.1, 1, shape)
        if value.name != "var":
            array *= draw.choice([-1, 1], shape)
        proto.graph.initializer.append(numpy_helper.from_array(array.astype(kind), value.name))
    del proto.graph.value_info[:]
    return proto


def compared(one: onnx.ModelProto, two: onnx.ModelProto) -> Diff:
    """Compare, and check that every node of either side is in exactly one group."""
    found = diff_models(loaded(one), loaded(two))
    for which, nodes in enumerate(found.nodes):
        held = sorted(n for group in found.groups for n in (group.a, group.b)[which])
        assert held == [node.id for node in nodes] == list(range(len(nodes)))
        for index, group in enumerate(found.groups):
            assert all(nodes[n].group == index for n in (group.a, group.b)[which])
    return found


def kinds(found: Diff) -> dict[str, str]:
    """Pattern -> kind of every group that is not matched."""
    return {group.pattern: group.kind for group in found.groups if group.kind != "matched"}


def changed(text: str, *edits: tuple[str, str]) -> onnx.ModelProto:
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    return filled(text)


def disguised(proto: onnx.ModelProto, seed: int) -> onnx.ModelProto:
    """Return the model with other names inside and its nodes in another valid order."""
    draw = random.Random(seed)
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    kept = {value.name for value in (*made.graph.input, *made.graph.output)}
    _rename(made.graph, {name: name for name in kept} | {"": ""}, draw)
    return made


def _rename(graph: onnx.GraphProto, known: dict[str, str], draw: random.Random) -> None:
    known = dict(known)

    def fresh(name: str) -> str:
        return known.setdefault(name, f"t{draw.randrange(10**9)}")

    for value in (*graph.input, *graph.initializer):
        value.name = fresh(value.name)
    del graph.value_info[:]
    order = _order(list(graph.node), draw)
    for node in order:
        for name in node.output:
            fresh(name)
    for node in order:
        node.name = f"n{draw.randrange(10**9)}"
        node.input[:] = [known.get(name, name) for name in node.input]
        node.output[:] = [known[name] for name in node.output]
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                _rename(attribute.g, known, draw)
    for value in graph.output:
        value.name = known[value.name]
    del graph.node[:]
    graph.node.extend(order)


def _order(nodes: list[onnx.NodeProto], draw: random.Random) -> list[onnx.NodeProto]:
    """Return copies of the nodes in a random order in which each comes after what it reads."""
    made = {name for node in nodes for name in node.output}
    left = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    found: list[onnx.NodeProto] = []
    there: set[str] = set()
    while left:
        ready = [node for node in left if _read(node) & made <= there]
        node = draw.choice(ready)
        left = [one for one in left if one is not node]
        found.append(node)
        there |= set(node.output)
    return found


def _read(node: onnx.NodeProto) -> set[str]:
    inner = [a.g for a in node.attribute if a.type == onnx.AttributeProto.GRAPH]
    return (
        set(node.input)
        | {name for g in inner for n in g.node for name in _read(n)}
        | {value.name for g in inner for value in g.output}
    )


@TOY
@given(proto=graphs.models(), seed=st.integers(0, 999))
def test_other_names_and_another_order_are_the_same_model(
    proto: onnx.ModelProto, seed: int
) -> None:
    for other in (proto, disguised(proto, seed)):
        found = compared(proto, other)
        assert {group.kind for group in found.groups} <= {"matched"}
        assert found.same


@TOY
@given(one=graphs.models(), two=graphs.models())
def test_every_node_is_in_one_group_and_both_ways_agree(
    one: onnx.ModelProto, two: onnx.ModelProto
) -> None:
    there, back = compared(one, two), compared(two, one)
    assert there.same == back.same
    assert there.ops == {op: counts[::-1] for op, counts in back.ops.items()}


@settings(TOY, max_examples=5)
@given(proto=graphs.models())
def test_what_simplify_leaves_is_followed(proto: onnx.ModelProto) -> None:
    before = loaded(proto)
    after = before.clone()
    edits = Simplify().apply(after)
    found = diff_models(before, after)
    held = sorted(n for group in found.groups for n in group.a)
    assert held == list(range(len(found.nodes[0])))
    # Without an edit shapes may still be known that were not declared, of outputs too.
    assert edits or {group.kind for group in found.groups} <= {"matched"}


@pytest.mark.parametrize("text", [PLAIN, GELU, LOOP])
def test_a_disguised_model_is_the_same(text: str) -> None:
    proto = filled(text)
    found = compared(proto, disguised(proto, 3))
    assert found.same and not kinds(found) and found.equal_weights == len(proto.graph.initializer)


def test_a_real_model_in_disguise_is_the_same() -> None:
    proto = onnx.load(zoo.__path__[0] + "/digit_cnn.onnx")
    assert compared(proto, disguised(proto, 3)).same


@pytest.mark.parametrize("disguise", [False, True])
def test_a_folded_batch_norm_is_one_group_with_its_convolution(disguise: bool) -> None:
    proto = filled(PLAIN)
    after = loaded(proto).clone()
    assert Simplify().apply(after) and FuseBatchNorm().apply(after)
    other = onnx.ModelProto.FromString(_bytes(after))
    found = compared(proto, disguised(other, 1) if disguise else other)
    assert kinds(found) == {"Conv+BatchNormalization -> Conv": "fused", "Identity": "removed"}
    assert [weight.relation for weight in found.weights if weight.a and weight.b] == ["scaled"]


@pytest.mark.parametrize("disguise", [False, True])
def test_a_written_out_gelu_is_one_group(disguise: bool) -> None:
    proto = filled(GELU)
    after = loaded(proto).clone()
    assert FuseGelu().apply(after)
    other = onnx.ModelProto.FromString(_bytes(after))
    other = disguised(other, 1) if disguise else other
    assert kinds(compared(proto, other)) == {"Div+Erf+Add+Mul+Mul -> Gelu": "fused"}
    assert kinds(compared(other, proto)) == {"Gelu -> Div+Erf+Add+Mul+Mul": "split"}


@pytest.mark.parametrize(
    ("edits", "wanted"),
    [
        ([("y = Relu(half)", "y = Sigmoid(half)")], {"Relu -> Sigmoid": "changed"}),
        ([("pads = [1,1,1,1]", "pads = [1,1,1,1], group = 1")], {}),
        ([("Add(c2, r1)", "Add(r1, c2)")], {}),
        ([("Add(c2, r1)", "Add(c2, x)")], {"Add": "changed"}),
        ([("i1 = Identity(r1)", ""), ("Conv(i1", "Conv(r1")], {"Identity": "removed"}),
        ([("y = Relu(half)", "z = Relu(half)\n  y = Neg(z)")], {"Neg": "added"}),
        ([("<pads = [1,1,1,1]>", "<pads = [2,2,2,2], dilations = [2,2]>")], {"Conv": "changed"}),
    ],
)
def test_single_edits(edits: list[tuple[str, str]], wanted: dict[str, str]) -> None:
    found = compared(filled(PLAIN), changed(PLAIN, *edits))
    assert kinds(found) == wanted
    assert found.same == (not wanted)


def test_what_changed_is_named() -> None:
    found = compared(filled(PLAIN), changed(PLAIN, ("pads = [1,1,1,1]", "pads = [0,0,2,2]")))
    assert _only(found, "changed").changes == ("attributes: pads",)
    found = compared(filled(PLAIN), changed(PLAIN, ("Add(c2, r1)", "Add(c2, x)")))
    assert _only(found, "changed").changes == ("inputs",)


def test_weights_of_another_training_are_changed_and_measured() -> None:
    one, two = filled(PLAIN), filled(PLAIN, seed=1)
    found = compared(one, two)
    assert set(kinds(found).values()) == {"changed"} and found.related
    assert {weight.relation for weight in found.weights} == {"changed"}
    moved = {weight.a: weight.largest for weight in found.weights}
    arrays = [numpy_helper.to_array(proto.graph.initializer[0]) for proto in (one, two)]
    assert moved["w1"] == pytest.approx(np.abs(arrays[0] - arrays[1]).max())


def test_half_precision_is_retyped() -> None:
    proto = filled(GELU)
    half = filled(GELU)
    for tensor in half.graph.initializer:
        array = numpy_helper.to_array(tensor).astype(np.float16)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    for value in (*half.graph.input, *half.graph.output):
        value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    found = compared(proto, half)
    assert {group.kind for group in found.groups} == {"retyped"}
    assert {weight.relation for weight in found.weights} == {"rounded"}
    assert [field.what for field in found.fields if field.interface] == ["input x", "output y"]


def test_quantized_layers_are_retyped_and_their_pairs_added() -> None:
    text = """
m (float[2,16] x) => (float[2,16] y)
<float[16,16] w>
{
  h = MatMul(x, w)
  y = Relu(h)
}
"""
    proto = filled(text)
    array = numpy_helper.to_array(proto.graph.initializer[0])
    scale = np.abs(array).max(0) / 127
    quantized = filled(
        """
m (float[2,16] x) => (float[2,16] y)
<int8[16,16] w, float[16] ws, float s = {0.02}, uint8 z = {128}>
{
  q = QuantizeLinear(x, s, z)
  d = DequantizeLinear(q, s, z)
  f = DequantizeLinear<axis = 1>(w, ws)
  h = MatMul(d, f)
  y = Relu(h)
}
"""
    )
    made = {"w": np.round(array / scale).astype(np.int8), "ws": scale.astype(np.float32)}
    for tensor in quantized.graph.initializer:
        if tensor.name in made:
            tensor.CopyFrom(numpy_helper.from_array(made[tensor.name], tensor.name))
    found = compared(proto, disguised(quantized, 5))
    assert kinds(found) == {
        "MatMul": "retyped",
        "QuantizeLinear+DequantizeLinear": "added",
        "DequantizeLinear": "added",
    }
    weight = next(weight for weight in found.weights if weight.a == "w")
    assert weight.relation == "quantized"
    assert weight.largest == pytest.approx(scale.max() / 2, rel=0.1)


def test_a_transposed_weight_is_the_same_layer() -> None:
    text = """
m (float[2,16] x) => (float[2,8] y)
<float[16,8] w>
{
  y = MatMul(x, w)
}
"""
    one, two = filled(text), filled(text.replace("MatMul(x", "Gemm<transB = 1>(x"))
    array = numpy_helper.to_array(one.graph.initializer[0])
    two.graph.initializer[0].CopyFrom(numpy_helper.from_array(array.T.copy(), "w"))
    found = compared(one, disguised(two, 2))
    assert found.weights[0].relation == "transposed" and found.related
    assert kinds(found) == {"MatMul -> Gemm": "changed"}


def test_merged_equal_nodes_are_one_group() -> None:
    text = """
m (float[4] x) => (float[4] y)
{
  a = Sigmoid(x)
  b = Sigmoid(x)
  c = Neg(a)
  y = Add(c, b)
}
"""
    found = compared(filled(text), changed(text, ("b = Sigmoid(x)", ""), ("(c, b)", "(c, a)")))
    assert kinds(found) == {"Sigmoid+Sigmoid -> Sigmoid": "fused"}
    assert _only(found, "fused").changes == ("equal nodes merged",)


def test_folded_constants_and_shapes_stand_apart() -> None:
    text = """
m (float[2,8] x) => (float[4,4] y)
<int64[1] four = {4}>
{
  s = Shape(x)
  i = Constant<value = int64 {0}>()
  n = Gather(s, i)
  two = Mul(n, four)
  y0 = Reshape(x, shape)
  y = Relu(y0)
}
"""
    computed = text.replace("Mul(n, four)", "Unsqueeze(n, zero)").replace(
        "Reshape(x, shape)", "Reshape(x, to)"
    )
    computed = computed.replace("two = ", "u = ").replace(
        "  y0", "  w = Mul(u, double)\n  to = Concat<axis = 0>(w, four)\n  y0"
    )
    computed = computed.replace(
        "<int64[1] four = {4}>",
        "<int64[1] four = {4}, int64[1] zero = {0}, int64[1] double = {2}>",
    )
    folded = """
m (float[2,8] x) => (float[4,4] y)
<int64[2] to = {4, 4}>
{
  y0 = Reshape(x, to)
  y = Relu(y0)
}
"""
    found = compared(filled(computed), filled(folded))
    why = {group.pattern: group.changes for group in found.groups if group.kind == "removed"}
    assert why == {
        "Shape+Gather+Unsqueeze+Mul+Concat": ("arithmetic of shapes",),
        "Constant": ("a constant",),
    }


def test_bodies_are_compared_inside() -> None:
    found = compared(filled(LOOP), changed(LOOP, ("Sigmoid(v)", "Tanh(v)")))
    assert kinds(found) == {"Sigmoid -> Tanh": "changed"}
    scopes = {node.op: node.scope for node in found.nodes[0]}
    assert scopes["Add"] and scopes["Add"] == scopes["Identity"] and not scopes["Relu"]


def test_swapped_inputs_are_a_difference() -> None:
    text = """
m (float[4] x, float[4] z) => (float[4] y)
{
  y = Sub(x, z)
}
"""
    found = compared(filled(text), changed(text, ("Sub(x, z)", "Sub(z, x)")))
    assert not found.same


def test_strings_and_empty_tensors() -> None:
    text = """
m (string[2] x) => (bool[2] y)
<string[1] s = {"word"}>
{
  y = Equal(x, s)
}
"""
    found = compared(filled(text), changed(text, ("word", "name")))
    assert not found.same and found.weights[0].largest is None


def test_little_in_common() -> None:
    assert not compared(filled(PLAIN), filled(GELU)).related


def test_drawing_has_layers_and_places() -> None:
    found = compared(filled(PLAIN), filled(PLAIN))
    layers = {node.outputs[0]: node.layer for node in found.nodes[0]}
    assert layers["c1"] == 0 and layers["sum"] == layers["c2"] + 1 == 5
    spots = [(node.layer, node.place) for node in found.nodes[0]]
    assert len(set(spots)) == len(spots)


def _write(folder: Path, name: str, proto: onnx.ModelProto) -> str:
    path = folder / name
    path.write_bytes(proto.SerializeToString())
    return str(path)


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = _write(tmp_path, "a.onnx", filled(PLAIN))
    same = _write(tmp_path, "b.onnx", disguised(filled(PLAIN), 1))
    other = _write(tmp_path, "c.onnx", changed(PLAIN, ("y = Relu(half)", "y = Sigmoid(half)")))
    assert main(["diff", one, one]) == 0
    assert "identical files: 8 and 8 nodes" in capsys.readouterr().out
    assert main(["diff", one, same]) == 0
    assert "the same computation" in capsys.readouterr().out
    assert main(["diff", one, other, "-v"]) == 1
    said = capsys.readouterr().out
    assert "Relu -> Sigmoid" in said and "7 matched, 1 changed" in said
    assert main(["diff", one, other, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["counts"]["changed"] == {"groups": 1, "a": 1, "b": 1}
    assert found["ops"]["Sigmoid"] == {"a": 0, "b": 1, "difference": 1}
    assert found["a"]["nodes"][0].keys() >= {"id", "op", "inputs", "layer", "place", "group"}


def test_a_missing_file_is_two_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = _write(tmp_path, "a.onnx", filled(PLAIN))
    assert main(["diff", one, str(tmp_path / "none.onnx")]) == 2
    said = capsys.readouterr().err
    assert "none.onnx is not there" in said and "fix:" in said


def _only(found: Diff, kind: str) -> Group:
    (group,) = [group for group in found.groups if group.kind == kind]
    return group


def _bytes(model: object) -> bytes:
    import onnx_ir as ir

    assert isinstance(model, ir.Model)
    made: Callable[[ir.Model], onnx.ModelProto] = ir.to_proto
    return bytes(made(model).SerializeToString())


def test_a_long_chain_of_copies_is_seen_through() -> None:
    head = '<ir_version: 8, opset_import: ["": 17]> g (float[4] x) => (float[4] y)'
    chain = " ".join(f"v{i} = Identity(v{i - 1})" for i in range(1, 2001))
    before = f"{head} {{ v0 = Relu(x) {chain} s = Sigmoid(v2000) y = Neg(s) }}"
    after = f"{head} {{ v0 = Relu(x) s = Tanh(v0) y = Neg(s) }}"
    found = compared(parser.parse_model(before), parser.parse_model(after))
    assert Counter(group.kind for group in found.groups) == {
        "matched": 2,
        "changed": 1,
        "removed": 2000,
    }


def test_many_parts_between_the_same_groups_are_joined_in_order() -> None:
    """Each part of one side looked at each of the other."""

    def fan(op: str) -> onnx.ModelProto:
        leaves = " ".join(f"v{i} = {op}(r) w{i} = Neg(v{i})" for i in range(300))
        names = ", ".join(f"w{i}" for i in range(300))
        head = '<ir_version: 8, opset_import: ["": 17]> g (float[4] x) => (float[4] y)'
        return parser.parse_model(f"{head} {{ r = Relu(x) {leaves} s = Sum({names}) y = Exp(s) }}")

    found = compared(fan("Sigmoid"), fan("Tanh"))
    assert sum(len(group.a) for group in found.groups) == 603
    assert all(len(group.a) == len(group.b) for group in found.groups)
