"""Attention in its parts becomes one operator that gives the same, masked rows included."""

import numpy as np
import onnx_ir as ir
import pytest
from tests.unit.rewriting import model_of, normal, ops, run
from tests.unit.transforms import attention_toys as toys
from tests.unit.transforms.attention_toys import (
    GATHERED,
    GUARD,
    K_FLAT,
    K_TWICE,
    MERGE,
    OUT,
    PACKED,
    K,
    P,
    Q,
    S,
    V,
    qkv,
    text,
)

from ortune.backends.cpu import Cpu
from ortune.backends.openvino import Openvino
from ortune.core.capabilities import Capabilities
from ortune.core.facts import Facts
from ortune.graph.analysis.facts import read_facts
from ortune.graph.io.wellformed import check_model, describe_signature
from ortune.graph.ir import edit
from ortune.search.recipe.space import make_clean_recipe
from ortune.transforms.fuse_attention import FuseAttention
from ortune.transforms.simplify import Simplify

STEP = FuseAttention()
SCALED = Q + K + "s0 = MatMul(q5, kt) s = Div(s0, four) "
MASKED = Q + K + "s0 = MatMul(q5, kt) s1 = Mul(s0, half) s = Add(s1, mask) "
REST = P + V + OUT + MERGE
GUARDED = P + GUARD + V + "o = MatMul(g, vh) " + MERGE
FOUR = "float[b,1,s,t] mask"


def fused(source: str, feeds: list[dict], count: int = 1) -> ir.Model:
    """Apply the step and compare what runs, also rows that are no numbers."""
    before = model_of(source)
    Simplify().apply(before)
    after = before.clone()
    assert STEP.apply(after) == count, edit.take_notes(after)
    check_model(after, describe_signature(before), "fuse-attention")
    for given in feeds:
        for one, two in zip(run(before, given), run(after, given), strict=True):
            np.testing.assert_allclose(two, one, rtol=0, atol=2e-6)
    return after


def refused(source: str) -> str:
    """Apply the step, which must leave the model alone, and return why."""
    model = model_of(source)
    Simplify().apply(model)
    before = ops(model)
    assert STEP.apply(model) == 0
    assert ops(model) == before
    return edit.take_notes(model)


