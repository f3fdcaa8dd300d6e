"""A quantizer's probes answered from a file, and what is missing from samples."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from tests.models import write_classifier
from tests.unit.quantizing import model_of, normal

from ortune.core.errors import BadData
from ortune.core.event import Event, Note
from ortune.core.observer import Probe, Range
from ortune.core.step import Recipe
from ortune.data import feeds
from ortune.data.feeds import Feeds
from ortune.graph.analysis.facts import read_facts
from ortune.graph.io import file, names
from ortune.quantizers.calibration import ranges_file
from ortune.quantizers.int8_static import Int8Static
from ortune.quantizers.observers.channels import Channels
from ortune.quantizers.observers.min_max import MinMax
from ortune.search.recipe.build import Material, build, build_in

STEP = Int8Static(head=True, min_side=1)


def _write(path: Path, model: Path, ranges: Mapping[str, Range], digest: str = "") -> Path:
    kept = tuple(ranges_file.Entry(name, seen.low, seen.high) for name, seen in ranges.items())
    found = ranges_file.build_document(
        kept,
        model=model,
        digest=digest or file.compute_digest(model),
        quantizer=str(STEP),
        observer="min-max",
        samples=ranges_file.Samples(),
        version="0",
    )
    path.write_text(json.dumps(found), encoding="utf-8")
    return path


def _tensors(model: Path) -> list[str]:
    loaded = file.load(model)
    names.make_names_unique(loaded)
    return [probe.tensor for probe in STEP.probes(loaded)]


def _feeds(model: Path, data: Path, folder: Path) -> Feeds:
    return feeds.load_feeds(data, read_facts(file.load(model)).inputs, folder)


def _scales(path: Path) -> set[float]:
    arrays = [onnx.numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer]
    return {float(a) for a in arrays if a.dtype == np.float32 and a.ndim == 0}


def test_a_file_answers_every_probe_without_samples(tmp_path: Path) -> None:
    model, _ = write_classifier(tmp_path, samples=16)
    asked = _tensors(model)
    path = _write(tmp_path / "r.json", model, dict.fromkeys(asked, Range(0.0, 255.0)))
    known, notes = ranges_file.load_ranges(path, model)
    events: list[Event] = []
    out = tmp_path / "out.onnx"
    made = build(model, Recipe("r", (STEP,)), out, ranges=known, sink=events.append)
    assert made.changed
    assert notes == ()
    assert _scales(out) == {1.0}
    said = [event.text for event in events if isinstance(event, Note)]
    assert said == [f"int8-static: {len(asked)} of {len(asked)} ranges from {path}"]


def test_what_the_file_lacks_is_named_or_observed(tmp_path: Path) -> None:
    model, data = write_classifier(tmp_path, samples=16)
    first, *others = _tensors(model)
    assert others
    path = _write(tmp_path / "r.json", model, {first: Range(0.0, 255.0)})
    known, _ = ranges_file.load_ranges(path, model)
    recipe, out = Recipe("r", (STEP,)), tmp_path / "out.onnx"
    with pytest.raises(BadData, match=f"has no ranges of {others[0]}"):
        build(model, recipe, out, ranges=known)
    assert not out.exists()
    fed = _feeds(model, data, tmp_path / "feeds")
    build(model, recipe, out, feeds=fed, ranges=known)
    assert 1.0 in _scales(out)
    assert len(_scales(out)) > 1


def test_ranges_are_not_used_behind_a_step_that_changed_the_model(tmp_path: Path) -> None:
    model, _ = write_classifier(tmp_path, samples=16)
    asked = _tensors(model)
    path = _write(tmp_path / "r.json", model, dict.fromkeys(asked, Range(0.0, 255.0)))
    known, _ = ranges_file.load_ranges(path, model)
    first = Int8Static(min_side=32)
    with pytest.raises(BadData, match="behind a step that changed it"):
        build(model, Recipe("r", (first, STEP)), tmp_path / "out.onnx", ranges=known)


def test_builds_of_one_folder_are_told_apart_by_the_file(tmp_path: Path) -> None:
    model, _ = write_classifier(tmp_path, samples=16)
    asked = _tensors(model)
    made = []
    for top in (255.0, 510.0):
        path = _write(tmp_path / f"{top}.json", model, dict.fromkeys(asked, Range(0.0, top)))
        known, _ = ranges_file.load_ranges(path, model)
        made.append(
            build_in(tmp_path / "c", model, Recipe("r", (STEP,)), Material(saved_ranges=known))
        )
    assert [_scales(one.path) for one in made] == [{1.0}, {2.0}]


def test_another_models_file_needs_the_same_tensors(tmp_path: Path) -> None:
    model, _ = write_classifier(tmp_path, samples=16)
    asked = _tensors(model)
    ranges = dict.fromkeys(asked, Range(0.0, 1.0))
    known, notes = ranges_file.load_ranges(
        _write(tmp_path / "a.json", model, ranges, digest="other"), model
    )
    assert known.entries.keys() == set(asked)
    assert "made for another file" in notes[0]
    strange = _write(tmp_path / "b.json", model, ranges | {"k": Range(0, 1)}, digest="other")
    with pytest.raises(BadData, match="it has no k"):
        ranges_file.load_ranges(strange, model)
    few = _write(tmp_path / "c.json", model, {asked[0]: Range(0, 1)}, digest="other")
    with pytest.raises(BadData, match=f"the file has no {asked[1]}"):
        ranges_file.load_ranges(few, model)


def test_an_observer_that_tells_more_is_not_answered_by_a_range() -> None:
    held = {
        "x": ranges_file.Entry("x", -1, 1),
        "y": ranges_file.Entry("y", 0, 2, "channels", ((0.0, 2.0),)),
    }
    known = ranges_file.SavedRanges("f", "d", held, observer="percentile")
    model = model_of(
        "<ir_version: 8, opset_import: ['': 17]> g (float[1] x) => (float[1] z)"
        "{ z = Relu(x) }".replace("'", '"')
    )
    plain = [Probe("x", STEP.observer), Probe("y", STEP.observer)]
    more = [Probe("x", Channels()), Probe("y", Channels())]
    assert ranges_file.answer_probes(known, model, STEP, plain) == {
        "x": Range(-1, 1),
        "y": Range(0, 2, ((0.0, 2.0),)),
    }
    assert set(ranges_file.answer_probes(known, model, STEP, more)) == {"y"}
    named = [Probe("x", MinMax(), name="x|another")]
    assert ranges_file.answer_probes(known, model, STEP, named) == {}


def test_symmetric_ranges_are_cut_to_what_an_operator_can_give(tmp_path: Path) -> None:
    path = tmp_path / "model.cache"
    lines = "".join(f"{name}: 3f800000\n" for name in ("x", "r", "c", "s"))
    path.write_text(f"TRT-8601-EntropyCalibration2\n{lines}", encoding="utf-8")
    model = model_of(
        """g (float[4] x) => (float[4] y) {
            r = Relu(x)
            c = Clip(x, lo, hi)
            s = Sigmoid(x)
            y = Sum(r, c, s)
        }""",
        {"lo": np.float32(0), "hi": np.float32(6)},
    )
    known = ranges_file.read_ranges(path)
    found = ranges_file.answer_probes(
        known, model, STEP, [Probe(n, STEP.observer) for n in "xrcs"]
    )
    assert found == {"x": Range(-127, 127), "r": Range(0, 127), "c": Range(0, 6), "s": Range(0, 1)}


def test_a_name_that_survives_folding_keeps_its_values() -> None:
    """Ranges are known by name: the fused convolution carries the normalization's name."""
    from ortune.transforms.fuse_batch_norm import FuseBatchNorm

    model = model_of(
        """g (float[1,2,4,4] x) => (float[1,2,4,4] y) {
            c = Conv(x, w)
            b = BatchNormalization(c, one, one, one, one)
            y = Relu(b)
        }""",
        {"w": normal(2, 2, 1, 1), "one": np.full(2, 2.0, np.float32)},
    )
    assert FuseBatchNorm().apply(model) == 1
    made = [value.name for node in model.graph for value in node.outputs]
    assert made == ["b", "y"]
