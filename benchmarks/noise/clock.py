"""The clock against uninterrupted loops: does a ratio by turns hold for who runs alone?

    python -m benchmarks.noise.clock [NAME ...] [--plan NAME MODEL BACKEND] [--times 5]

By turns: a fresh pair of processes, as `optimize` times its finalists. Loops: a process alone for
five seconds, of which the first does not count, then one of the other side, who begins by turns.
Without a plan the named shapes and samples run on OpenVINO, in bf16 and in f32, against
onnxruntime; a plan is a built model and where it runs, against the original of that name. One
thread each.
Results: ``benchmarks/results/clock.json``.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.result_files import result_file, write_results
from ortune.core.backend import Backend
from ortune.core.plugins import catalog
from ortune.core.plugins.spelling import parse_plugin
from ortune.core.sample import Sample
from ortune.core.trial import Block, Burst, Interval, Pair
from ortune.core.workload import Span
from ortune.data import feeds
from ortune.graph.analysis import facts
from ortune.graph.io import file
from ortune.measurement.machine.machine import describe_machine, package_versions
from ortune.measurement.process import Worker, single_model_job
from ortune.measurement.timing import stats
from ortune.measurement.timing.pairs import Effort, fresh_pairs
from ortune.measurement.timing.turns import request_burst, size_bursts, wait_until_ready, warm_up

RESULTS = result_file("clock")
NAMES = ("minilm", "efficientnet-lite0", "resnet50", "bert")
BASELINE = "cpu(threads=1)"
BACKENDS = ("openvino(threads=1, precision=bf16)", "openvino(threads=1, precision=f32)")
EFFORT = Effort(max_blocks=20, seconds=2.4, decide=False)
LOOP_S = 5.0
_PARTS, _UNSETTLED = 10, 2
"""A loop is cut into parts; the first ones do not count."""
TOLERANCE = 0.02


@dataclass(frozen=True)
class Case:
    """A plan and the original that it is measured against."""

    name: str
    home: Path
    model: Path
    backend: str

    @property
    def sides(self) -> tuple[tuple[Path, Backend], ...]:
        """Model and backend of baseline and candidate."""
        original = (self.home / "model.onnx", parse_plugin(Backend, BASELINE))
        return original, (self.model, parse_plugin(Backend, self.backend))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--plan", action="append", nargs=3, metavar=("NAME", "MODEL", "BACKEND"))
    parser.add_argument("--times", type=int, default=5)
    asked = parser.parse_args()
    for case in cases(asked.names, asked.plan or []):
        _write(case, _measured(case, asked.times))


def cases(names: list[str], plans: list[list[str]]) -> Iterator[Case]:
    """Yield what was asked for; of a name the model as it came, on every backend."""
    for name in names or ([] if plans else NAMES):
        home = _home(name)
        yield from (Case(name, home, home / "model.onnx", backend) for backend in BACKENDS)
    yield from (Case(name, _home(name), Path(model), on) for name, model, on in plans)


def _home(name: str) -> Path:
    """Return the folder of a packaged sample or a benchmark shape."""
    # Importing the exporters takes seconds.
    from tests.real import samples

    from benchmarks.speed import shapes

    return samples.written(name) if name in catalog.list_plugins(Sample) else shapes.write(name)


def _measured(case: Case, times: int) -> dict[str, Any]:
    turns, loops = [], []
    sizes: dict[int, Span] = {}
    with TemporaryDirectory(prefix="ortune-") as folder:
        root = Path(folder)
        inputs = facts.read_facts(file.load(case.sides[0][0]), read=True).inputs
        fed = feeds.load_feeds(str(case.home / "data"), inputs, root / "data").stream
        starts = _starts(case, fed, root)
        for turn in range(times):
            turns += [one.pair for one in fresh_pairs(starts[0], starts[1], 2, EFFORT)]
            sizes = sizes or _sizes(starts)
            loops.append(_looped(starts, sizes, backwards=bool(turn % 2)))
            told = [round(math.exp(_middle(way[-1])), 4) for way in (turns, loops)]
            print(f"{case.name} {turn}: by turns {told[0]}, by loops {told[1]}", flush=True)
    return found(turns, loops)


def _starts(case: Case, fed: Path, root: Path) -> list[Any]:
    def start(model: Path, backend: Backend) -> Worker:
        return Worker(single_model_job(model, backend, fed, root, "clock"))

    return [lambda side=side: start(*side) for side in case.sides]


def _sizes(starts: list[Any]) -> dict[int, Span]:
    """Return the loop of each side."""
    warmed = {}
    for side, start in enumerate(starts):
        with start() as worker:
            wait_until_ready(worker)
            warmed[side] = warm_up(worker)
    return size_bursts(warmed, LOOP_S)


def _looped(starts: list[Any], sizes: dict[int, Span], *, backwards: bool) -> Pair:
    """Return one loop of each side, each process alone: its settled parts are the blocks."""
    taken = {}
    for side in sorted(sizes, reverse=backwards):
        with starts[side]() as worker:
            wait_until_ready(worker)
            warm_up(worker)
            taken[side] = _parts(request_burst(worker, sizes[side]))
    return Pair(tuple(map(Block, taken[0], taken[1]))[_UNSETTLED:])


def _parts(loop: Burst) -> list[Burst]:
    edges = np.linspace(0, len(loop.latency_ns), _PARTS + 1).astype(int)
    return [
        Burst(loop.latency_ns[a:b], loop.waited[a:b], loop.runs_each, loop.alike)
        for a, b in pairwise(edges)
    ]


def _middle(pair: Pair) -> float:
    return stats.compute_trimmed_mean(stats.block_logs(pair))


def found(turns: list[Pair], loops: list[Pair]) -> dict[str, Any]:
    """Return both ratios with their intervals, and whether they agree.

    They do within 2 %, or where the interval of what they differ by holds 0.
    """
    ways = {"turns": stats.latency_ratio(turns), "loops": plain(list(map(_middle, loops)))}
    one, two = ways.values()
    apart = one.value / two.value - 1
    half = math.hypot(*(math.log(way.high / way.low) / 2 for way in (one, two)))
    inside = abs(math.log(one.value / two.value)) <= half
    return {
        **{way: [round(x, 4) for x in (v.value, v.low, v.high)] for way, v in ways.items()},
        "apart": round(apart, 4),
        "agree": abs(apart) <= TOLERANCE or inside,
        "each": {
            "turns": [round(math.exp(_middle(pair)), 4) for pair in turns],
            "loops": [round(math.exp(_middle(pair)), 4) for pair in loops],
        },
        "entries of a block": [
            len(side.latency_ns)
            for side in (turns[0].blocks[0].baseline, turns[0].blocks[0].candidate)
        ],
        "blocks of a pair": [len(pair.blocks) for pair in turns],
        "disturbed": {
            "turns": round(stats.compute_disturbed_share(turns), 4),
            "loops": round(stats.compute_disturbed_share(loops), 4),
        },
    }


def plain(logs: list[float]) -> Interval:
    """Return Student's interval of the mean of log-ratios, without a prior: no such for loops."""
    middle = float(np.mean(logs))
    half = math.inf
    if len(logs) > 1:
        error = float(np.std(logs, ddof=1)) / math.sqrt(len(logs))
        half = stats.student_quantile(stats.CONFIDENCE, len(logs) - 1) * error
    return Interval(math.exp(middle), math.exp(middle - half), math.exp(middle + half))


def _write(case: Case, measured: dict[str, Any]) -> None:
    """Put this case's results beside those of others."""
    known = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    if known.get("machine") != describe_machine():
        known = {}  # one machine stands over all rows
    label = f"{case.name}, {case.backend}"
    label += "" if case.model == case.home / "model.onnx" else f", {case.model.name}"
    known |= {"machine": describe_machine(), "versions": package_versions(), label: measured}
    write_results(RESULTS, known)
    print(label, json.dumps(measured))


if __name__ == "__main__":
    main()
