"""What a recorded plan costs a search that has paid for others, and how much of it is taken.

A rule of the search that stops a trial part way belongs into `taken_blocks`, which deals out a
plan's blocks one by one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from benchmarks.search.table import Cut, Row
from ortune.core.trial import Block, Pair
from ortune.measurement.timing import stats
from ortune.measurement.timing.pairs import Effort, enough

RECORDED_BURST_S = 0.1
"""Seconds of a burst in the tables."""


@dataclass
class Spent:
    """What was paid once and is there from then on.

    Attributes:
        built: Steps whose build is there.
        ranges: What calibration has found out.
    """

    built: set[str] = field(default_factory=set)
    ranges: set[str] = field(default_factory=set)

    def cut(self, cut: Cut, passes: dict[str, float]) -> float:
        """Return the seconds of a build, and remember it; of ranges unknown one pass finds all.

        Args:
            passes: What is asked of samples -> seconds of the pass that found it out.
        """
        if cut.steps in self.built:
            return 0.0
        longest: dict[str, float] = {}
        for asked in cut.ranges:
            if asked not in self.ranges:
                model = asked.split(" ", 1)[0]
                longest[model] = max(longest.get(model, 0.0), passes.get(asked, 0.0))
        self.ranges.update(cut.ranges)
        if not cut.error:
            self.built.add(cut.steps)
        return cut.seconds + sum(longest.values())


def taken_blocks(row: Row, pair: Pair, spent: Effort) -> list[Block]:
    """Return the blocks that an effort would have taken, by the rule of the clock itself."""
    blocks = pair.blocks
    each = turn_s(row, spent)
    for done in range(1, len(blocks) + 1):
        if done > 2:
            ratio = stats.ratio([Pair(blocks[:done])], stats.SEARCHING)
            if enough(ratio, done, done * each - spent.seconds, spent):
                break
        if done >= spent.max_blocks or spent.stops(Pair(blocks[:done])):
            break
    return list(blocks[:done])


def turn_s(row: Row, spent: Effort) -> float:
    """Return the seconds of a turn: shorter bursts shorten it unless single runs are longer."""
    turns = row.pairs[0]
    longest = max(
        max(side.unit_ns * max(side.entries) for side in (turn.baseline, turn.candidate))
        for turn in turns
    )
    room = max(longest * 2 / 1e9, spent.burst)
    return row.block_s * min(1.0, room / RECORDED_BURST_S)
