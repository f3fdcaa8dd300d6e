"""Golden samples prove a bundle; they must not outweigh its model."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from tests.unit.studies import study

from ortune.data import stream
from ortune.search.experiment import golden


@pytest.mark.parametrize(("weights", "kept"), [(16, 1), (100_000, 2)])
def test_samples_take_a_tenth_of_the_model_or_there_is_one(
    tmp_path: Path, weights: int, kept: int
) -> None:
    made = study(tmp_path)
    root = Path(made.root)
    model = root / made.best.artefact / "toy.onnx"
    proto = onnx.load(model)
    tensor = onnx.numpy_helper.from_array(np.zeros(weights, np.float32), "more")
    proto.graph.initializer.append(tensor)
    onnx.save(proto, model)
    paths = golden.inputs_path(root, ""), golden.outputs_path(root, "", made.best)
    for path in paths:
        path.unlink()
    feeds = stream.write_stream(
        tmp_path / "feeds.stream", ({"x": np.full((2, 4), i, np.float32)} for i in range(5))
    )
    assert feeds == 5
    context = SimpleNamespace(root=root, feeds={"": tmp_path / "feeds.stream"})
    golden.write_golden_samples(made, context)  # type: ignore[arg-type]
    assert [len(stream.Stream(path)) for path in paths] == [kept, kept]
    assert stream.Stream(paths[0])[0]["x"].max() == 0


def test_the_inputs_alone_let_any_trial_be_packed_later(tmp_path: Path) -> None:
    made = study(tmp_path)
    root = Path(made.root)
    inputs = golden.inputs_path(root, "")
    for path in inputs.parent.iterdir():
        path.unlink()
    feeds = tmp_path / "feeds.stream"
    stream.write_stream(feeds, ({"x": np.full((2, 4), i, np.float32)} for i in range(5)))
    golden.write_inputs(SimpleNamespace(root=root, feeds={"": feeds}))  # type: ignore[arg-type]
    assert len(stream.Stream(inputs)) == golden.COUNT
    golden.ensure_outputs(made, made.best)
    assert len(stream.Stream(golden.outputs_path(root, "", made.best))) == golden.COUNT
