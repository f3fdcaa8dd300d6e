"""What cutting padding brings, beside what the share of padding promises.

    python -m benchmarks.speed.buckets [--seconds 40] [--width 128]

MiniLM on its 200 film-review lines, padded to one width as servers pad them. For every backend
and number of buckets: the share of positions that is left (the promise), the ratio predicted from
latencies measured at six lengths, and the ratio timed in pairs with its 99 % interval; beside
them what a new length costs when it is seen for the first time, and what the cutting itself
takes. Results: ``benchmarks/results/buckets.json``. Needs a machine that is idle otherwise.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from tests.real.samples import written

import ortune as ot
from benchmarks.result_files import result_file, write_results
from ortune.analysis.benchmark.bench import race_contestants
from ortune.analysis.padding.buckets import buckets
from ortune.backends.bucketed import Bucketed
from ortune.core.backend import Backend
from ortune.core.plugins import codec
from ortune.core.plugins.spelling import parse_plugin
from ortune.measurement.machine.machine import describe_machine, package_versions
from ortune.search.padding import Buckets

RESULTS = result_file("buckets")
BACKENDS = ("cpu(threads=1)", "openvino(threads=1)")
COUNTS = (1, 2, 4, 8)
_CALLS = 20000


def main() -> None:
    """Measure every backend and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=40, help="of timing, a backend")
    parser.add_argument("--width", type=int, default=128, help="what samples are padded to")
    parser.add_argument("--backends", nargs="*", default=list(BACKENDS))
    parser.add_argument("--model", type=Path, help="another encoder, with --data")
    parser.add_argument("--data", type=Path, help="its samples, padded or not")
    asked = parser.parse_args()
    folder = None if asked.model else written("minilm")
    model = asked.model or folder / "model.onnx"
    source = asked.data or folder / "data"
    result: dict[str, Any] = {
        "machine": describe_machine(),
        "versions": package_versions(),
        "width": asked.width,
    }
    with TemporaryDirectory() as name:
        data = padded(source, Path(name) / "padded", asked.width)
        for text in asked.backends:
            backend = parse_plugin(Backend, text)
            if reason := backend.missing():
                result[text] = {"left out": reason}
                continue
            result[text] = measured(model, data, backend, asked.seconds, Path(name))
            print(json.dumps(result[text], indent=1), flush=True)
    write_results(RESULTS, result)


def padded(source: Path, out: Path, width: int) -> Path:
    """Write samples with every array padded by zeros to `width`; longer ones as they are."""
    out.mkdir(parents=True)
    for path in sorted(source.glob("*.npz")):
        arrays = {k: v for k, v in np.load(path).items() if k != "label"}
        full = {k: np.pad(v, ((0, 0), (0, max(0, width - v.shape[1])))) for k, v in arrays.items()}
        np.savez(out / path.name, **full)
    return out


def measured(
    model: Path, data: Path, backend: Backend, seconds: float, folder: Path
) -> dict[str, Any]:
    """Return one backend's rows: all numbers of buckets in one race."""
    found = {n: buckets(model, data=data, on=str(backend), count=n, seconds=0) for n in COUNTS}
    every = buckets(model, data=data, on=str(backend), count=10**6, multiple=1, seconds=0)
    named: dict[str, Buckets] = {str(n): one for n, one in found.items()} | {"all": every}
    sides = [(model, backend), *((model, one.backend) for one in named.values())]
    ran = codec.encode(race_contestants(sides, data=data, time=seconds))
    rows = {
        name: {
            "lengths": list(one.backend.lengths),
            "positions": one.positions,
            "predicted": one.predicted,
            "measured": ratio,
        }
        for (name, one), ratio in zip(named.items(), ran["ratios"][1:], strict=True)
    }
    return {
        "padding share": every.padding.share,
        "promise": every.least,
        "snr_db": dict(every.proof.snr_db),
        "latency_ns at length": {str(k): v for k, v in found[4].latency_ns.items()},
        "buckets": rows,
        "first at a length": first(model, data, found[4].backend, folder),
        "cutting_us": cutting(model, data, found[4].backend),
        "noise": codec.encode(ran["noise"]),
        "too noisy": ran["judgement"]["too_noisy"],
    }


def first(model: Path, data: Path, cut: Bucketed, folder: Path) -> dict[str, Any]:
    """Return what the first run at every bucket's length costs, beside a later one."""
    out = folder / f"lengths-{cut.inner.name()}"
    out.mkdir()
    with np.load(next(iter(sorted(data.glob("*.npz"))))) as file:
        sample = dict(file)
    for length in (*cut.lengths, sample[cut.mask].shape[1]):
        np.savez(out / f"{length:04}.npz", **cut.cut_feeds(sample, length))
    plain = replace(cut.inner, threads=cut.threads)
    ran = codec.encode(
        ot.bench(model, on=str(plain), data=out, workload="first-shapes", time=6, sets=3)
    )
    reported: dict[str, Any] = ran["rows"][0]["reported"]
    return reported


def cutting(model: Path, data: Path, cut: Bucketed) -> dict[str, float]:
    """Return microseconds of choosing a bucket, cutting the inputs, restoring the outputs."""
    with np.load(next(iter(sorted(data.glob("*.npz"))))) as file:
        sample = dict(file)
    length = cut.choose_bucket(sample)
    short = {name: np.ones((1, length, 384), np.float32) for name in cut.outputs}
    width = sample[cut.mask].shape[1]

    def each(call: Any) -> float:
        taken = []
        for _ in range(9):
            start = time.perf_counter_ns()
            for _ in range(_CALLS // 9):
                call()
            taken.append((time.perf_counter_ns() - start) / (_CALLS // 9) / 1000)
        return sorted(taken)[4]

    return {
        "choose": each(lambda: cut.choose_bucket(sample)),
        "cut": each(lambda: cut.cut_feeds(sample, length)),
        "restore": each(lambda: cut.pad_outputs(dict(short), width)),
    }


if __name__ == "__main__":
    main()
