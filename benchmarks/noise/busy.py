"""Beside busy neighbours: is what is claimed true, and how often is nothing claimed?

    python -m benchmarks.noise.busy [--pairs 30] [--cells NAME ...] [--summary]

The demo's network, 32 digits at a time on one thread, runs against itself (A/A) and against the
same file on OpenVINO in bf16, several times as fast: a run of the one is as long as the time slice
of the scheduler, a run of the other fits into it. Cells: quiet; one neighbour that takes 50 or
100 % of a CPU, steadily or in bursts of three seconds, where all share one CPU and where they
have two. Pairs are of fresh processes, timed as `optimize` times its finalists, five to a verdict,
all cells in turn. The quiet value is what the quiet cells say. Pairs are kept in
``build/busy.jsonl`` as they end, and the same command goes on where it was stopped. Results:
``busy.json``. An otherwise idle machine; where it is not, ``chrt -r 10`` before the command keeps
the others away, but gives all of a cell slices of 100 ms.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.result_files import result_file
from benchmarks.speed.fresh import Kept, Side, pair_of, running, stream
from benchmarks.speed.neighbour import to_itself
from ortune.core.backend import Backend
from ortune.core.plugins import spelling
from ortune.core.trial import Interval, Pair
from ortune.core.version import read_commit
from ortune.data.zoo.digit_cnn import DigitCnn
from ortune.measurement.machine.machine import describe_machine, package_versions
from ortune.measurement.timing import stats
from ortune.measurement.timing.pairs import claim_effort, time_pair
from ortune.measurement.workloads.latency import Latency

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / "build" / "busy.jsonl"
PAIRS = 30
SEARCH_S = 2.0
"""What a pair of the search of a minute and a half gets."""
RESAMPLED = 400
BASE, OTHER = "cpu(threads=1)", "openvino(threads=1, precision=bf16)"
_NEIGHBOUR = """import sys, threading, time, os
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
share, burst = float(sys.argv[1]), float(sys.argv[2])
began = time.perf_counter()
while True:
    now = time.perf_counter()
    if burst and int((now - began) / burst) % 2:
        time.sleep(burst - (now - began) % burst)
        continue
    while time.perf_counter() < now + 0.01 * share: pass
    if share < 1: time.sleep(0.01 * (1 - share))
"""
"""Busy for a share of every 10 ms; with bursts, for so many seconds, and idle for as many."""


@dataclass(frozen=True)
class Cell:
    """What runs beside a pair, and on how many CPUs all of them are.

    Attributes:
        share: Of a CPU that the neighbour takes; 0 is no neighbour.
        burst: Seconds for which it runs, and then does not; 0 is steadily.
    """

    share: float
    burst: float
    cpus: int

    def __str__(self) -> str:
        load = "quiet" if not self.share else f"{self.share:.0%}"
        return f"{load}{', bursts' if self.burst else ''}, {self.cpus} CPU{'s' * (self.cpus > 1)}"


CELLS = tuple(
    Cell(share, burst, cpus)
    for share, burst in ((0.0, 0.0), (0.5, 0.0), (0.5, 3.0), (1.0, 0.0), (1.0, 3.0))
    for cpus in (1, 2)
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", nargs="+", default=[str(cell) for cell in CELLS])
    parser.add_argument("--pairs", type=int, default=PAIRS, help="of each cell")
    parser.add_argument("--search-seconds", type=float, default=SEARCH_S)
    parser.add_argument("--cpu", type=int, default=max(os.sched_getaffinity(0)))
    parser.add_argument("--kept", type=Path, default=KEPT)
    parser.add_argument("--out", type=Path, default=result_file("busy"))
    parser.add_argument("--fresh", action="store_true", help="forget what an earlier run kept")
    parser.add_argument("--summary", action="store_true", help="time nothing")
    asked = parser.parse_args()
    kept = Kept(asked.kept, fresh=asked.fresh)
    if not asked.summary:
        _time_cells(kept, [cell for cell in CELLS if str(cell) in asked.cells], asked)
    rows = [row for row in kept.rows() if row["index"] < asked.pairs]
    found = {"machine": describe_machine(), "versions": package_versions(), **summarize(rows)}
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(json.dumps(row) for row in rows)
    text = json.dumps(found | {"commit": read_commit()}, indent=1)
    asked.out.write_text(f'{text[:-2]},\n "pairs": [\n{lines}\n ]\n}}\n')
    print(json.dumps({name: found[name] for name in ("quiet value", "cells")}, indent=1))


def _time_cells(kept: Kept, cells: Sequence[Cell], asked: argparse.Namespace) -> None:
    """Time the pairs that are not kept yet, one verdict of every cell, then the next."""
    done = {(row["cell"], row["index"]) for row in kept.rows()}
    with TemporaryDirectory(prefix="ortune-") as folder:
        root = Path(folder)
        DigitCnn().write(root)
        samples = stream(root / "model.onnx", root / "data", root / "feeds")
        workload = Latency(batch=DigitCnn.batch)
        base, other = (
            Side(root / "model.onnx", spelling.parse_plugin(Backend, text), samples, workload)
            for text in (BASE, OTHER)
        )
        for start in range(0, asked.pairs, stats.PAIRS):
            for cell in cells:
                for index in range(start, min(asked.pairs, start + stats.PAIRS)):
                    if (str(cell), index) in done:
                        continue
                    with to_itself(), _beside(cell, asked.cpu):
                        kept.add(_time_row(root, cell, index, base, other, asked.search_seconds))
                print(f"{time.strftime('%H:%M:%S')} {cell}: {start + stats.PAIRS}", flush=True)


@contextmanager
def _beside(cell: Cell, cpu: int) -> Iterator[None]:
    """Stay on the cell's CPUs, beside its neighbour."""
    before = os.sched_getaffinity(0)
    others = sorted(before - {cpu})[: cell.cpus - 1]
    os.sched_setaffinity(0, {cpu, *others})
    command = [sys.executable, "-c", _NEIGHBOUR, str(cell.share), str(cell.burst)]
    try:
        with ExitStack() as stack:
            if cell.share:
                process = stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE))
                stack.callback(process.kill)
            yield
    finally:
        os.sched_setaffinity(0, before)