SHAPES = [qkv(1, 5, 5), qkv(2, 1, 7, seed=3), qkv(3, 4, 1, seed=6)]
SPELLINGS = {
    "scores divided": SCALED + REST,
    "scores multiplied": Q + K + "s0 = MatMul(q5, kt) s = Mul(half, s0) " + REST,
    "no scale": Q + K + S + REST,
    "query and key scaled": Q
    + K
    + "qm = Mul(q5, half) km = Mul(kt, half) s = MatMul(qm, km) "
    + REST,
    "query scaled before the split": "qm = Mul(q, half) q4 = Reshape(qm, split)"
    " q5 = Transpose<perm = [0,2,1,3]>(q4) " + K + S + REST,
    "keys transposed twice": Q + K_TWICE + S + REST,
    "keys transposed flat": Q + K_FLAT + S + REST,
    "not guarded for nothing": SCALED + GUARDED,
    "dropout of inference": SCALED + P + "u = Dropout(r) " + V + "o = MatMul(u, vh) " + MERGE,
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_spellings(name: str) -> None:
    after = fused(text(SPELLINGS[name]), SHAPES)
    assert ops(after).get("Transpose", 0) == ops(after).get("Softmax", 0) == 0
    assert ops(after)["Attention"] == 1


def test_a_softmax_written_out_is_one_before_attention_is_looked_for() -> None:
    rows = (
        "top = ReduceMax(s, minus) d = Sub(s, top) e = Exp(d) sum = ReduceSum(e, minus)"
        " r = Div(e, sum) "
    )
    model = model_of(text(SCALED + rows + V + OUT + MERGE))
    steps = [
        step
        for step in make_clean_recipe(read_facts(model), Cpu()).steps
        if step.name() in ("fuse-attention", "fuse-softmax")
    ]
    for step in steps:
        assert step.apply(model) == 1
    assert ops(model)["Attention"] == 1
    assert steps[0].stage < steps[1].stage


def test_merged_to_rows() -> None:
    body = SCALED + P + V + OUT + "ot = Transpose<perm = [0,2,1,3]>(o) y = Reshape(ot, rows) "
    after = fused(text(body, outputs="float[n,8] y"), SHAPES)
    assert "Transpose" not in ops(after)


def test_not_merged_at_all() -> None:
    after = fused(text(SCALED + P + V + "y = MatMul(r, vh) ", outputs="float[b,2,s,4] y"), SHAPES)
    assert ops(after)["Attention"] == ops(after)["Transpose"] == 1


@pytest.mark.parametrize("body", [PACKED, GATHERED])
def test_packed_projections_are_cut_before_they_are_transposed(body: str) -> None:
    source = text(
        body + "s0 = MatMul(q5, kt) s = Mul(s0, half) " + P + OUT + MERGE, "float[b,s,24] p"
    )
    after = fused(source, [{"p": normal(2, 5, 24)}, {"p": normal(1, 1, 24)}])
    assert ops(after) == {"Split": 1, "Attention": 1}


def rows(kind: str, batch: int, queries: int, keys: int) -> np.ndarray:
    """Return which keys count: some rows with all, some with none."""
    keep = np.random.default_rng(5).random((batch, 1, queries, keys)) < 0.6
    keep[0, 0, 0] = True
    if kind == "none in a row":
        keep[-1, 0, -1] = False
    else:
        keep[..., 0] = True
    return keep


@pytest.mark.parametrize("kind", ["some in a row", "none in a row"])
@pytest.mark.parametrize("fill", [-10000.0, float(np.finfo(np.float32).min), -np.inf])
@pytest.mark.parametrize("guarded", [False, True])
def test_added_masks_keep_their_meaning(kind: str, fill: float, guarded: bool) -> None:
    body = MASKED + (GUARDED if guarded else REST)
    keep = rows(kind, 2, 3, 4)
    mask = np.where(keep, 0, fill).astype(np.float32)
    want = run(model_of(text(body, f"{toys.INPUTS}, {FOUR}")), qkv(2, 3, 4) | {"mask": mask})[0]
    assert np.isnan(want).any() == (kind != "some in a row" and fill == -np.inf and not guarded)
    fused(text(body, f"{toys.INPUTS}, {FOUR}"), [qkv(2, 3, 4) | {"mask": mask}])


@pytest.mark.parametrize("fill", ["tenthousand", "lowest"])
@pytest.mark.parametrize("kind", ["some in a row", "none in a row"])
@pytest.mark.parametrize("inverse", [False, True])
def test_selected_scores(fill: str, kind: str, inverse: bool) -> None:
    choice = f"Where(keep, {fill}, s1)" if inverse else f"Where(keep, s1, {fill})"
    body = Q + K + f"s0 = MatMul(q5, kt) s1 = Mul(s0, half) s = {choice} " + REST
    keep = rows(kind, 2, 3, 4)
    given = qkv(2, 3, 4) | {"keep": ~keep if inverse else keep}
    fused(text(body, toys.INPUTS + ", bool[b,1,s,t] keep"), [given])


@pytest.mark.parametrize("fill", ["tenthousand", "lowest"])
def test_the_mask_of_tokens_is_made_once_for_all_layers(fill: str) -> None:
    once = "m1 = Unsqueeze(m, ax12) m2 = Cast<to = 1>(m1) m3 = Sub(one, m2)"
    layer = (
        "q4{0} = Reshape({1}, split) q5{0} = Transpose<perm = [0,2,1,3]>(q4{0})"
        " k4{0} = Reshape({1}, split) kt{0} = Transpose<perm = [0,2,3,1]>(k4{0})"
        " s0{0} = MatMul(q5{0}, kt{0}) s1{0} = Div(s0{0}, four) s{0} = Add(s1{0}, mask)"
        " r{0} = Softmax<axis = -1>(s{0}) o{0} = MatMul(r{0}, q5{0})"
        " ot{0} = Transpose<perm = [0,2,1,3]>(o{0}) y{0} = Reshape(ot{0}, merge) "
    )
    body = f"{once} mask = Mul(m3, {fill}) {layer.format(1, 'q')}z = Neg(y1) "
    body += f"{layer.format(2, 'z')} y = Neg(y2)"
    source = text(body, "float[b,s,8] q, int64[b,s] m")
    given = [{"q": normal(b, s, 8), "m": np.ones((b, s), np.int64)} for b, s in ((2, 5), (1, 1))]
    given[0]["m"][1, 2:] = 0
    given.append({"q": normal(2, 3, 8), "m": np.zeros((2, 3), np.int64)})
    after = fused(source, given, count=2)
    assert ops(after)["Expand"] == 1
    assert ops(after).get("Max", 0) == (fill == "lowest")


@pytest.mark.parametrize(
    "shape", ["b,1,s,t", "1,1,s,t", "1,2,s,t", "b,2,s,t", "b,1,1,t", "s,t", "t"]
)
def test_masks_of_every_shape(shape: str) -> None:
    sizes = {"b": 2, "s": 3, "t": 5}
    given = normal(*(sizes.get(d) or int(d) for d in shape.split(",")), seed=9)
    body = MASKED + REST
    fused(text(body, f"{toys.INPUTS}, float[{shape}] mask"), [qkv(2, 3, 5) | {"mask": given}])


def test_a_bias_of_positions_and_a_mask() -> None:
    body = Q + K + "s0 = MatMul(q5, kt) s1 = Add(bias, s0) s = Add(s1, mask) " + REST
    given = qkv(2, 3, 3) | {"bias": normal(1, 2, 3, 3), "mask": normal(2, 1, 1, 3)}
    inputs = f"{toys.INPUTS}, float[1,2,s,t] bias, float[b,1,1,t] mask"
    assert ops(fused(text(body, inputs), [given]))["Add"] == 1


CAUSAL = (
    "ql = Shape<start = 1, end = 2>(q) le = Concat<axis = 0>(ql, ql) full = Expand(one, le)"
    " low = Trilu<upper = 0>(full) no = Equal(low, zero) mask = Where(no, lowest, zero) "
)


def test_causal_masks_are_nothing_special() -> None:
    fused(text(CAUSAL + MASKED + REST), [qkv(2, 4, 4), qkv(1, 1, 1)])


PAST = (
    Q
    + "k4 = Reshape(k, split) kn = Transpose<perm = [0,2,1,3]>(k4) pk2 = Concat<axis = 2>(pk, kn)"
    " v4 = Reshape(v, split) vn = Transpose<perm = [0,2,1,3]>(v4) pv2 = Concat<axis = -2>(pv, vn)"
    " kt = Transpose<perm = [0,1,3,2]>(pk2) s0 = MatMul(q5, kt) "
)
PAST_IN = f"{toys.INPUTS}, float[b,2,p,4] pk, float[b,2,p,4] pv"
PAST_OUT = "float[b,s,8] y, float[b,2,n,4] pk2, float[b,2,n,4] pv2"


@pytest.mark.parametrize("guarded", [False, True])
@pytest.mark.parametrize("length", [0, 1, 6])
def test_keys_and_values_of_the_past(guarded: bool, length: int) -> None:
    after = "o = MatMul(g, pv2) " if guarded else "o = MatMul(r, pv2) "
    body = PAST + "s1 = Mul(s0, half) s = Add(s1, mask) " + P + (GUARD if guarded else "") + after
    source = text(body + MERGE, f"{PAST_IN}, float[b,1,s,n] mask", PAST_OUT)
    past = {name: normal(2, 2, length, 4, seed=i) for i, name in enumerate(("pk", "pv"))}
    mask = np.where(rows("none in a row", 2, 3, 3 + length), 0, -np.inf).astype(np.float32)
    model = fused(source, [qkv(2, 3, 3) | past | {"mask": mask}])
    assert ops(model)["Attention" if guarded else "MultiHeadAttention"] == 1
    assert "Concat" not in ops(model)


def test_a_past_that_is_read_elsewhere_stays_joined() -> None:
    body = PAST + "s = Mul(s0, half) " + P + "o = MatMul(r, pv2) " + MERGE + "n = Shape(pk2)"
    source = text(body, PAST_IN, f"{PAST_OUT}, int64[4] n")
    past = {name: normal(1, 2, 3, 4) for name in ("pk", "pv")}
    assert ops(fused(source, [qkv(1, 2, 2) | past]))["Concat"] == 1


ROTARY = (
    "pos = Cast<to = 1>(ids) pu = Unsqueeze(pos, minus) ang = Mul(pu, rate)"
    " both = Concat<axis = -1>(ang, ang) c3 = Cos(both) s3 = Sin(both)"
    " c = Unsqueeze(c3, ax1) sn = Unsqueeze(s3, ax1) "
)


def turned(x: str) -> str:
    return (
        f"{x}m = Mul({x}h, c) {x}lo = Slice({x}h, ax0, two, ax3)"
        f" {x}up = Slice({x}h, two, end, ax3)"
        f" {x}ne = Neg({x}up) {x}ro = Concat<axis = -1>({x}ne, {x}lo) {x}rs = Mul({x}ro, sn)"
        f" {x}t = Add({x}m, {x}rs) "
    )


@pytest.mark.parametrize("batch", ["b", "1"])
@pytest.mark.parametrize("grouped", [False, True])
def test_rotary_embeddings_and_shared_heads(batch: str, grouped: bool) -> None:
    width = 4 if grouped else 8
    heads = "few" if grouped else "split"
    body = ROTARY + (
        "q4 = Reshape(q, split) qh = Transpose<perm = [0,2,1,3]>(q4)"
        f" k4 = Reshape(k, {heads}) kh = Transpose<perm = [0,2,1,3]>(k4)"
        f" v4 = Reshape(v, {heads}) vf = Transpose<perm = [0,2,1,3]>(v4) "
    )
    body += turned("q") + turned("k")
    copied = "{0}u = Unsqueeze({1}, ax2) {0}e = Expand({0}u, spread) {0}g = Reshape({0}e, many) "
    body += copied.format("k", "kt") + copied.format("v", "vf") if grouped else ""
    k, v = ("kg", "vg") if grouped else ("kt", "vf")
    body += f"kk = Transpose<perm = [0,1,3,2]>({k}) s0 = MatMul(qt, kk) s = Mul(s0, half) {P}"
    body += f"o = MatMul(r, {v}) {MERGE}"
    inputs = f"float[b,s,8] q, float[b,s,{width}] k, float[b,s,{width}] v, int64[{batch},s] ids"
    given = {"q": normal(2, 5, 8), "k": normal(2, 5, width), "v": normal(2, 5, width)}
    ids = np.arange(10).reshape(2, 5)[: 1 if batch == "1" else 2] * 7
    after = fused(text(body, inputs), [given | {"ids": ids}])
    assert (ops(after)["RotaryEmbedding"], ops(after)["Attention"]) == (2, 1)
    assert "Slice" not in ops(after)


LEFT = {
    "probabilities are read elsewhere": (SCALED + REST + "z = Neg(r)", "y, float[b,2,s,t] z"),
    "mask is scaled": (
        Q + K + S.replace("s =", "s0 =") + "s1 = Add(s0, mask) s = Mul(s1, half) " + REST,
        "y",
    ),
    "scale is not positive": (Q + K + "s0 = MatMul(q5, kt) s = Mul(s0, negative) " + REST, "y"),
    "is not a mask": (Q + K + "s0 = MatMul(q5, kt) s = Where(keep, s0, nine) " + REST, "y"),
    "masked twice": (
        Q + K + "s0 = MatMul(q5, kt) s1 = Where(keep, s0, tenthousand) s = Add(s1, mask) " + REST,
        "y",
    ),
    "not split off": (
        "kt = Transpose<perm = [0,1,3,2]>(kf) s = MatMul(qf, kt) " + P + "y = MatMul(r, kf)",
        "y",
    ),
    "not over the keys": (SCALED + P.replace("-1", "1") + V + OUT + MERGE, "y"),
}


@pytest.mark.parametrize("why", LEFT)
def test_what_is_left_alone_says_why(why: str) -> None:
    body, out = LEFT[why]
    extra = {"mask": FOUR, "keep": "bool[b,1,s,t] keep", "qf": "float[b,2,s,t] qf"}
    extra["kf"] = "float[b,2,s,t] kf"
    words = set(body.replace("(", " ").replace(")", " ").replace(",", " ").split())
    inputs = [toys.INPUTS, *(line for name, line in extra.items() if name in words)]
    if why == "not split off":
        inputs, out = inputs[1:], "y"
        source = text(body, ", ".join(inputs), "float[b,2,s,t] y")
    else:
        source = text(body, ", ".join(inputs), f"float[b,s,8] {out}")
    assert why in refused(source)


@pytest.mark.parametrize(
    ("inputs", "why"),
    [
        ("float[1,s,8] q, float[b,t,8] k, float[b,t,8] v", "differ in batch"),
        ("double[b,s,8] q, double[b,t,8] k, double[b,t,8] v", "not of float32"),
    ],
)
def test_inputs_that_the_kernel_does_not_take(inputs: str, why: str) -> None:
    outputs = "float[b,s,8] y" if "float" in inputs else "double[b,s,8] y"
    assert why in refused(text(Q + K + S + REST, inputs, outputs))


def test_gates_and_other_softmaxes_are_not_attention() -> None:
    assert (
        refused(
            text(
                "s = MatMul(q, w) r = Softmax<axis = -1>(s) y = MatMul(r, w)",
                "float[b,s,8] q",
                "float[b,s,8] y",
            ).replace("<>", "<float[8,8] w = {" + ",".join(["0.1"] * 64) + "}>")
        )
        == ""
    )


def test_bodies_too() -> None:
    inner = SCALED + P + V + OUT + "ot = Transpose<perm = [0,2,1,3]>(o) z = Reshape(ot, merge)"
    body = (
        f"y = If(choice) <then_branch = t () => (float[b,s,8] z) {{ {inner} }},"
        " else_branch = e () => (float[b,s,8] w) { w = Neg(q) }>"
    )
    source = text(body, f"{toys.INPUTS}, bool choice")
    held = ", ".join(toys.CONSTANTS[n] for n in ("split", "merge", "four"))
    source = source.replace("<> {", f"<{held}> {{")
    given = [qkv(2, 3, 4) | {"choice": np.array(c)} for c in (True, False)]
    fused(source, given)


def test_older_opsets_and_other_backends() -> None:
    model = model_of(text(SCALED + REST, opset=20))
    assert STEP.apply(model) == 0
    assert STEP.suits(Cpu(), Capabilities()) and not STEP.suits(Openvino(), Capabilities())
    counted = Facts.__new__(Facts)
    object.__setattr__(counted, "ops", {"MatMul": 2, "Softmax": 1})
    assert STEP.applies(counted)


def test_heads_split_by_lengths_that_nothing_is_known_of() -> None:
    """As TorchScript writes it; which tokens are kept is seen in a run only."""
    split = (
        "n = NonZero(kept) at = Squeeze(n, ax0) x = Gather<axis = 1>(q, at) sx = Shape(x)"
        " b0 = Gather<axis = 0>(sx, i0) b1 = Unsqueeze(b0, ax0)"
        " l0 = Gather<axis = 0>(sx, i1) l1 = Unsqueeze(l0, ax0)"
        " to = Concat<axis = 0>(b1, l1, minus, d4) back = Concat<axis = 0>(b1, l1, minus)"
        " w = Neg(x) q4 = Reshape(w, to) k4 = Reshape(x, to) v4 = Reshape(x, to)"
        " q5 = Transpose<perm = [0,2,1,3]>(q4) kt = Transpose<perm = [0,2,3,1]>(k4)"
        " vh = Transpose<perm = [0,2,1,3]>(v4) "
    )
    body = split + S + P + OUT + "ot = Transpose<perm = [0,2,1,3]>(o) y = Reshape(ot, back) "
    source = text(body, "float[b,s,8] q, bool[s] kept", "float[b,n,8] y")
    kept = np.array([True, False, True, True])
    after = fused(source, [{"q": normal(2, 4, 8), "kept": kept}])
    shapes = [value.shape for node in after.graph for value in node.outputs]
    assert not any("length" in str(shape) for shape in shapes)


@pytest.mark.parametrize("mask", ["Sub(m2, one)", "Mul(m3, lowest)", "Add(m3, m3)"])
def test_sums_and_products_that_make_a_mask(mask: str) -> None:
    made = "m1 = Unsqueeze(m, ax12) m2 = Cast<to = 1>(m1) m3 = Sub(one, m2) "
    made += f"m4 = {mask} mask = Mul(m4, {'one' if 'lowest' in mask else 'tenthousand'}) "
    given = qkv(2, 3, 3) | {"m": np.array([[1, 0, 1], [0, 0, 0]])}
    fused(text(made + MASKED + REST, toys.INPUTS + ", int64[b,t] m"), [given])
