"""Memory and time of calibrating by entropy with 20, 200 and 2,000 samples, as JSON.

MiniLM's tensors that int8-static asks for, two passes. The samples are sentences of the packaged
calibration text, cut to lengths from 8 tokens to their own: no two runs need be of one shape.

    python -m benchmarks.calibration [--samples 20,200,2000] [--model minilm.onnx --data FOLDER]

Results: ``benchmarks/results/calibration.json``. FOLDER holds npz files, as everywhere.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from tests.real.samples import written

from ortune.calibration.calibrate import calibrate_groups
from ortune.core.observer import Observer, Probe
from ortune.core.plugins.spelling import parse
from ortune.core.step import Quantizer
from ortune.data import feeds, stream
from ortune.measurement.machine import noise
from ortune.measurement.machine.machine import machine, versions
from ortune.model.analysis.facts import facts
from ortune.model.io import file

OBSERVERS = ("entropy", "min-max")
SHORTEST = 8
RESULTS = Path(__file__).resolve().parent / "results" / "calibration.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", default="20,200,2000", help="how many, ascending")
    parser.add_argument("--model", type=Path, help="in place of the packaged MiniLM")
    parser.add_argument("--data", type=Path, help="its calibration samples")
    asked = parser.parse_args()
    if asked.model is None:
        made = written("minilm")
        asked.model, asked.data = made / "model.onnx", made / "calibration"
    counts = [int(count) for count in asked.samples.split(",")]
    with TemporaryDirectory(prefix="calibration-") as name:
        rows = [
            row(asked.model, asked.data, observer, count, Path(name) / f"{observer}-{count}")
            for observer in OBSERVERS
            for count in counts
        ]
    about = {"machine": machine(), "versions": versions(), "noise": noise.now()}
    RESULTS.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")
    for found in rows:
        print(json.dumps(found))


def row(model: Path, data: Path, observer: str, count: int, folder: Path) -> dict[str, Any]:
    """Calibrate once and say what it took."""
    loaded = file.load(model)
    fed = feeds.load(data, facts(loaded).inputs, folder)
    texts = stream.Stream(fed.stream)
    cut = folder / "cut.stream"
    lengths: list[int] = []
    stream.write(cut, sentences(texts, count, lengths))
    asked = parse(Quantizer, "int8-static").probes(loaded)
    method = parse(Observer, observer)
    probes = [Probe(probe.tensor, method) for probe in asked]
    found = calibrate_groups(loaded, probes, cut, [range(count)], folder)
    return {
        "observer": observer,
        "samples": count,
        "tokens": sum(lengths),
        "tensors": len(probes),
        "parts": found.parts,
        "seconds": round(found.seconds, 2),
        "cpu_seconds": round(found.cpu_seconds, 2),
        "cpu_ms_a_sample": round(found.cpu_seconds * 1e3 / count, 2),
        "peak_rss_mb": round(found.peak_rss / 2**20, 1),
    }


def sentences(
    texts: stream.Stream, count: int, lengths: list[int]
) -> Iterator[dict[str, np.ndarray]]:
    """Yield sentences in turn, each cut to a length that is drawn anew; note the lengths."""
    draw = np.random.default_rng(0)
    for index in range(count):
        text = texts[index % len(texts)]
        longest = min(array.shape[-1] for array in text.values())
        length = int(draw.integers(min(SHORTEST, longest), longest + 1))
        lengths.append(length)
        yield {name: array[..., :length] for name, array in text.items()}


if __name__ == "__main__":
    main()
