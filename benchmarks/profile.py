"""How much of a run a profile explains: coverage, overhead and kernels with sources, as JSON.

Every model on the CPU backend at both ends of the levels with one and two threads, and on
OpenVINO where it loads it.

    python -m benchmarks.profile [FOLDER] > benchmarks/results/profile.json

FOLDER may hold efficientnet_lite0.onnx and minilm.onnx, so that they need not be exported again.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from tests.real.task import installed

from ortune.analysis.profiling.profile import profile
from ortune.cli.main import main as apply
from ortune.core.errors import OrtuneError
from ortune.core.profile import Profile
from ortune.core.sample import Sample
from ortune.measurement.machine.machine import machine, versions
from ortune.samples.efficientnet_lite0 import EfficientnetLite0
from ortune.samples.minilm import Minilm

SECONDS = 2.0
BACKENDS = [
    *(f"cpu(level={level}, threads={n})" for level in ("all", "disabled") for n in (1, 2)),
    *(f"openvino(threads={n})" for n in (1, 2)),
]
LENGTH = 32


@dataclass(frozen=True)
class Case:
    """A model and what it is fed."""

    name: str
    path: Path
    shapes: dict[str, tuple[int, ...]]
    ranges: dict[str, tuple[float, float]] = field(default_factory=dict)


def cases(folder: Path) -> Iterator[Case]:
    """Yield the models; those of samples are written into the folder."""
    image = {"image": (1, 3, 224, 224)}
    yield Case("efficientnet-lite0", exported(EfficientnetLite0(), folder), image)
    model = exported(Minilm(), folder)
    words = ("input_ids", "attention_mask", "token_type_ids")
    shapes = dict.fromkeys(words, (1, LENGTH))
    ranges = {"input_ids": (1.0, 29_000.0), words[1]: (1.0, 1.0), words[2]: (0.0, 0.0)}
    yield Case("minilm", model, shapes, ranges)
    yield Case("minilm int8", quantized(model, folder), shapes, ranges)
    silero = installed("silero-vad", "silero_vad/data/silero_vad.onnx")
    frame = {"input": (1, 576), "state": (2, 1, 128), "sr": ()}
    yield Case("silero", silero, frame, {"sr": (16_000.0, 16_000.0)})
    ocr = installed("rapidocr", "rapidocr/models")
    yield Case("PP-OCRv6 det", ocr / "PP-OCRv6_det_small.onnx", {"x": (1, 3, 320, 320)})
    yield Case("PP-OCRv6 rec", ocr / "PP-OCRv6_rec_small.onnx", {"x": (1, 3, 48, 320)})


def exported(sample: Sample, folder: Path) -> Path:
    """Return a sample's model: as it is given, else exported."""
    given = (
        Path(sys.argv[1]) / f"{type(sample).name().replace('-', '_')}.onnx"
        if sys.argv[1:]
        else None
    )
    if given is not None and given.is_file():
        return given
    with redirect_stdout(sys.stderr):
        sample.write(folder / type(sample).name())
    return folder / type(sample).name() / "model.onnx"


def quantized(model: Path, folder: Path) -> Path:
    """Write a Q/DQ version, calibrated on random words."""
    samples = folder / "words"
    samples.mkdir()
    rng = np.random.default_rng(0)
    for index in range(8):
        np.savez(
            samples / f"{index}.npz",
            input_ids=rng.integers(1, 29_000, (1, LENGTH)),
            attention_mask=np.ones((1, LENGTH), np.int64),
            token_type_ids=np.zeros((1, LENGTH), np.int64),
        )
    out = folder / "minilm-int8.onnx"
    with redirect_stdout(sys.stderr):
        failed = apply(
            ["apply", str(model), "int8-static", "--data", str(samples), "-o", str(out)]
        )
    if failed:
        raise SystemExit("minilm is not quantized")
    return out


def row(case: Case, backend: str, found: Profile) -> dict[str, Any]:
    """Return what a profile explains."""
    kinds = {name: one.share for name, one in found.by("kind").items()}
    return {
        "model": case.name,
        "backend": backend,
        "runs": found.runs,
        "plain_ms": found.plain_ns / 1e6,
        "profiled_ms": found.profiled_ns / 1e6,
        "kernels": len(found.kernels),
        "inside": found.inside,
        "coverage": found.coverage,
        "attributed": found.attributed,
        "overhead": found.overhead,
        "mapped": found.mapped,
        "beside_computing": {k: v for k, v in kinds.items() if k != "compute"},
        "regions": len(found.regions),
        "folded": len(found.folded),
    }


def main() -> None:
    """Print one row a model and backend."""
    rows = []
    with tempfile.TemporaryDirectory(prefix="ortune-") as name:
        for case in cases(Path(name)):
            for backend in BACKENDS:
                try:
                    found = profile(
                        case.path,
                        on=backend,
                        shapes=case.shapes,
                        ranges=case.ranges,
                        seconds=SECONDS,
                        ceilings=False,
                    )
                except OrtuneError as error:
                    rows.append(
                        {"model": case.name, "backend": backend, "error": error.what[:200]}
                    )
                    continue
                rows.append(row(case, backend, found))
                sys.stderr.write(f"{rows[-1]}\n")
    print(json.dumps({"rows": rows, "machine": machine(), "versions": versions()}, indent=1))


if __name__ == "__main__":
    main()
