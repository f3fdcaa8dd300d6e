"""Every precision, level and way to call of CUDA beside the CPU, with what the answers lose.

    python -m benchmarks.gpu levels

A CNN, an encoder and a decoder step. All rows of a model are timed in turns; the first is the CPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import ortune as ot
from benchmarks.gpu.steps import Target
from benchmarks.speed import shapes
from ortune.analysis.benchmark.bench import race_contestants
from ortune.backends.cpu import Cpu
from ortune.core.backend import Backend
from ortune.core.errors import OrtuneError
from ortune.core.plugins import codec

MODELS = ("resnet50", "bert", "gptkv")
_LEVELS = ("disabled", "basic", "extended", "all")
_COLUMNS = (
    *("backend", "error", "p50_ns", "p99_ns", "typical_ns", "per_second", "device_ns", "first_ns"),
    *("load_ns", "placement", "peak_rss", "gpus", "size"),
)
_COMPARED = 4
"""Samples whose answers are compared."""


@dataclass(frozen=True)
class Cell:
    """One row of the table: a file and how it runs."""

    precision: str
    way: str
    model: Path
    backend: Backend


def measure(target: Target, seconds: float) -> Iterator[tuple[str, Any]]:
    """Yield a model's rows, one model after another.

    Args:
        seconds: For timing one model; processes start beside it.
    """
    for name in target.some(MODELS):
        folder = shapes.write(name)
        yield name, _measure_model(folder / "model.onnx", folder, target, seconds)


def _measure_model(
    model: Path, folder: Path, target: Target, seconds: float
) -> list[dict[str, Any]]:
    half = target.work / f"{folder.name}-fp16.onnx"
    ot.convert(model, half, precision="fp16", target=target.convert_for, force=True)
    files = {"fp32": model, "fp16": half}
    cells = [Cell("fp32", "cpu", model, Cpu())]
    for precision, path in files.items():
        cells += [Cell(precision, level, path, target.backend(level=level)) for level in _LEVELS]
        cells += [Cell(precision, way, path, backend) for way, backend in target.ways()]
    timings = race_contestants(
        [(cell.model, cell.backend) for cell in cells],
        data=str(folder / "data"),
        time=seconds,
        sets=1,
    )
    feeds = [dict(np.load(path)) for path in sorted((folder / "data").glob("*.npz"))[:_COMPARED]]
    reference = _run(cells[0], feeds)
    rows = []
    for cell, row, ratio in zip(cells, timings.rows, timings.ratios, strict=True):
        record: dict[str, Any] = {
            "precision": cell.precision,
            "way": cell.way,
            "backend": str(cell.backend),
        }
        record |= {key: row.get(key) for key in _COLUMNS} | {"ratio": codec.encode(ratio)}
        if not row["error"]:
            try:
                record["snr_db"] = compute_snr(reference, _run(cell, feeds))
            except OrtuneError as error:
                record["error"] = error.what
        rows.append(record)
    return rows


def _run(cell: Cell, feeds: Sequence[dict[str, NDArray[Any]]]) -> list[NDArray[Any]]:
    """Return the outputs of some samples, one after the other."""
    with ot.load(cell.model, on=cell.backend) as engine:
        return [array for sample in feeds for array in engine(**sample).values()]


def compute_snr(
    reference: Sequence[NDArray[Any]], outputs: Sequence[NDArray[Any]]
) -> float | None:
    """Return the signal-to-noise ratio over all outputs in dB, 300 at most; None if not finite."""
    signal = sum(float(np.square(one, dtype=np.float64).sum()) for one in reference)
    noise = sum(
        float(np.square(a.astype(np.float64) - b).sum())
        for a, b in zip(reference, outputs, strict=True)
    )
    if not np.isfinite(noise):
        return None
    return float(10 * np.log10(max(signal, 1e-30) / max(noise, 1e-30 * max(signal, 1.0))))
