"""The race of the main job: a pilot of everybody, then fresh pairs of those that can still win."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.speed.contestants import Contestant
from benchmarks.speed.fresh import Kept, Side, interval, logs, pair_of, pairs, stream
from ortune.core.trial import Interval, Pair
from ortune.measurement.machine import noise
from ortune.measurement.process import WorkerFailed
from ortune.measurement.timing import stats
from ortune.measurement.timing.pairs import Effort

ATTEMPTS = 3
PILOT = Effort(min_blocks=3, max_blocks=6, seconds=1.0, burst=0.1)
RACE_S = 240.0
"""For all finalists of a model, starts included."""
PAIR_S = (2.0, 8.0)
NARROW = 0.004
"""Error of one pair from its blocks that its seconds aim at: half of what pairs differ by."""
CLOSE = 1.15
"""A contestant whose pilot is further behind the best within the budget cannot win any more."""
MOST = 5
"""Contestants within each of the two budgets."""
AGAIN = "original again"

Row = dict[str, Any]
Entry = tuple[Contestant, Row]


@dataclass(frozen=True)
class Pilot:
    """What one short pair told of an entry.

    Attributes:
        error: From blocks, of the log-ratio, after `seconds` of timing.
        start_s: Everything but timing: processes and warm-up.
    """

    ratio: Interval
    error: float
    seconds: float
    start_s: float


Choice = Callable[[Sequence[Row], Mapping[str, Pilot]], list[str]]


@dataclass(frozen=True)
class Race:
    """The race of one model; what is timed is kept below `work`.

    Attributes:
        choose: Who races, of all rows and their pilots; `finalists` without.
        race_s: For all who race, starts included.
        pair_s: Seconds of each pair, in the place of those that the pilot tells: for a try.
        attempts: At most so many.
        within: Only who keeps the budget is timed, and so has a ratio.
    """

    original: Contestant
    data: Path
    work: Path
    choose: Choice | None = None
    race_s: float = RACE_S
    pair_s: float | None = None
    attempts: int = ATTEMPTS
    within: bool = False

    def run(self, entries: Sequence[Entry]) -> list[Row]:
        """Time; add ratios to the rows of the entries; return the attempts.

        Args:
            entries: The original first, ortune's winners last.
        """
        with TemporaryDirectory(prefix="ortune-") as folder:
            root = Path(folder)
            samples = stream(self.original.model, self.data, root / "feeds")
            pilots = self._pilots(entries, root, samples)
            chosen = (self.choose or finalists)([row for _, row in entries], pilots)
            seconds = self.pair_s or pair_seconds([pilots[k] for k in chosen], self.race_s)
            print(f"{len(chosen)} in the race, {stats.PAIRS} pairs of {seconds:.1f} s", flush=True)
            every = {row["name"]: entry for entry, row in entries}
            racing = {name: every[name] for name in chosen} | {AGAIN: self.original}
            attempts: list[Row] = []
            while not attempts or (attempts[-1]["too_noisy"] and len(attempts) < self.attempts):
                attempts.append(self._attempt(len(attempts), racing, seconds, root, samples))
        for _, row in entries:
            name = row["name"]
            row["raced"] = name in racing
            row["ratio"] = attempts[-1]["ratios"].get(name)
            if row["ratio"] is None and name in pilots:
                row["ratio"] = interval(pilots[name].ratio)
        return attempts

    def _pilots(self, entries: Sequence[Entry], root: Path, samples: Path) -> dict[str, Pilot]:
        kept = Kept(self.work / "pilot.jsonl")
        done = {row["name"]: row for row in kept.rows()}
        base = Side(self.original.model, self.original.backend, samples)
        for entry, row in entries:
            wanted = row["holds"] or not self.within
            if not row["error"] and wanted and entry.name not in done:
                done[entry.name] = self._pilot(entry, base, root)
                kept.add(done[entry.name])
            row["error"] = row["error"] or done.get(entry.name, {}).get("error", "")
        return {name: _piloted(row) for name, row in done.items() if not row["error"]}

    def _pilot(self, entry: Contestant, base: Side, root: Path) -> Row:
        began = time.monotonic()
        side = Side(entry.model, entry.backend, base.stream)
        try:
            (pair,) = pairs(root, base, [side], PILOT)
        except WorkerFailed as error:
            return {"name": entry.name, "error": error.failure.reason.splitlines()[0][:200]}
        timed, whole = sum(block.seconds for block in pair.blocks), time.monotonic() - began
        row = {"name": entry.name, "error": "", "blocks": logs(pair), "seconds": round(timed, 3)}
        print(f"pilot: {entry.name}: {stats.latency_ratio([pair])} in {whole:.1f} s", flush=True)
        return row | {"start_s": round(whole - timed, 3)}

    def _attempt(
        self,
        index: int,
        racing: Mapping[str, Contestant],
        seconds: float,
        root: Path,
        samples: Path,
    ) -> Row:
        """Time every racer in fresh pairs, in turns that begin with another one each."""
        kept = Kept(self.work / f"race-{index}.jsonl")
        rows = {(row["name"], row["turn"]): row for row in kept.rows() if "turn" in row}
        base = Side(self.original.model, self.original.backend, samples)
        names = list(racing)
        before = noise.take_snapshot()
        for turn in range(stats.PAIRS):
            first = turn % len(names)
            for name in names[first:] + names[:first]:
                if (name, turn) in rows:
                    continue
                side = Side(racing[name].model, racing[name].backend, samples)
                timed = _raced(root, base, side, seconds, turn)
                rows[name, turn] = {"name": name, "turn": turn} | timed
                kept.add(rows[name, turn])
                print(f"race {index}, turn {turn}: {name}: {rows[name, turn]['said']}", flush=True)
        record = noise.compare_snapshots(before, noise.take_snapshot())
        return _judged(record, list(rows.values()), seconds)


def _raced(root: Path, base: Side, side: Side, seconds: float, turn: int) -> Row:
    """Time one fresh pair; a process that dies leaves its reason and no blocks."""
    try:
        spent = Effort(max_blocks=40, seconds=seconds, decide=False)
        (pair,) = pairs(root, base, [side], spent, turn)
    except WorkerFailed as error:
        return {"blocks": [], "disturbed": None, "said": error.failure.reason}
    waited = stats.compute_disturbed_share([pair])
    said = str(stats.latency_ratio([pair], stats.SEARCHING))
    return {
        "blocks": logs(pair),
        "disturbed": None if math.isnan(waited) else round(waited, 4),
        "said": said,
    }


def _judged(record: noise.Record, rows: Sequence[Row], seconds: float) -> Row:
    """Return an attempt: the ratio of every racer, and whether the machine allowed a verdict."""
    found: dict[str, list[list[float]]] = {}
    for row in sorted(rows, key=lambda row: int(row["turn"])):
        if row["blocks"]:
            found.setdefault(row["name"], []).append(row["blocks"])
    groups = {name: [pair_of(one) for one in blocks] for name, blocks in found.items()}
    equal = groups.pop(AGAIN)
    ratios = {
        name: stats.latency_ratio(pairs, learnt=_learnt(groups, equal, name))
        for name, pairs in groups.items()
    }
    ratios[AGAIN] = stats.latency_ratio(equal, learnt=_learnt(groups, ()))
    waits = [row["disturbed"] for row in rows if row["disturbed"] is not None]
    disturbed = sum(waits) / len(waits) if waits else math.nan
    judged = noise.judge_noise(
        record,
        disturbed,
        ratios[AGAIN],
        reach=stats.half_width(_learnt(groups, equal)),
        claimed=any(one.clear for name, one in ratios.items() if name != AGAIN),
    )
    return {
        "seconds_a_pair": seconds,
        "too_noisy": judged.too_noisy,
        "advice": [str(one) for one in judged.advice],
        "noise": record.format_readings(),
        "disturbed": None if math.isnan(disturbed) else round(disturbed, 4),
        "ratios": {name: interval(one) for name, one in ratios.items()},
        "blocks": found,
    }


def _learnt(
    groups: Mapping[str, Sequence[Pair]], equal: Sequence[Pair], but: str = ""
) -> stats.PooledVariance:
    """Return how far pairs differ in this race, by all racers but one."""
    return stats.PooledVariance.pool(
        [pairs for name, pairs in groups.items() if name != but], equal
    )


def ratio(blocks: Sequence[Sequence[float]]) -> Interval:
    """Return the ratio behind the kept log-ratios of blocks, a list a pair."""
    return stats.latency_ratio([pair_of(one) for one in blocks])


def direct(one: Sequence[Sequence[float]], two: Sequence[Sequence[float]]) -> Interval:
    """Return the ratio of one racer to another: turn by turn, both were timed side by side."""
    means = [[stats.compute_trimmed_mean(np.array(x)) for x in blocks] for blocks in (one, two)]
    return ratio([[a - b] for a, b in zip(*means, strict=True)])


def _piloted(row: Row) -> Pilot:
    error = stats.bootstrap_error(np.array(row["blocks"]))
    return Pilot(ratio([row["blocks"]]), error, row["seconds"], row["start_s"])


def finalists(rows: Sequence[Row], pilots: Mapping[str, Pilot]) -> list[str]:
    """Return who races: ortune's, and whoever is close to the best within a budget.

    On the CPU provider alone there is another best, so each of the two is asked.
    """
    timed = [row for row in rows if row["name"] in pilots]
    rivals = [row for row in timed if row["holds"] and not row["name"].startswith("ortune")]
    chosen = {row["name"] for row in timed if row["name"].startswith("ortune")}
    for allowed in (rivals, [row for row in rivals if row["backend"].startswith("cpu")]):
        near = sorted((pilots[row["name"]].ratio.value, row["name"]) for row in allowed)
        chosen |= {name for value, name in near[:MOST] if value <= CLOSE * near[0][0]}
    chosen.discard("original")
    order = [row["name"] for row in timed]
    return [name for name in order if name in chosen]


def pair_seconds(pilots: Sequence[Pilot], race_s: float = RACE_S) -> float:
    """Return the seconds of each pair: enough for a narrow error, within the time of the race."""
    wanted = max((one.seconds * (one.error / NARROW) ** 2 for one in pilots), default=0.0)
    starts = sum(one.start_s for one in pilots) / max(1, len(pilots))
    affordable = race_s / stats.PAIRS / (len(pilots) + 1) - starts
    least, most = PAIR_S
    return round(max(least, min(most, wanted, affordable)), 1)