def _time_row(
    root: Path, cell: Cell, index: int, base: Side, other: Side, search_s: float
) -> dict[str, Any]:
    """Time a pair of the base with itself and one with the other side, in fresh processes."""
    row: dict[str, Any] = {"cell": str(cell), "index": index}
    effort = claim_effort(search_s)
    for name, side in (("A/A", base), ("difference", other)):
        sides = (side, base) if index % 2 else (base, side)
        with ExitStack() as stack:
            workers = [stack.enter_context(running(root, one)) for one in sides]
            first, second = reversed(workers) if index % 2 else workers
            pair = time_pair(first, second, effort)
        row[name] = {
            "blocks": [round(float(one), 5) for one in stats.block_logs(pair)],
            "of": len(pair.blocks),
            "rough": [round(one, 4) for one in _list_rough_logs(pair)],
            "waited": [_waited_share(pair, candidate=one) for one in (False, True)],
        }
    return row


def _list_rough_logs(pair: Pair) -> list[float]:
    """Return the log-ratio of each block by itself that says nothing as it is, less its waits."""
    alone = [Pair((block,)) for block in pair.blocks]
    return [stats.rough_log(one) for one in alone if stats.count_unusable([one])]


def _waited_share(pair: Pair, *, candidate: bool) -> float:
    """Return the share of a side's entries whose threads waited for a CPU."""
    sides = [block.candidate if candidate else block.baseline for block in pair.blocks]
    waited = [share > stats.WAITED for side in sides for share in side.waited]
    return round(float(np.mean(waited)), 4)


Row = Mapping[str, Any]


def summarize(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the quiet value, and of every cell what fives of its pairs say.

    A verdict is of five pairs drawn of the cell's, by all that its other pairs tell; pairs
    without an interval are drawn, too.
    """
    cells: dict[str, list[Row]] = {}
    for row in rows:
        cells.setdefault(row["cell"], []).append(row)
    quiet = [row for row in rows if row["cell"].startswith("quiet")]
    truth = _judge(_pairs(quiet, "difference"), _pairs(quiet, "A/A"))
    return {
        "quiet value": _write(truth),
        "cells": [_summarize_cell(cell, mine, truth.value) for cell, mine in cells.items()],
    }


def _summarize_cell(cell: str, rows: Sequence[Row], truth: float) -> dict[str, Any]:
    equal, apart = _pairs(rows, "A/A"), _pairs(rows, "difference")
    rng = np.random.default_rng(0)
    drawn = [rng.integers(0, len(rows), stats.PAIRS) for _ in range(RESAMPLED)]
    none = [_judge([equal[i] for i in five], equal) for five in drawn]
    found = [_judge([apart[i] for i in five], equal) for five in drawn]
    sure = [one for one in found if one.is_bounded]
    return {
        "cell": cell,
        "pairs": len(rows),
        "waited": np.mean([row["difference"]["waited"] for row in rows], axis=0).round(3).tolist(),
        "pairs without an interval": [
            round(float(np.mean([not pair.blocks for pair in pairs])), 3)
            for pairs in (equal, apart)
        ],
        "claims between equals": _share([one.clear for one in none]),
        "rough blocks": _summarize_rough(rows, math.log(truth)),
        "without an interval": _share([not one.is_bounded for one in found]),
        "holds the quiet value": _share([one.low <= truth <= one.high for one in sure]),
        "claims more than is true": _share([one.high < truth for one in sure]),
        "all pairs": _write(_judge(apart, equal)),
    }


def _summarize_rough(rows: Sequence[Row], truth: float) -> dict[str, float]:
    """Return how many times as slow as it is a side looks in single disturbed blocks."""
    apart = [log - truth for row in rows for log in row["difference"].get("rough", ())]
    apart += [log for row in rows for log in row["A/A"].get("rough", ())]
    shares = {"median": 0.5, "99 %": 0.99, "most": 1.0}
    times = {
        name: round(math.exp(np.quantile(apart, s)), 3) for name, s in shares.items() if apart
    }
    return {"blocks": len(apart), **times}


def _pairs(rows: Sequence[Row], name: str) -> list[Pair]:
    return [pair_of(row[name]["blocks"]) for row in rows]


def _judge(pairs: Sequence[Pair], equal: Sequence[Pair] = ()) -> Interval:
    """Return the ratio of pairs, as a run judges it that has one A/A pair beside them."""
    return stats.latency_ratio(pairs, learnt=stats.PooledVariance.pool([], equal[:1]))


def _share(values: Sequence[bool]) -> float | None:
    return round(float(np.mean(values)), 4) if values else None


def _write(found: Interval) -> list[float] | None:
    """Return an interval for JSON; nothing where there is none."""
    return (
        [round(x, 4) for x in (found.value, found.low, found.high)] if found.is_bounded else None
    )


if __name__ == "__main__":
    main()
