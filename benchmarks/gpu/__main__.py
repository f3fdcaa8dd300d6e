"""A GPU's table: targets, precisions, levels; engines beside trtexec; what tests/gpu said.

    benchmarks/gpu/run.sh, or python -m benchmarks.gpu [--model M.onnx ...] [--seconds 450]

Every model runs on the CPU in float32 and int8 and on the GPU in float32 and float16, at each
level of graph optimization, all in turns; the first answers of each are compared with those of the
original. A part that the time does not suffice for is left out by name. Without a GPU nothing is
written. Results: ``benchmarks/results/gpu.json``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

import ortune as ot
from benchmarks.gpu import engine as gpu_engine
from benchmarks.gpu import models as gpu_models
from benchmarks.result_files import result_file
from ortune.analysis.benchmark.bench import race_contestants
from ortune.backends.cpu import Cpu
from ortune.backends.cuda import Cuda
from ortune.core.atomic_write import open_draft
from ortune.core.backend import Backend, GraphLevel
from ortune.core.errors import OrtuneError
from ortune.core.hardware import gpu
from ortune.core.plugins import codec
from ortune.measurement.machine.machine import describe_machine, package_versions

ROOT = Path(__file__).resolve().parents[2]
RESULTS = result_file("gpu")
LEVELS: tuple[GraphLevel, ...] = ("disabled", "basic", "extended", "all")
TARGETS = (("cpu", "fp32"), ("cpu", "int8"), ("gpu", "fp32"), ("gpu", "fp16"))
NO_DEVICE = "not run: no device"
_KEPT = (
    *("backend", "error", "p50_ns", "p99_ns", "typical_ns", "per_second", "device_ns", "first_ns"),
    *("load_ns", "placement", "peak_rss", "gpus", "size", "entries"),
)
_TESTS_S = 150
_COMPARED = 4
"""Samples whose answers are compared."""


@dataclass(frozen=True)
class Entry:
    """One cell of the table."""

    target: str
    precision: str
    level: GraphLevel
    model: Path

    @property
    def backend(self) -> Backend:
        """Where it runs."""
        return Cpu(level=self.level) if self.target == "cpu" else Cuda(level=self.level)


class Clock:
    """What is left of the time that all parts have together."""

    def __init__(self, seconds: float) -> None:
        self._until = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Seconds."""
        return self._until - time.monotonic()


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, action="append", default=[])
    parser.add_argument("--seconds", type=float, default=450.0)
    parser.add_argument("--out", type=Path, default=RESULTS)
    asked = parser.parse_args(words)
    if not gpu.list_gpus():
        print(NO_DEVICE)
        return 0
    clock = Clock(asked.seconds)
    found: dict[str, Any] = {
        "machine": describe_machine(),
        "versions": package_versions(),
        "gpus": codec.encode(gpu.list_gpus()),
        "driver": dict(gpu.read_driver_versions()),
    }
    with TemporaryDirectory(prefix="ortune-gpu-") as folder:
        root = Path(folder)
        found["tests"] = part(tests, min(_TESTS_S, clock.left))
        models = [*asked.model, *gpu_models.written(root)]
        found["models"] = {}
        for place, model in enumerate(models):
            share = clock.left / (len(models) - place)
            told = found["models"][model.stem] = {"size": model.stat().st_size}
            told["table"] = part(table, model, root / model.stem, 0.6 * share)
            told["engine"] = part(gpu_engine.beside_trtexec, model, root, clock.left)
    with open_draft(asked.out) as draft:
        draft.write_text(json.dumps(codec.make_jsonable(found), indent=1) + "\n", encoding="utf-8")
    print(f"written: {asked.out}")
    return 0 if all(map(_ran, [found["tests"], *found["models"].values()])) else 1


def part(work: Callable[..., Any], *given: Any) -> Any:
    """Return what a part found, or why it did not run: the others still do."""
    try:
        return work(*given)
    except Exception as error:
        print(f"{work.__name__}: {type(error).__name__}: {error}", file=sys.stderr)
        return {"why": f"{type(error).__name__}: {error}"}


def _ran(told: Mapping[str, Any]) -> bool:
    return "why" not in told and all(_ran(v) for v in told.values() if isinstance(v, dict))


def tests(seconds: float) -> dict[str, Any]:
    """Run tests/gpu and return its last lines and exit code."""
    command = [sys.executable, "-m", "pytest", "tests/gpu", "-q", "-rs", "-p", "no:cacheprovider"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=seconds)
    print(run.stdout[-4000:])
    return {"exit": run.returncode, "said": run.stdout.strip().splitlines()[-30:]}


def table(model: Path, folder: Path, seconds: float) -> list[dict[str, Any]]:
    """Time every target, precision and level of a model in turns, and compare its answers."""
    folder.mkdir(parents=True)
    feeds = gpu_models.samples(model)
    data = folder / "samples"
    data.mkdir()
    for place, sample in enumerate(feeds):
        np.savez(data / f"{place}.npz", **sample)  # type: ignore[arg-type]
    every = entries(
        {name: written(model, name, data, folder) for name in ("fp32", "fp16", "int8")}
    )
    timings = race_contestants(
        [(one.model, one.backend) for one in every], data=data, seconds=seconds / 2, sets=2
    )
    wanted = answers(every[0], feeds)
    told = []
    for one, row, ratio in zip(every, timings.rows, timings.ratios, strict=True):
        made = {"target": one.target, "precision": one.precision, "level": one.level}
        made |= {key: row.get(key) for key in _KEPT} | {"ratio": codec.encode(ratio)}
        if not row["error"]:
            made["snr_db"] = snr(wanted, answers(one, feeds))
        told.append(made)
    return told


def entries(files: Mapping[str, Path]) -> list[Entry]:
    """Return the cells of the table, the original's plainest form first."""
    return [
        Entry(target, precision, level, files[precision])
        for target, precision in TARGETS
        for level in LEVELS
    ]


def written(model: Path, precision: str, data: Path, folder: Path) -> Path:
    """Return the model in a precision; float32 is as it came."""
    if precision == "fp32":
        return model
    out = folder / f"{model.stem}-{precision}.onnx"
    options: dict[str, Any] = {"target": "cuda"} if precision == "fp16" else {}
    try:
        ot.convert(model, out, precision=precision, data=data, opt_level="basic", **options)  # type: ignore[arg-type]
    except OrtuneError as error:
        raise OrtuneError(f"{precision}: {error.what}", fix=error.fix) from error
    return out


def answers(one: Entry, feeds: Sequence[Mapping[str, NDArray[Any]]]) -> list[NDArray[Any]]:
    """Return the outputs of the first samples, one after the other, as float64."""
    with ot.load(one.model, on=one.backend) as engine:
        found = [engine(**sample) for sample in feeds[:_COMPARED]]
    return [np.asarray(value, np.float64) for outputs in found for value in outputs.values()]


def snr(wanted: Sequence[NDArray[Any]], found: Sequence[NDArray[Any]]) -> float:
    """Return the signal-to-noise ratio in dB over all outputs, 300 at most."""
    signal = sum(float(np.square(one).sum()) for one in wanted)
    noise = sum(float(np.square(a - b).sum()) for a, b in zip(wanted, found, strict=True))
    return float(10 * np.log10(max(signal, 1e-30) / max(noise, 1e-30 * max(signal, 1.0))))


if __name__ == "__main__":
    sys.exit(main())
