"""A/A and a slow twin: how often paired timing claims what is not there, and finds what is.

    python -m benchmarks.noise.aa [name ...] [--threads 1 2] [--quiet | --beside-neighbour]

Five models run against themselves and against a twin that spins for 3 % of the time that every
run just took, with one and two threads, on a quiet machine and beside a process that loads one
core all the time: 20 cells of 30 pairs, each of fresh processes, timed as `optimize` times its
finalists. The twin shares its pair's original and runs on the quiet machine alone
(``--twins-beside``: there too). Six verdicts of five pairs a cell, all cells in turn. Pairs are
kept in ``build/aa.jsonl`` as they end, with the log-ratio of every block, and the same command
goes on where it was stopped. ``--summary`` judges what is kept by the statistics of today.
Results: ``benchmarks/results/aa.json``. An otherwise idle machine; a good hour.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.noise.verdicts import summary
from benchmarks.result_files import result_file
from benchmarks.speed.fresh import Kept, Side, logs, pairs, stream
from benchmarks.speed.neighbour import neighbour, to_itself
from ortune.core.backend import Backend
from ortune.core.plugins import codec, spelling
from ortune.core.version import read_commit
from ortune.measurement.machine import noise
from ortune.measurement.machine.machine import describe_machine, package_versions
from ortune.measurement.timing import stats
from ortune.measurement.timing.pairs import claim_effort

ROOT = Path(__file__).resolve().parents[2]
PLUGINS = ROOT / "tests" / "plugins"
RESULTS = result_file("aa")
KEPT = ROOT / "build" / "aa.jsonl"
SLOWER = 0.03
PAIRS = 30
SEARCH_S = 4.0
"""What a pair of a search of three minutes gets."""
START_S, TIMED_S = 1.2, 2.8
"""A process until it is warm, and a pair of short runs with its settling; for the estimate."""


@dataclass(frozen=True)
class Cell:
    """Where pairs are timed: a model, its threads, and what else runs."""

    model: str
    threads: int
    beside: bool


def _sample(name: str) -> Path:
    from tests.real.samples import written

    return written(name)


def _resnet(name: str) -> Path:
    from benchmarks.speed.shapes import write

    return write(name)


def _silero(name: str) -> Path:
    from benchmarks.peers.recorded import write

    return write(name)


MODELS: Mapping[str, Callable[[str], Path]] = {
    "digit-cnn": _sample,
    "efficientnet-lite0": _sample,
    "minilm": _sample,
    "silero-vad-16k": _silero,
    "resnet50": _resnet,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=", ".join(MODELS))
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--quiet", action="store_true", help="without a neighbour only")
    only.add_argument("--beside-neighbour", action="store_true", help="with one only")
    parser.add_argument("--pairs", type=int, default=PAIRS, help="of each cell")
    parser.add_argument(
        "--search-seconds", type=float, default=SEARCH_S, help="timing of a pair of the search"
    )
    parser.add_argument("--twins-beside", action="store_true", help="twins beside a neighbour too")
    parser.add_argument("--kept", type=Path, default=KEPT)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--fresh", action="store_true", help="forget what an earlier run kept")
    parser.add_argument("--summary", action="store_true", help="time nothing")
    asked = parser.parse_args()
    sides = [False] * (not asked.beside_neighbour) + [True] * (not asked.quiet)
    names = asked.names or list(MODELS)
    cells = [Cell(n, t, b) for b in sides for t in asked.threads for n in names]
    kept = Kept(asked.kept, fresh=asked.fresh)
    if not asked.summary:
        _plugins()
        _compare(kept, cells, asked)
    if kept.rows():
        _write(asked.out, kept, asked)


def _write(path: Path, kept: Kept, asked: argparse.Namespace) -> None:
    """Judge what is kept and write it with the verdicts."""
    rows = [row for row in kept.rows() if row["index"] < asked.pairs]
    about = {
        "machine": describe_machine(),
        "versions": package_versions(),
        "slow twin": 1 + SLOWER,
    }
    found = about | {"seconds of a search's pair": asked.search_seconds} | summary(rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_compact(found | {"commit": read_commit(), "pairs": rows}))
    print(json.dumps({k: v for k, v in found.items() if k != "cells"}, indent=1))


def _plugins() -> None:
    """Let this process and its workers find the slowed backend."""
    sys.path.insert(0, str(PLUGINS))
    known = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(PLUGINS), known]))


def _turns(cells: Sequence[Cell], count: int) -> Iterator[tuple[Cell, range]]:
    """Yield the pairs of one verdict of every cell, then of the next: cells share the hour."""
    for start in range(0, count, stats.PAIRS):
        for cell in cells:
            yield cell, range(start, min(count, start + stats.PAIRS))


def _compare(kept: Kept, cells: Sequence[Cell], asked: argparse.Namespace) -> None:
    """Time the pairs that are not kept yet."""
    done = {(Cell(*row["cell"]), row["index"]) for row in kept.rows()}
    left = {cell: sum((cell, i) not in done for i in range(asked.pairs)) for cell in cells}
    each = {cell: _seconds(cell, asked) for cell in cells}
    minutes = sum(left[cell] * each[cell] for cell in cells) / 60
    print(f"{sum(left.values())} pairs in {len(cells)} cells: about {minutes:.0f} min", flush=True)
    began, count = time.monotonic(), 0
    with TemporaryDirectory(prefix="ortune-") as folder:
        for cell, indices in _turns(cells, asked.pairs):
            mine = [i for i in indices if (cell, i) not in done]
            if not mine:
                continue
            with to_itself():
                for row in _verdict(Path(folder), cell, mine, asked):
                    kept.add(row)
                    count += 1
            share = (time.monotonic() - began) / count
            ahead = share * (sum(left.values()) - count) / 60
            print(f"{cell} {mine[-1] + 1}/{asked.pairs}; {ahead:.0f} min left", flush=True)


def _seconds(cell: Cell, asked: argparse.Namespace) -> float:
    sides = 2 if _twin(cell, asked) else 1
    return (1 + sides) * START_S + sides * max(TIMED_S, claim_effort(asked.search_seconds).seconds)


def _twin(cell: Cell, asked: argparse.Namespace) -> bool:
    return not cell.beside or bool(asked.twins_beside)


def _verdict(
    root: Path, cell: Cell, indices: Sequence[int], asked: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """Time the pairs of one verdict, one row each; all hold the machine's record of it."""
    made = MODELS[cell.model](cell.model)
    model, feeds = made / "model.onnx", root / cell.model
    samples = feeds / "feeds.stream"
    if not samples.is_file():
        samples = stream(model, made / "data", feeds)
    plain = f"cpu(threads={cell.threads})"
    slow = [f"slowed(threads={cell.threads},by={SLOWER})"] if _twin(cell, asked) else []
    base, *others = (
        Side(model, spelling.parse_plugin(Backend, one), samples) for one in (plain, plain, *slow)
    )
    rows = []
    with neighbour("spin" if cell.beside else None) as other:
        mark, before = other.mark(), noise.take_snapshot()
        for index in indices:
            began = time.monotonic()
            spent = claim_effort(asked.search_seconds)
            found = list(pairs(root, base, others, spent, index))
            rows.append(
                {
                    "cell": list(asdict(cell).values()),
                    "index": index,
                    "seconds": round((time.monotonic() - began) / len(found), 2),
                    "timed": round(sum(block.seconds for block in found[0].blocks), 2),
                    "blocks": dict(zip(("A/A", "twin"), map(logs, found), strict=False)),
                    "disturbed": round(stats.compute_disturbed_share(found[:1]), 4),
                }
            )
        record = codec.encode(noise.compare_snapshots(before, noise.take_snapshot()))
        share = {"neighbour's cores": other.share(mark)} if cell.beside else {}
    for row in rows:
        yield row | share | {"noise": record}


def _compact(found: Mapping[str, Any]) -> str:
    """Write results with one pair a line."""
    lines = ",\n".join(json.dumps(row) for row in found["pairs"])
    text = json.dumps({k: v for k, v in found.items() if k != "pairs"}, indent=1)
    return f'{text[:-2]},\n "pairs": [\n{lines}\n ]\n}}\n'


if __name__ == "__main__":
    main()
