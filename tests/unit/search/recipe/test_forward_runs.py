"""Islands of float32 in a 16-bit graph: found by forward runs, and they bring accuracy back."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from tests.unit.quantizing import model_of, normal, run, snr

from ortune.core.errors import BadData
from ortune.core.reading import read_step
from ortune.core.session import Tensors
from ortune.core.step import Quantizer, Recipe
from ortune.data import feeds
from ortune.graph.io import file
from ortune.graph.ir import edit
from ortune.quantizers.common.float16.islands import (
    add_switches,
    group_into_layers,
    list_narrow_nodes,
    select_islands,
)
from ortune.quantizers.common.float16.overflow import BFLOAT16, FLOAT16
from ortune.quantizers.fp16 import Fp16
from ortune.search.recipe.build import build

NETWORK = """<ir_version: 8, opset_import: ["": 17]>
g (float[n,32] x) => (float[n,32] y) {
  a = MatMul(x, w1)
  b = Relu(a)
  c = MatMul(b, w2)
  d = Add(c, far)
  e = MatMul(d, w3)
  f = Relu(e)
  h = MatMul(f, w4)
  i = Tanh(h)
  y = MatMul(i, w5)
}"""
"""The numbers of d lie around 300 and e takes that off again: float16 keeps little of them."""

LAYERS = [["a", "b"], ["c", "d"], ["e", "f"], ["h", "i"], ["y"]]


def network() -> ir.Model:
    weights = {f"w{k}": normal(32, 32, seed=k, scale=0.2) for k in range(1, 6)}
    weights["w3"] -= weights["w3"].mean(axis=0)
    weights["far"] = np.full(32, 300, np.float32)
    model = model_of(NETWORK, weights)
    for node in model.graph:
        node.name = str(node.outputs[0].name)
    return model


SAMPLES = [{"x": normal(4, 32, seed=seed)} for seed in range(30, 34)]


def written(folder: Path) -> tuple[Path, feeds.Feeds]:
    """Write the network and its samples."""
    model = network()
    path = file.save(model, folder / "model.onnx")
    (folder / "data").mkdir()
    for k, sample in enumerate(SAMPLES):
        np.savez(folder / "data" / f"{k}.npz", **sample)
    return path, feeds.load_feeds(folder / "data", edit.list_inputs(model), folder)


def error(path: Path) -> float:
    fresh = {"x": normal(8, 32, seed=99)}
    return snr(run(network(), fresh)[0], run(file.load(path), fresh, "DISABLE_ALL")[0])


def built(text: str, folder: Path) -> tuple[Path, str]:
    """Build one step with samples; return the file and the step's note."""
    path, given = written(folder)
    made = build(path, Recipe("one", (read_step(text),)), folder / "out.onnx", feeds=given)
    return made.path, made.edits[-1].note


def wide(path: Path) -> set[str]:
    """Return the nodes that compute in float32."""
    return {
        str(node.name)
        for node in file.load(path).graph
        if node.op_type != "Cast" and node.outputs[0].dtype == ir.DataType.FLOAT
    }


