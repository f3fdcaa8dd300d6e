"""A switched model is the float model with all switches off, and each form with one on."""

import numpy as np
import onnx_ir as ir
import pytest
from tests.unit.quantizing import model_of, normal, observe, unchecked
from tests.unit.search.mixed_precision.models import transformer

from ortune.core.errors import Refused
from ortune.core.step import Quantizer
from ortune.graph.io import names
from ortune.graph.ir import edit
from ortune.quantizers.int8_dynamic import Int8Dynamic
from ortune.quantizers.int8_static import Int8Static
from ortune.quantizers.int8_weights import Int8Weights
from ortune.search.mixed_precision.choice import isolate_region
from ortune.search.mixed_precision.grouping import find_regions
from ortune.search.mixed_precision.switched import (
    SWITCHES,
    SwitchableModel,
    find_changed_constants,
    give_constants,
)

CONVOLUTIONS = """<ir_version: 8, opset_import: ["": 20]>
g (float[1,3,8,8] x) => (float[1,10] y) {
  a = Conv<pads=[1,1,1,1]>(x, w0)
  b = Relu(a)
  c = Conv<pads=[1,1,1,1]>(b, w1)
  d = Add(c, b)
  e = Relu(d)
  f = Conv<pads=[1,1,1,1]>(e, w2)
  h = GlobalAveragePool(f)
  i = Flatten(h)
  y = Gemm(i, w3)
}"""


def convolutions() -> ir.Model:
    held = {"w0": normal(32, 3, 3, 3), "w1": normal(32, 32, 3, 3, seed=1, scale=0.1)}
    held |= {"w2": normal(32, 32, 3, 3, seed=2, scale=0.1), "w3": normal(32, 10, seed=3)}
    return model_of(CONVOLUTIONS, held)


STEPS = [Int8Static(min_side=8, head=True), Int8Dynamic(min_side=8), Int8Weights(min_size=8)]


@pytest.mark.parametrize("step", STEPS, ids=str)
@pytest.mark.parametrize("kind", ["products", "convolutions"])
def test_each_switch_gives_the_form_with_that_region_alone(step: Quantizer, kind: str) -> None:
    plain = transformer(2) if kind == "products" else convolutions()
    names.make_names_unique(plain)
    feeds = {"h0": normal(1, 8, 32)} if kind == "products" else {"x": normal(1, 3, 8, 8)}
    found = find_regions(plain)
    every = [name for one in found for name in one.layers]
    board = SwitchableModel(plain, len(found))
    wanted = []
    for at, region in enumerate(found):
        form, own = plain.clone(), isolate_region(step, plain, region.layers, every)
        ranges = observe(form, own.probes(form), [feeds])
        try:
            own.apply(form, ranges)
        except Refused:
            assert isinstance(step, Int8Dynamic)
            assert region.ops == ("Conv",)
            wanted.append(unchecked(plain, feeds, "DISABLE_ALL"))
            continue
        wanted.append(unchecked(form, feeds, "DISABLE_ALL"))
        board.add_region(at, form, region.nodes)

    def run(*on: int) -> np.ndarray:
        given = np.isin(np.arange(len(found)), on)
        return unchecked(board.model, {**feeds, SWITCHES: given}, "DISABLE_ALL")[0]

    base = unchecked(plain, feeds, "DISABLE_ALL")[0]
    np.testing.assert_array_equal(run(), base)
    for at, (one,) in enumerate(wanted):
        np.testing.assert_allclose(run(at), one, rtol=1e-5, atol=1e-5)
    assert any(not np.array_equal(run(at), base) for at in range(len(found)))
    if not isinstance(step, Int8Static):  # which also rounds between its layers
        full = plain.clone()
        step.apply(full, observe(full, step.probes(full), [feeds]))
        every_one = run(*range(len(found)))
        np.testing.assert_allclose(every_one, unchecked(full, feeds, "DISABLE_ALL")[0], atol=1e-5)


TEXT = """<ir_version: 8, opset_import: ["": 20]>
g (float[1,4] x) => (float[1,4] y) { p = Gemm(x, a) q = Relu(p) y = MatMul(q, b) }"""
MORE = TEXT.replace("Gemm(x, a)", "Gemm(x, a, c)")


def made(text: str = TEXT, a: float = 1.0, b: float = 1.0, **more: np.ndarray) -> ir.Model:
    held = {"a": a * normal(4, 4), "b": b * normal(4, 4, seed=1)} | more
    model = model_of(text, held)
    for at, node in enumerate(model.graph):
        node.name = f"n{at}"
    return model


def test_a_region_gets_the_constants_of_its_nodes_alone() -> None:
    plain, feeds = made(), {"x": normal(1, 4, seed=2)}
    other = made(MORE, 2.0, 3.0, c=normal(4, seed=3))
    constants = find_changed_constants(plain, other)
    for nodes, wanted in (
        (["n0"], made(MORE, 2.0, 1.0, c=normal(4, seed=3))),
        (["n1", "n2"], made(b=3.0)),
        ([], plain),
        (["n0", "n1", "n2"], other),
    ):
        draft = plain.clone()
        give_constants(draft, nodes, constants)
        (got,), (want,) = (unchecked(one, feeds, "DISABLE_ALL") for one in (draft, wanted))
        np.testing.assert_array_equal(got, want)
    draft = plain.clone()
    give_constants(draft, ["n2"], constants)
    assert edit.const_tensor(next(iter(draft.graph)).inputs[1]) is edit.const_tensor(
        next(iter(plain.graph)).inputs[1]
    )


def test_what_changes_the_graph_is_refused() -> None:
    with pytest.raises(Refused, match="change the graph"):
        find_changed_constants(
            made(), made(TEXT.replace("q = Relu(p) y", "q = Relu(p) r = Relu(q) y"))
        )
    with pytest.raises(Refused, match="is another"):
        find_changed_constants(made(), made(TEXT.replace("Relu", "Neg")))
    looped = """<ir_version: 8, opset_import: ["": 20]>
    g (float[1,4] x, bool s) => (float[1,4] y) {
    y = If (s) <then_branch = t () => (m) { m = Neg(x) },
                else_branch = e () => (n) { n = Abs(x) }> }"""
    one, two = (model_of(looped, {}) for _ in range(2))
    with pytest.raises(Refused, match="body"):
        find_changed_constants(one, two)
