"""Measure a bundle's ratio again: how often it falls where the bundle said that it will.

    python -m benchmarks.noise.again [BUNDLE] [--data D] [--times 20] [--minutes 30] [--fresh]

Every measurement is a fresh pair of processes, the packed plan against the plain original that
lies beside it in the bundle, spread over the minutes, every second one beside a neighbour that
loads one core (integer work, vector work and copying in turn). Without BUNDLE one is made by the
command line from a packaged sample. Measurements are kept in ``build/again/*.jsonl`` as they end,
and the same command goes on where it was stopped. Results: ``benchmarks/results/again.json``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.result_files import result_file, write_results
from benchmarks.speed.neighbour import KINDS, neighbour, to_itself
from ortune.bundle.engine import archive
from ortune.bundle.read import Bundle, BundleEvidence, read_bundle
from ortune.core.backend import Backend
from ortune.core.plugins import codec
from ortune.core.trial import Interval, Pair
from ortune.data import feeds as data_feeds
from ortune.measurement.job import WorkerJob
from ortune.measurement.machine import noise
from ortune.measurement.machine.machine import describe_machine, package_versions
from ortune.measurement.process import Worker, worker_folder
from ortune.measurement.timing import stats
from ortune.measurement.timing.pairs import Effort, time_pair

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "build" / "again"
EFFORT = Effort(max_blocks=20, seconds=4, decide=False)
SAMPLE = "efficientnet-lite0"


@dataclass(frozen=True)
class Unpacked:
    """What a bundle compares: two sets of models, two backends, one set of samples."""

    original: Mapping[str, Path]
    tuned: Mapping[str, Path]
    baseline: Backend
    backend: Backend
    feeds: Mapping[str, Path]
    evidence: BundleEvidence


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", nargs="?", type=Path)
    parser.add_argument("--sample", default=SAMPLE, help="make the bundle from this sample")
    parser.add_argument("--time", default="2m", help="of that search")
    parser.add_argument("--data", help="samples to time on, in place of the bundle's own two")
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--fresh", action="store_true", help="forget what an earlier run kept")
    asked = parser.parse_args()
    path = asked.bundle or _made(asked.sample, asked.time)
    kept = WORK / f"{path.stem}.jsonl"
    if asked.fresh:
        kept.unlink(missing_ok=True)
    bundle = read_bundle(path)
    with TemporaryDirectory(prefix="ortune-") as folder:
        parts = unpack(path, bundle, Path(folder), asked.data)
        _measure(parts, Path(folder), kept, asked.times, 60 * asked.minutes / max(1, asked.times))
    rows = [json.loads(line) for line in kept.read_text().splitlines()]
    if rows:
        _write(path.stem, bundle, parts.evidence, rows[: asked.times])


def _made(sample: str, time: str) -> Path:
    """Search and pack as a user does."""
    from tests.real.samples import sample as known
    from tests.real.samples import written

    home, run, out = written(sample), WORK / f"{sample}-run", WORK / f"{sample}.ortune"
    if out.is_file():
        return out
    given = ["--data", home / "data", "--calibration", home / "calibration", "-o", run, "--quiet"]
    given += ["--budget", known(sample).budget, "--on", "cpu(threads=1)", "--time", time]
    ortune = [sys.executable, "-m", "ortune.cli.main"]
    subprocess.run([*ortune, "optimize", home / "model.onnx", *given], check=True)
    subprocess.run([*ortune, "pack", run, "-o", out], check=True)
    return out


def unpack(path: Path, bundle: Bundle, folder: Path, data: str | None) -> Unpacked:
    """Unpack what a bundle compares.

    Args:
        data: Samples to time on; None takes the bundle's own golden ones.
    """
    told = bundle.manifest
    first = told.plans[0]
    golden = {name: one.inputs for name, one in first.golden.items()}
    with archive.open_bundle(path) as (file, manifest):
        keep = {*first.models.values(), *told.fallback.values(), *golden.values()}
        archive.unpack_members(file, manifest, folder, keep)
    feeds = {name: folder / member for name, member in golden.items()}
    if data is not None:
        inputs = told.signatures[""].inputs
        feeds = {"": data_feeds.load_feeds(data, inputs, folder / "data").stream}
    return Unpacked(
        {name: folder / member for name, member in told.fallback.items()},
        {name: folder / member for name, member in first.models.items()},
        bundle.evidence.job.baseline,
        bundle.backend,
        feeds,
        bundle.evidence,
    )


def _measure(parts: Unpacked, root: Path, kept: Path, times: int, every_s: float) -> None:
    """Make the measurements that are not kept yet, one every so many seconds."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.touch()
    rows = [json.loads(line) for line in kept.read_text().splitlines()]
    due = rows[-1]["began"] + every_s if rows else 0.0
    for index in range(len(rows), times):
        time.sleep(max(0.0, due - time.time()))
        kind = list(KINDS)[index // 2 % len(KINDS)] if index % 2 else None
        with to_itself(), neighbour(kind) as other:
            began, due = time.time(), max(due, time.time()) + every_s
            mark, before = other.mark(), noise.take_snapshot()
            measured = one_pair(parts, root, backwards=bool(index // 2 % 2))
            record = noise.compare_snapshots(before, noise.take_snapshot())
            row = {
                "index": index,
                "began": round(began, 1),
                "neighbour": kind,
                "neighbour's cores": other.share(mark) if kind else None,
                "ratio": round(stats.latency_ratio([measured]).value, 5),
                "blocks": stats.block_logs(measured).round(5).tolist(),
                "disturbed": round(stats.compute_disturbed_share([measured]), 4),
                "noise": codec.encode(record),
            }
        with kept.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(f"{index}: {row['ratio']} beside {kind or 'nobody'}", flush=True)


def one_pair(parts: Unpacked, root: Path, *, backwards: bool = False) -> Pair:
    """Time the packed plan against the packed original in a fresh pair of processes.

    Args:
        backwards: Start the plan first: who does is a little slower, so that they take turns.
    """
    with ExitStack() as stack:
        sides = ((parts.original, parts.baseline), (parts.tuned, parts.backend))
        one, two = (
            stack.enter_context(
                Worker(
                    WorkerJob(
                        models=models,
                        backend=backend,
                        feeds=parts.feeds,
                        out=worker_folder(root / "workers", "again"),
                        workload=parts.evidence.job.workload,
                    )
                )
            )
            for models, backend in sides
        )
        for worker in (two, one) if backwards else (one, two):
            worker.ask("load")
            worker.ask("first")
        return time_pair(one, two, EFFORT)


def stated(evidence: BundleEvidence) -> tuple[Interval, Interval]:
    """Return the ratio and the prediction that the bundle carries."""
    trial = evidence.trials[-1]
    if trial.ratio is None or trial.measurement is None:
        raise SystemExit("the bundle carries the original: there is no ratio to measure again")
    return trial.ratio, trial.predicted or stats.predict_ratio(trial.measurement.pairs)


def _write(
    name: str, bundle: Bundle, evidence: BundleEvidence, rows: list[dict[str, Any]]
) -> None:
    """Put this bundle's results beside those of others."""
    ratio, predicted = stated(evidence)
    inside = [predicted.low <= row["ratio"] <= predicted.high for row in rows]
    beside = [hit for hit, row in zip(inside, rows, strict=True) if row["neighbour"]]
    found = {
        "plan": bundle.manifest.plan,
        "stated ratio": [round(x, 5) for x in (ratio.value, ratio.low, ratio.high)],
        "predicted": [round(predicted.low, 5), round(predicted.high, 5)],
        "measured again": len(rows),
        "inside": sum(inside),
        "beside a neighbour": len(beside),
        "inside, beside a neighbour": sum(beside),
        "minutes": round((rows[-1]["began"] - rows[0]["began"]) / 60, 1),
        "ratios": [[row["neighbour"], row["neighbour's cores"], row["ratio"]] for row in rows],
    }
    path = result_file("again")
    known = json.loads(path.read_text()) if path.is_file() else {}
    known |= {"machine": describe_machine(), "versions": package_versions(), name: found}
    write_results(path, known)
    print(json.dumps({k: v for k, v in found.items() if k != "ratios"}, indent=1))


if __name__ == "__main__":
    main()