def test_the_layers_around_a_hurt_tensor_go_back(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    plain, _ = built("fp16(loss=1000)", tmp_path / "plain")
    path, note = built("fp16(islands=2, loss=1000)", tmp_path)
    assert wide(plain) == set()
    assert wide(path) == {"c", "d", "e", "f"}
    assert "2 layers kept in float32 to raise the output SNR" in note
    assert error(path) > error(plain) + 15


def test_auto_gives_back_as_few_as_it_takes(tmp_path: Path) -> None:
    path, note = built("fp16(islands=auto, loss=1000)", tmp_path)
    assert error(path) > 50
    assert "2 layers kept in float32" in note


def test_auto_leaves_alone_what_is_near_enough(tmp_path: Path) -> None:
    path, note = built("fp16(islands=auto, exclude=[c, d, e, f])", tmp_path)
    assert "no layer kept in float32" in note
    assert wide(path) == {"c", "d", "e", "f"}


def test_without_samples_there_is_no_cost(tmp_path: Path) -> None:
    path, _ = written(tmp_path)
    with pytest.raises(BadData, match="needs samples: what a layer costs is measured"):
        build(path, Recipe("one", (read_step("fp16(islands=1)"),)), tmp_path / "out.onnx")


def converted(model: ir.Model) -> list:
    trial = model.clone()
    nodes = list(trial.graph)
    Fp16(loss=1000).apply(trial, {})
    return list_narrow_nodes(nodes, ir.DataType.FLOAT16)


def test_layers_begin_with_a_heavy_operator() -> None:
    model = network()
    nodes = list(model.graph)
    found = group_into_layers(nodes, converted(model))
    assert [[nodes[one.place].name for one in part] for part in found] == LAYERS


@pytest.mark.parametrize("format", [FLOAT16, BFLOAT16])
def test_switched_off_nothing_changes_and_on_it_rounds(format) -> None:
    model = network()
    copy, name = add_switches(
        model, group_into_layers(list(model.graph), converted(model)), format
    )
    feed = SAMPLES[0]
    before = run(model, feed, "DISABLE_ALL")[0]
    off = run(copy, {**feed, name: np.zeros(5, bool)}, "DISABLE_ALL")[0]
    np.testing.assert_array_equal(off, before)
    found = [
        snr(before, run(copy, {**feed, name: np.arange(5) == k}, "DISABLE_ALL")[0])
        for k in range(5)
    ]
    assert all(np.isfinite(found))
    assert min(found) == min(found[1:3])


def test_all_switched_on_it_is_the_converted_file() -> None:
    """Up to what onnxruntime keeps in float32 between operators without a float16 kernel."""
    model = network()
    copy, name = add_switches(
        model, group_into_layers(list(model.graph), converted(model)), FLOAT16
    )
    feed = SAMPLES[0]
    on = run(copy, {**feed, name: np.ones(5, bool)}, "DISABLE_ALL")[0]
    half = network()
    Fp16(loss=1000).apply(half, {})
    before = run(model, feed)[0]
    assert abs(snr(before, on) - snr(before, run(half, feed, "DISABLE_ALL")[0])) < 6


def test_a_pair_is_found_where_each_alone_gains_nothing() -> None:
    model = network()
    parts = group_into_layers(list(model.graph), converted(model))

    def noise(switched: ir.Model, values: Sequence[Tensors]) -> Sequence[float]:
        rows = [next(iter(one.values())) for one in values]
        return [0.0 if not row.any() else 0.1 if row[1] or row[2] else 1e-7 for row in rows]

    found = select_islands(model, parts, FLOAT16, noise, 2)
    assert [len(layer) for layer in found.layers] == [2, 2]
    assert found.before == pytest.approx(10)
    assert found.after == pytest.approx(70)


def test_what_overflows_is_given_back_first() -> None:
    model = network()
    parts = group_into_layers(list(model.graph), converted(model))

    def noise(switched: ir.Model, values: Sequence[Tensors]) -> Sequence[float]:
        rows = [next(iter(one.values())) for one in values]
        return [0.0 if not row.any() else float("inf") if row[3] else 1e-6 for row in rows]

    (layer,) = select_islands(model, parts, FLOAT16, noise, None).layers
    assert [list(model.graph)[place].name for place in layer] == LAYERS[3]


def test_old_runs_keep_their_keys() -> None:
    assert "islands" not in Recipe("r", (Fp16(),)).key
    assert Recipe("r", (Fp16(),)).key == "847fadda793f4fbc"
    assert Recipe("r", (Fp16(islands=2),)).key != Recipe("r", (Fp16(),)).key
    found = read_step("fp16(islands=auto)")
    assert isinstance(found, Quantizer) and str(found) == "fp16(islands=auto)"
