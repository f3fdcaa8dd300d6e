"""The pipeline of the examples reads as many digits as it is shown."""

from __future__ import annotations

from importlib.resources import as_file, files

from examples.meter import pipeline

from ortune.bundle.engine.load import load_engine


def test_it_reads_a_meter() -> None:
    with (
        as_file(files("ortune.data.zoo") / "digit_cnn.onnx") as model,
        load_engine(model, on="cpu(threads=1)") as engine,
    ):
        found = [pipeline.frame(engine, sample) for sample in pipeline.samples()]
    assert len(found) == 8 and all(len(one) == pipeline.DIGITS for one in found)
