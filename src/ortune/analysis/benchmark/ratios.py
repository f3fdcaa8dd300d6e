"""How the rows of a bench stand to each other, by all that its pairs of processes tell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ortune.analysis.benchmark.interleave import TimedRow, pairs
from ortune.core.acceptance import Outcome
from ortune.core.trial import Interval
from ortune.measurement.timing import stats

ONE = Interval(1.0, 1.0, 1.0)


@dataclass(frozen=True)
class Ratios:
    """The rows of every batch; the first of a batch is its measure.

    How far pairs differ is learnt from all rows of the run: those of one batch share the first
    row's processes, and the first row once more is known to be its equal.
    """

    groups: Sequence[Sequence[TimedRow]]

    def learnt(self, *but: TimedRow) -> stats.Learnt:
        """Return what all rows but some tell about how far pairs differ."""
        found = stats.NOTHING
        for first, *others in self.groups:
            rows = [row for row in others if not (row.error or any(row is one for one in but))]
            groups = [pairs(row, first) for row in rows if not row.contestant.again]
            equal = [pair for row in rows if row.contestant.again for pair in pairs(row, first)]
            found += stats.Learnt.of(groups, equal, one_baseline=True)
        return found

    def between(self, one: TimedRow, base: TimedRow) -> Interval:
        """Return the latency of one row over that of another of its batch."""
        return stats.ratio(pairs(one, base), learnt=self.learnt(one, base))

    def of_first(self) -> list[Interval | None]:
        """Return every row's ratio to the first of its batch; None for one that failed."""
        return [
            None if row.error else self.between(row, group[0]) if row is not group[0] else ONE
            for group in self.groups
            for row in group
        ]

    def counts(self) -> dict[str, int]:
        """Count the rows by how they stand to the first of their batch, in words."""
        every = (row for group in self.groups for row in group[1:] if not row.contestant.again)
        found = Counter(self._word(row) for row in every)
        words = ("faster", Outcome.LEVEL, Outcome.SLOWER, Outcome.FAILED)
        return {str(word): found[word] for word in words}

    def _word(self, row: TimedRow) -> str:
        if row.error:
            return Outcome.FAILED
        first = next(group[0] for group in self.groups if any(row is one for one in group))
        ratio = self.between(row, first)
        if not ratio.clear:
            return Outcome.LEVEL
        return "faster" if ratio.high < 1 else Outcome.SLOWER

    def winner(self, rows: Sequence[TimedRow]) -> int | None:
        """Return the index of the row that beats every other beyond the noise, if there is one."""
        alive = [k for k, row in enumerate(rows) if not row.error and not row.contestant.again]
        if len(alive) < 2:
            return None
        first = rows[alive[0]]
        best = min(alive, key=lambda k: self.between(rows[k], first).value)
        beaten = all(self.between(rows[best], rows[k]).high < 1 for k in alive if k != best)
        return best if beaten else None
