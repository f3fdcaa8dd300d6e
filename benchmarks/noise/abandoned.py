"""How far the first bursts of a trial lie from the whole of it: what `search/abandon.py` rests on.

    python -m benchmarks.noise.abandoned build/aa.jsonl RUN/ledger.jsonl ...

Reads every pair of three blocks or more that `benchmarks.noise.aa` has kept (log-ratios of
blocks), of runs' ledgers (raw, so that they have a first A B) and of the tables of
``benchmarks/search`` that are there, and compares the log-ratio after the first A B, after one
block, two and three with that of the whole pair. Then every pair is put at many distances from a
best plan: how many of those that the rule stops would have ended near it? Pairs on a scripted
clock have no noise: left out. Results: ``benchmarks/results/abandoned.json``. Seconds; the machine
need not be idle."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.result_files import result_file, write_results
from benchmarks.search.table import tables
from benchmarks.speed.fresh import Kept, pair_of
from ortune.core.plugins import codec
from ortune.core.trial import Block, Burst, Measurement, Pair
from ortune.measurement.machine.machine import describe_machine
from ortune.measurement.timing import stats
from ortune.search import abandon

RESULTS = result_file("abandoned")
STEPS: dict[str, float] = {"first A B": 0.5, "1 block": 1, "2 blocks": 2, "3 blocks": 3}
_FEWEST = 3
_PLACES = 60
"""Distances from the best at which every pair is put."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE")
    asked = parser.parse_args()
    sources = {
        "benchmarks.noise.aa": [p for f in asked.files if f.name == "aa.jsonl" for p in kept(f)],
        "ledgers": [p for f in asked.files if f.name == "ledger.jsonl" for p in recorded(f)],
        "benchmarks/search/tables": [p for t in tables() for r in t.rows for p in r.timed()],
    }
    sources = {name: [p for p in pairs if _noisy(p)] for name, pairs in sources.items()}
    every = [pair for pairs in sources.values() for pair in pairs]
    found = {
        "machine": describe_machine(),
        "pairs": {name: len(pairs) for name, pairs in sources.items()},
        "differs from the whole pair": {
            name: _summary([d for p in every if (d := apart(p, blocks)) is not None])
            for name, blocks in STEPS.items()
        },
        "stopped though within 2 % of the best": wrong(every),
    }
    write_results(RESULTS, found)
    print(json.dumps(found, indent=1))


def kept(path: Path) -> Iterator[Pair]:
    """Yield the pairs of `benchmarks.noise.aa`, of which it keeps the log-ratio of every block."""
    for row in Kept(path).rows():
        yield from map(pair_of, row["blocks"].values())


def recorded(path: Path) -> Iterator[Pair]:
    """Yield the pairs of a ledger; a torn line is left out."""
    for line in path.read_text("utf-8").split("\n"):
        try:
            data = json.loads(line).get("measurement")
        except json.JSONDecodeError:
            continue
        if data:
            yield from codec.decode(Measurement, data).pairs


def apart(pair: Pair, blocks: float) -> float | None:
    """Return how much more a pair's log-ratio is after so many blocks than at its end."""
    taken = part(pair, blocks)
    if taken is None:
        return None
    logs = stats.block_logs(taken)
    return stats.compute_trimmed_mean(logs) - _whole(pair) if len(logs) else None


def part(pair: Pair, blocks: float) -> Pair | None:
    """Return a pair's first blocks; half a block is its first A B. None where it has no more."""
    if blocks >= len(pair.blocks):
        return None
    if blocks >= 1:
        return Pair(pair.blocks[: int(blocks)])
    block = pair.blocks[0]
    if min(len(block.baseline.latency_ns), len(block.candidate.latency_ns)) < 4:
        return None
    return Pair((Block(_half(block.baseline), _half(block.candidate)),))


def wrong(pairs: Sequence[Pair]) -> dict[str, Any]:
    """Put every pair at many distances from the best, and count those that the rule stops.

    Of plans as a search meets them: from 0.8 to 4 times the best, evenly in the logarithm. A
    stopped one is wrong where its whole pair lies within 2 % of the best, or before it.
    """
    stopped = within = at_the_edge = 0
    edge = math.log(abandon.NEAR)
    for pair in pairs:
        for distance in [*np.linspace(math.log(0.8), math.log(4), _PLACES), edge]:
            best = math.exp(_whole(pair) - distance)
            steps = [(n, taken) for n in STEPS.values() if (taken := part(pair, n)) is not None]
            if any(abandon.StoppingRule(best)(taken, blocks) for blocks, taken in steps):
                at_the_edge += int(distance == edge)
                stopped += int(distance != edge)
                within += int(distance < edge)
    return {
        "of all stopped": round(within / stopped, 5),
        "of those at 1.02": round(at_the_edge / len(pairs), 4),
        "stopped": stopped,
        "of": _PLACES * len(pairs),
    }


def _half(burst: Burst) -> Burst:
    half = len(burst.latency_ns) // 2
    return replace(burst, latency_ns=burst.latency_ns[:half], waited=burst.waited[:half])


def _whole(pair: Pair) -> float:
    return stats.compute_trimmed_mean(stats.block_logs(pair))


def _noisy(pair: Pair) -> bool:
    """Whether it has blocks enough, and was timed by a real clock."""
    spread = len(logs := stats.block_logs(pair)) >= _FEWEST and len(set(logs.tolist())) > 1
    return len(pair.blocks) >= _FEWEST and spread


def _summary(found: Sequence[float]) -> dict[str, float]:
    values = np.asarray(found)
    at = dict(zip(("median of either sign", "90 %", "99 %"), (0.5, 0.9, 0.99), strict=True))
    told = {"pairs": len(values), "bias": values.mean(), "sd": values.std()}
    told |= {name: np.quantile(np.abs(values), share) for name, share in at.items()}
    told |= {"too slow by, 99 %": np.quantile(values, 0.99), "at most": values.max()}
    return {name: round(float(value), 4) for name, value in told.items()}


if __name__ == "__main__":
    main()
