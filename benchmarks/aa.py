"""A/A and a slow twin: how often paired timing claims what is not there, and finds what is.

    python -m benchmarks.aa [--times 100] [--beside-neighbour] [--threads 1] [--fresh]

A packaged model runs against itself, and against a twin that spins for 3 % of the time that every
run just took, the way `optimize` re-measures its finalists: five fresh pairs of processes each,
their starts included in the ten seconds that a comparison may take. With a neighbour, a process
loads one core all the time. Comparisons are kept in ``build/aa-*.jsonl`` as they end, and the
same command goes on where it was stopped. Results: ``benchmarks/results/aa.json``.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.neighbour import neighbour, to_itself
from ortune.core.backend import Backend
from ortune.core.plugins import codec, spelling
from ortune.core.trial import Pair
from ortune.data import stream
from ortune.measurement.job import MAIN, WorkerJob
from ortune.measurement.machine import noise
from ortune.measurement.machine.machine import machine, versions
from ortune.measurement.process import Worker, worker_folder
from ortune.measurement.timing import stats
from ortune.measurement.timing.pairs import Effort, time_pair
from ortune.samples import digit_cnn

ROOT = Path(__file__).resolve().parents[1]
PLUGINS = ROOT / "tests" / "plugins"
SLOWER = 0.03
LIMIT_S = 10.0
AIM_S = 8.0
_FEWEST = 3
_WARM_S = 0.4
"""What `time_pair` takes before its clock runs."""
KINDS = ("A/A", "twin")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=100, help="comparisons of each kind")
    parser.add_argument("--beside-neighbour", action="store_true", help="load one core meanwhile")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--fresh", action="store_true", help="forget what an earlier run kept")
    asked = parser.parse_args()
    _plugins()
    label = "beside a neighbour" if asked.beside_neighbour else "alone"
    label += "" if asked.threads == 1 else f", {asked.threads} threads"
    kept = ROOT / "build" / f"aa-{label.replace(' ', '-').replace(',', '')}.jsonl"
    if asked.fresh:
        kept.unlink(missing_ok=True)
    _compare(kept, asked.times, asked.threads, "spin" if asked.beside_neighbour else None)
    rows = [json.loads(line) for line in kept.read_text().splitlines()]
    _write(label, [row for row in rows if row["index"] < asked.times])


def _plugins() -> None:
    """Let this process and its workers find the slowed backend."""
    sys.path.insert(0, str(PLUGINS))
    known = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(PLUGINS), known]))


def _compare(kept: Path, times: int, threads: int, busy: str | None) -> None:
    """Make the comparisons that are not kept yet; each is on disk when it ends."""
    kept.parent.mkdir(exist_ok=True)
    kept.touch()
    done = {(row["kind"], row["index"]) for row in map(json.loads, kept.open())}
    left = [(k, i) for i in range(times) for k in KINDS if (k, i) not in done]
    with TemporaryDirectory(prefix="ortune-") as folder:
        for kind, index in left:
            with to_itself(), neighbour(busy) as other:
                mark, began, before = other.mark(), time.monotonic(), noise.snapshot()
                pairs = _pairs(Path(folder), kind, threads)
                seconds = time.monotonic() - began
                row = {"kind": kind, "index": index, "seconds": round(seconds, 2)}
                row |= {"neighbour's cores": other.share(mark)} if busy else {}
                row["noise"] = codec.encode(noise.between(before, noise.snapshot()))
            row |= _measured(pairs)
            with kept.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(f"{kind} {index}: {row['ratio']} in {seconds:.1f} s", flush=True)


def _pairs(root: Path, kind: str, threads: int) -> list[Pair]:
    """Time fresh pairs, as finalists are; each gets its share of the time, its start included."""
    backend = f"cpu(threads={threads})"
    twin = backend if kind == "A/A" else f"slowed(threads={threads},by={SLOWER})"
    made: list[Pair] = []
    began = time.monotonic()
    for turn in range(stats.PAIRS):
        spent = time.monotonic() - began
        if len(made) >= _FEWEST and spent * (turn + 1) / turn > LIMIT_S:
            break  # a slow machine: fewer pairs rather than more time; no result is looked at
        due = began + AIM_S * (turn + 1) / stats.PAIRS
        with _worker(root, backend) as one, _worker(root, twin) as two:
            for worker in (one, two):
                worker.ask("load")
                worker.ask("first")
            left = max(0.2, due - _WARM_S - time.monotonic())
            made.append(time_pair(one, two, Effort(4, 20, left, decide=False)))
    return made


def _worker(root: Path, backend: str) -> Worker:
    model = Path(digit_cnn.__file__).with_name("digit_cnn.onnx")
    feeds = root / "feeds.stream"
    if not feeds.is_file():
        rng = np.random.default_rng(0)
        shape = (8, 1, 28, 28)
        stream.write(feeds, ({"image": rng.standard_normal(shape, np.float32)} for _ in range(8)))
    return Worker(
        WorkerJob(
            models={MAIN: model},
            backend=spelling.parse(Backend, backend),
            feeds={MAIN: feeds},
            out=worker_folder(root / "w", "aa"),
        )
    )


def _measured(pairs: list[Pair]) -> dict[str, Any]:
    """Return the interval and, for every pair, its blocks: enough to try other statistics."""
    found = stats.ratio(pairs)
    return {
        "ratio": [round(x, 5) for x in (found.value, found.low, found.high)],
        "blocks": [stats.block_logs(pair).round(5).tolist() for pair in pairs],
        "disturbed": round(stats.disturbed(pairs), 4),
    }


def _write(label: str, rows: list[dict[str, Any]]) -> None:
    """Put this label's results beside those of the others."""
    found = summary(rows)
    path = ROOT / "benchmarks" / "results" / "aa.json"
    known = json.loads(path.read_text()) if path.is_file() else {}
    known |= {"machine": machine(), "versions": versions(), label: found}
    path.write_text(json.dumps(known, indent=1) + "\n")
    print(json.dumps({k: v for k, v in found.items() if not isinstance(v, list)}, indent=1))


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return counts of claims, times and spreads over the kept comparisons."""
    equal = [row for row in rows if row["kind"] == "A/A"]
    twins = [row for row in rows if row["kind"] == "twin"]
    shares = [row["neighbour's cores"] for row in rows if "neighbour's cores" in row]
    pairs = [np.array(blocks) for row in equal for blocks in row["blocks"]]
    means = np.array([stats.centre(one) for one in pairs])
    errors = np.array([stats.bootstrap(one) for one in pairs])
    beyond = float(np.mean(means**2) - np.mean(errors**2))
    return {
        "A/A comparisons": len(equal),
        "A/A claims at 99 %": sum(r["ratio"][1] > 1 or r["ratio"][2] < 1 for r in equal),
        "slow twin": 1 + SLOWER,
        "twin comparisons": len(twins),
        "twin called slower": sum(r["ratio"][1] > 1 for r in twins),
        "twin called faster": sum(r["ratio"][2] < 1 for r in twins),
        "twin's mean ratio": _mean([r["ratio"][0] for r in twins]),
        "pairs each": stats.PAIRS,
        "comparisons of fewer pairs": sum(len(row["blocks"]) < stats.PAIRS for row in rows),
        "longest comparison, s": max(row["seconds"] for row in rows),
        "comparisons over 10 s": sum(row["seconds"] > LIMIT_S for row in rows),
        "neighbour's cores, least and mean": f"{min(shares)}, {_mean(shares)}" if shares else None,
        "median half-width": _median([math.log(r["ratio"][2] / r["ratio"][1]) / 2 for r in equal]),
        "standard deviation of a pair's log-ratio": float(np.std(means, ddof=1)),
        "standard deviation of the pair's own effect": math.sqrt(max(0.0, beyond)),
        "prior of it": stats.PAIR_SD,
        "disturbed runs": _mean([row["disturbed"] for row in rows]),
        "ratios": [r["ratio"] for r in equal],
        "twins": [r["ratio"] for r in twins],
        "log-ratios of pairs and their errors": np.stack([means, errors], 1).round(6).tolist(),
    }


def _mean(values: list[float]) -> float:
    return round(float(np.mean(values)), 4) if values else math.nan


def _median(values: list[float]) -> float:
    return round(float(np.median(values)), 5) if values else math.nan


if __name__ == "__main__":
    main()
