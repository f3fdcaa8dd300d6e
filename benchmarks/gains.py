"""What rewriting gains: each claim of docs/rewriting.md as one interleaved race.

    python -m benchmarks.gains [--row NAME] [--seconds 30]

Each row races files or settings against the first of them on onnxruntime's CPU provider, one
thread, on real samples where the model has any. ``clean`` is every automatic transform in stage
order, as the search applies it. Results: ``benchmarks/results/gains.json``. Needs torch for the
exports, an idle machine and about half an hour.
"""

from __future__ import annotations

import argparse
import json
import logging
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.real.samples import written

from benchmarks.shapes import write
from benchmarks.simplifiers import exports
from ortune.analysis.benchmark.bench import race
from ortune.backends.cpu import Cpu
from ortune.core.backend import Backend
from ortune.core.plugins import codec
from ortune.core.reading import step
from ortune.core.step import Recipe
from ortune.data.feeds import load
from ortune.measurement.machine.machine import machine, versions
from ortune.model.analysis.facts import facts
from ortune.model.io import file
from ortune.recipe.build import build
from ortune.recipe.space import clean

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "gains.json"
CPU = Cpu(threads=1)
NO_SKIP = replace(CPU, disable=("SkipLayerNormFusion",))
INT8_MINILM = "int8-static(smooth=0.75, split=4)"


@dataclass(frozen=True)
class Entry:
    """A file to race: a model, steps before, and where it runs.

    Attributes:
        steps: Spelled steps behind the clean recipe; None leaves the model as it came.
        without: Names of transforms left out of the clean recipe.
    """

    name: str
    model: Callable[[], Path]
    steps: tuple[str, ...] | None = ()
    without: tuple[str, ...] = ()
    backend: Backend = CPU


@dataclass(frozen=True)
class Row:
    """Entries against the first of them, on these samples."""

    name: str
    data: Callable[[], Path]
    entries: tuple[Entry, ...]
    calibration: Callable[[], Path] | None = None


def _sample(name: str, part: str = "model.onnx") -> Callable[[], Path]:
    return lambda: written(name) / part


def _shape(name: str, part: str = "model.onnx") -> Callable[[], Path]:
    return lambda: write(name) / part


def _export(name: str) -> Callable[[], Path]:
    return lambda: exports.write(name)


def _pair(name: str, model: Callable[[], Path], data: Callable[[], Path]) -> Row:
    """As it came against clean, each with and without the fused SkipLayerNorm."""
    return Row(
        name,
        data,
        (
            Entry("as it came", model, None),
            Entry("clean", model),
            Entry("as it came, no SkipLayerNorm", model, None, backend=NO_SKIP),
            Entry("clean, no SkipLayerNorm", model, backend=NO_SKIP),
            Entry("without attention", model, without=("fuse-attention",), backend=NO_SKIP),
        ),
    )


def rows() -> tuple[Row, ...]:
    """Return what is raced."""
    eff, mini = _sample("efficientnet-lite0"), _sample("minilm")
    return (
        Row(
            "efficientnet-lite0, two exporters",
            _sample("efficientnet-lite0", "data"),
            (
                Entry("new exporter, clean", eff),
                Entry("new exporter, as it came", eff, None),
                Entry("old exporter, clean", _export("efficientnet_lite0, old exporter")),
                Entry(
                    "old exporter, as it came", _export("efficientnet_lite0, old exporter"), None
                ),
            ),
        ),
        Row(
            "minilm, two exporters",
            _sample("minilm", "data"),
            (
                Entry("new exporter, clean", mini),
                Entry("old exporter, clean", _export("minilm, old exporter")),
                Entry("old exporter, as it came", _export("minilm, old exporter"), None),
            ),
        ),
        _pair("minilm, float32", mini, _sample("minilm", "data")),
        _pair("bert, float32", _shape("bert"), _shape("bert", "data")),
        Row(
            "minilm, int8",
            _sample("minilm", "data"),
            (
                Entry("parts", mini, (INT8_MINILM,), ("fuse-attention",), NO_SKIP),
                Entry("attention fused", mini, (INT8_MINILM,), backend=NO_SKIP),
            ),
            _sample("minilm", "calibration"),
        ),
        Row(
            "dunet",
            _shape("dunet", "data"),
            (
                Entry(
                    "int8, ConvTranspose left", _shape("dunet"), ("int8-static(upsample=false)",)
                ),
                Entry("int8, ConvTranspose as Conv", _shape("dunet"), ("int8-static",)),
                Entry("float32", _shape("dunet"), None),
            ),
            _shape("dunet", "calibration"),
        ),
    )


def make(entry: Entry, row: Row, folder: Path) -> Path:
    """Write the file of an entry, or return the model itself."""
    model = entry.model()
    if entry.steps is None:
        return model
    inputs = facts(file.load(model)).inputs
    recipe = clean(facts(file.load(model)), entry.backend)
    kept = tuple(one for one in recipe.steps if one.name() not in entry.without)
    steps = (*kept, *(step(text) for text in entry.steps))
    feeds = load(str((row.calibration or row.data)()), inputs, folder / "feeds")
    out = folder / f"{abs(hash(entry.name))}.onnx"
    build(model, Recipe(entry.name, steps), out, feeds=feeds)
    return out


def run(row: Row, seconds: float) -> Mapping[str, Any]:
    """Make the files of a row and race them."""
    with tempfile.TemporaryDirectory(prefix="ortune-gains-") as temporary:
        made = [make(one, row, Path(temporary)) for one in row.entries]
        pairs = [(path, one.backend) for path, one in zip(made, row.entries, strict=True)]
        raced = codec.encode(race(pairs, data=str(row.data()), seconds=seconds))
        nodes = [sum(1 for _ in file.load(path).graph.all_nodes()) for path in made]
    results = [
        {"name": one.name, "nodes": count, "ratio": ratio}
        for one, count, ratio in zip(row.entries, nodes, raced["ratios"], strict=True)
    ]
    judged = {"too_noisy": raced["judgement"]["too_noisy"]} if "judgement" in raced else {}
    return {"row": row.name, "results": results, **judged}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--row", action="append")
    parser.add_argument("--seconds", type=float, default=30)
    asked = parser.parse_args()
    logging.disable(logging.WARNING)
    found = json.loads(RESULTS.read_text())["rows"] if RESULTS.is_file() else []
    for row in rows():
        if asked.row and row.name not in asked.row:
            continue
        try:
            result = run(row, asked.seconds)
        except (ImportError, StopIteration) as error:
            result = {"row": row.name, "missing": str(error)}
        print(json.dumps(result), flush=True)
        found = [one for one in found if one["row"] != row.name] + [dict(result)]
        about = {"machine": machine(), "versions": versions()}
        RESULTS.write_text(json.dumps({**about, "rows": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
