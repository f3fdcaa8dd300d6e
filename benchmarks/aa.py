"""A/A and a slow twin: how often paired timing claims what is not there, and finds what is.

    python -m benchmarks.aa [--times 40] [--beside-neighbour]

A packaged model runs against itself, as finalists do: three fresh pairs of processes each time.
What single pairs spread beyond their own error estimates `stats.PAIR_SD`. The twin is the same
runs with every latency of the candidate 5 % longer. Results: ``benchmarks/results/aa.json``.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from ortune.backends.cpu import Cpu
from ortune.core.trial import Block, Burst, Interval, Pair
from ortune.data import stream
from ortune.measurement import stats
from ortune.measurement.job import MAIN, WorkerJob
from ortune.measurement.machine import machine, noise, versions
from ortune.measurement.pairs import Effort, time_pair
from ortune.measurement.process import Worker, worker_folder
from ortune.samples import digit_cnn

HERE = Path(__file__).resolve().parent
PAIRS = 3
SLOWER = 1.05


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=40)
    parser.add_argument("--beside-neighbour", action="store_true", help="load one core meanwhile")
    asked = parser.parse_args()
    with TemporaryDirectory(prefix="ortune-") as folder, _neighbour(asked.beside_neighbour):
        runs = [_pairs(Path(folder)) for _ in range(asked.times)]
    equal = [stats.ratio(pairs) for pairs in runs]
    twins = [stats.ratio([_slowed(pair) for pair in pairs]) for pairs in runs]
    logs = [stats.block_logs(pair) for pairs in runs for pair in pairs]
    singles = np.array([[stats.centre(one), stats.bootstrap(one)] for one in logs])
    found = {
        "times": asked.times,
        "pairs each": PAIRS,
        "A/A claims at 99 %": sum(r.high < 1 or r.low > 1 for r in equal),
        "slow twin": SLOWER,
        "twin called slower": sum(r.low > 1 for r in twins),
        "twin called faster": sum(r.high < 1 for r in twins),
        "standard deviation of a pair's log-ratio": float(np.std(singles[:, 0], ddof=1)),
        "standard deviation of the pair's own effect": _effect(singles),
        "prior of it": stats.PAIR_SD,
        "median half-width": float(np.median([math.log(r.high / r.low) / 2 for r in equal])),
        "disturbed runs": stats.disturbed([p for pairs in runs for p in pairs]),
        "ratios": [_plain(r) for r in equal],
        "log-ratios of pairs and their errors": singles.round(6).tolist(),
        "noise": dict(noise()),
    }
    path = HERE / "results" / "aa.json"
    known = json.loads(path.read_text()) if path.is_file() else {}
    label = "beside a busy neighbour" if asked.beside_neighbour else "alone"
    known |= {"machine": machine(), "versions": versions(), label: found}
    path.write_text(json.dumps(known, indent=1) + "\n")
    print(json.dumps({k: v for k, v in found.items() if not isinstance(v, list)}, indent=1))


def _pairs(root: Path) -> list[Pair]:
    made = []
    for _ in range(PAIRS):
        with _worker(root) as one, _worker(root) as two:
            for worker in (one, two):
                worker.ask("load")
                worker.ask("first")
            effort = Effort(min_blocks=6, max_blocks=12, seconds=1.5, decide=False)
            made.append(time_pair(one, two, effort))
    return made


def _worker(root: Path) -> Worker:
    model = Path(digit_cnn.__file__).with_name("digit_cnn.onnx")
    feeds = root / "feeds.stream"
    if not feeds.is_file():
        rng = np.random.default_rng(0)
        shape = (8, 1, 28, 28)
        stream.write(feeds, ({"image": rng.standard_normal(shape, np.float32)} for _ in range(8)))
    job = WorkerJob({MAIN: model}, Cpu(threads=1), {MAIN: feeds}, worker_folder(root / "w", "aa"))
    return Worker(job)


def _effect(singles: NDArray[np.float64]) -> float:
    """Return what is left of the spread without the error within pairs; the true mean is 0."""
    beyond = float(np.mean(singles[:, 0] ** 2) - np.mean(singles[:, 1] ** 2))
    return math.sqrt(max(0.0, beyond))


def _slowed(pair: Pair) -> Pair:
    """Return the pair with a candidate that takes 5 % longer, its noise and all."""

    def slow(burst: Burst) -> Burst:
        longer = tuple(round(ns * SLOWER) for ns in burst.latency_ns)
        return Burst(longer, burst.waited, burst.runs_each)

    return Pair(tuple(Block(block.baseline, slow(block.candidate)) for block in pair.blocks))


@contextmanager
def _neighbour(wanted: bool) -> Iterator[None]:
    """Keep one core busy meanwhile."""
    process = multiprocessing.Process(target=_spin, daemon=True) if wanted else None
    if process:
        process.start()
    yield
    if process:
        process.terminate()


def _spin() -> None:
    while True:
        sum(range(10_000))


def _plain(found: Interval) -> list[float]:
    return [round(found.value, 5), round(found.low, 5), round(found.high, 5)]


if __name__ == "__main__":
    main()
