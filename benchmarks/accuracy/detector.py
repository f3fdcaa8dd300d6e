"""A text detector in int8: average precision and size of ours beside onnxruntime's own tool.

PP-OCR's detector on the pages that ``examples/detector`` draws, whose boxes are known. Every file
is calibrated on the same pages, and no page is scored that calibrated. No time is measured here.

    python -m benchmarks.accuracy.detector [--pages 48] [--calibration 16]

Results: ``benchmarks/results/detector.json``.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from benchmarks.result_files import result_file, write_results
from benchmarks.speed.contestants import makers
from ortune.core.budget import Budget
from ortune.core.plugins import spelling
from ortune.core.step import Quantizer, Recipe
from ortune.data import feeds
from ortune.data.feeds import Feeds
from ortune.data.stream import Stream
from ortune.graph.io import file
from ortune.graph.ir import edit
from ortune.measurement.accuracy import judge_accuracy
from ortune.measurement.machine.machine import package_versions
from ortune.metrics.map import Map
from ortune.search.recipe.build import build

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "detector"
RESULTS = result_file("detector")
ALLOWED = 0.01
OURS = ("int8-static", "int8-static(per_channel=false)", "adaptive-rounding int8-static")
STOCK = ("QDQ U8S8", "QDQ U8U8", "QDQ S8S8", "dynamic S8")


@dataclass(frozen=True)
class Pages:
    """Model, pages and boxes.

    Attributes:
        model: PP-OCR's detector.
        fed: The pages that are scored, with their boxes.
        calibration: The others.
    """

    model: Path
    fed: Feeds
    calibration: Feeds


def drawn(folder: Path, pages: int, calibration: int) -> Pages:
    """Draw the example's pages into a folder."""
    if str(EXAMPLE) not in sys.path:
        sys.path.insert(0, str(EXAMPLE))
    from pages import write  # type: ignore[import-not-found]

    write(folder, pages, calibration)
    inputs = edit.list_inputs(file.load(folder / "model.onnx"))
    return Pages(
        folder / "model.onnx",
        feeds.load_feeds(folder / "data", inputs, folder / "fed", labels=folder / "boxes.json"),
        feeds.load_feeds(folder / "calibration", inputs, folder / "fed-calibration"),
    )


def records(metric: Map, model: Path, fed: Feeds) -> NDArray[np.float64]:
    """Return what each page contributes, by onnxruntime as it comes."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    name = session.get_outputs()[0].name
    samples = [dict(one) for one in Stream(fed.stream)]
    outputs = [{name: session.run([name], one)[0]} for one in samples]
    return metric.records(outputs, outputs, fed.labels, samples)


def ours(pages: Pages, steps: str, folder: Path) -> Path:
    """Build a recipe with the pages that calibrate."""
    recipe = Recipe(
        "detector", tuple(spelling.parse_plugin(Quantizer, one) for one in steps.split(" "))
    )
    return build(pages.model, recipe, folder / "out.onnx", feeds=pages.calibration).path


def stock(pages: Pages, folder: Path) -> dict[str, Path | str]:
    """Return what onnxruntime's tool makes of it, or why it makes nothing."""
    npz = folder / "npz"
    npz.mkdir(parents=True)
    for at, one in enumerate(Stream(pages.calibration.stream)):
        np.savez(npz / f"{at:03}.npz", **one)
    found: dict[str, Path | str] = {}
    for name in STOCK:
        path = folder / f"{name.replace(' ', '-')}.onnx"
        try:
            makers(npz)[name](pages.model, path)
            ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
            found[name] = path
        except Exception as error:
            found[name] = reason(error)
    return found


def reason(error: Exception) -> str:
    """Return what went wrong in one line, without the paths of this machine."""
    first = f"{type(error).__name__}: {error}".splitlines()[0]
    return re.sub(r"Load model from \S+ failed: ?", "", first)[:200]


def row(
    by: str, recipe: str, path: Path | str, pages: Pages, base: Sequence[NDArray[np.float64]]
) -> dict[str, Any]:
    """Score one file and say what a budget of one point says of it."""
    about = {"by": by, "recipe": recipe}
    if isinstance(path, str):
        return {**about, "error": path}
    own = [records(metric, path, pages.fed) for metric in metrics()]
    score = judge_accuracy(Budget(metrics()[0], -ALLOWED, relative=True), own[0], base[0])
    half = metrics()[1]
    return {
        **about,
        "map": score.value,
        "map50": half.aggregate(own[1]),
        "low": score.low,
        "verdict": str(score.verdict),
        "bytes": path.stat().st_size,
    }


def metrics() -> tuple[Map, Map]:
    """Return COCO's figure, and that at the one overlap of 0.5."""
    return Map(decode="text_boxes:decode"), Map(decode="text_boxes:decode", iou=0.5)


def measured(folder: Path, count: int, calibration: int) -> dict[str, Any]:
    """Return all rows."""
    pages = drawn(folder, count, calibration)
    base = [records(metric, pages.model, pages.fed) for metric in metrics()]
    rows = [row("", "original", pages.model, pages, base)]
    for at, steps in enumerate(OURS):
        made = folder / f"ours-{at}"
        made.mkdir()
        rows.append(row("ortune", steps, ours(pages, steps, made), pages, base))
        print(json.dumps(rows[-1]), flush=True)
    for name, path in stock(pages, folder / "stock").items():
        rows.append(row("onnxruntime", name, path, pages, base))
        print(json.dumps(rows[-1]), flush=True)
    boxes = sum(len(label["boxes"]) for label in pages.fed.labels or ())
    return {
        "versions": package_versions(),
        "pages": count,
        "calibration": calibration,
        "boxes": boxes,
        "allowed": ALLOWED,
        "rows": rows,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pages", type=int, default=48)
    parser.add_argument("--calibration", type=int, default=16)
    asked = parser.parse_args()
    with TemporaryDirectory(prefix="detector-") as name:
        found = measured(Path(name), asked.pages, asked.calibration)
    write_results(RESULTS, found)


if __name__ == "__main__":
    main()
