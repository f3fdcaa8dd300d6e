"""What the end of a search will take, by what was measured before: time that is kept back."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from ortune.core.trial import Trial
from ortune.measurement.timing import stats
from ortune.measurement.timing.pairs import claim_effort
from ortune.search.compare import NEAR

_FINAL = 4
"""Times that a final takes what the plan's trial took without building: it has five pairs, longer
ones, and shares nothing with building. By the replays, where 3 finds the same plans."""
_MOST = 0.6
"""Share of the time budget that is kept back at most: else no plan is there to end with."""
_FINAL_SHARE = 0.5
"""Share of the time budget beyond which a finalist gets fewer pairs, as many as tell it from the
original: those of a model that takes long to run or to load would leave no time for plans."""
_FIRST = 3
"""Plans, besides what is screened, that half of what is left is for: a first guess, what may be
faster, and what mends that where it loses too much."""
OVER = 0.05  # share of the time budget by which the last plan may overrun its time
_LONGER = 1.5  # times that bursts of a finalist are longer than those of the search


@dataclass(frozen=True)
class Reserve:
    """Seconds that finalists and what follows them will take.

    Attributes:
        trials: The original first.
        pair_seconds: Seconds of timing that a pair of the search gets.
    """

    trials: Sequence[Trial]
    pair_seconds: float
    samples: int

    @property
    def start_s(self) -> float:
        """A process of the original until it is warm: half of what its two cost beside timing."""
        first = self.trials[0]
        if first.measurement is None:
            return 0.0
        timed = sum(block.seconds for pair in first.measurement.pairs for block in pair.blocks)
        return max(0.0, first.seconds - timed) / 2

    def final_s(self, trial: Trial, seconds: float = math.inf) -> float:
        """Return what re-measuring a plan takes: as finals did, or by its trial of the search.

        Where all pairs take longer, there are as many as fit the seconds, the fewest at least.
        """
        pair_s = [
            t.seconds / len(t.measurement.pairs)
            for t in self.trials
            if t.part == "final" and t.error is None and t.measurement is not None
        ]
        each = fmean(pair_s) if pair_s else _FINAL * (trial.seconds - trial.building) / stats.PAIRS
        return each * max(stats.FEWEST_PAIRS, min(stats.PAIRS, seconds / max(each, 1e-9)))

    def compute_fixed_s(self, trial: Trial, pairs: int) -> float:
        """Return what of it no shorter timing saves: starting all processes, and scoring."""
        base, measurement = self.trials[0].measurement, trial.measurement
        if base is None or measurement is None:
            return self.row_s
        slower = (measurement.load_ns + measurement.first_ns - base.load_ns - base.first_ns) / 1e9
        each = self.start_s + max(self.start_s / 2, self.start_s + slower)
        return pairs * each + self.samples * median(measurement.latency_ns) / 1e9

    def seconds_each(self, trial: Trial, remaining_s: float) -> float:
        """Return the timing that each of a finalist's pairs gets of the seconds that are left.

        Of as many pairs as can be: five short ones tell more than three long ones. A pair takes
        twice its seconds where they do not hold the fewest blocks.
        """
        timed = trial.measurement.pairs if trial.measurement is not None else ()
        blocks_s = (block.seconds for pair in timed for block in pair.blocks)
        shortest_s = _LONGER * max(blocks_s, default=0.0)  # a finalist's bursts are longer
        effort = claim_effort(self.pair_seconds)
        for pairs in range(stats.PAIRS, stats.FEWEST_PAIRS - 1, -1):
            room = (remaining_s - self.closing_s - self.compute_fixed_s(trial, pairs)) / pairs
            if room >= shortest_s:
                break
        fits = room if room > effort.min_blocks * shortest_s else room / 2
        return min(effort.seconds, max(0.1, fits))

    @property
    def row_s(self) -> float:
        """A plan of the history: as long as a trial of the search."""
        timings = [t.seconds for t in self.trials[1:] if t.part == "search" and t.ratio]
        return fmean(timings) if timings else 0.0

    @property
    def history_row_s(self) -> float:
        """A row of the history, and what follows it."""
        return self.row_s + self.closing_s

    @property
    def closing_s(self) -> float:
        """What follows: outputs of the original and the winner are kept, each by a process."""
        return 2 * self.start_s

    def compute_reserve_s(
        self,
        candidates: Sequence[Trial],
        finalists: int,
        total: float,
        remaining_s: float = math.inf,
    ) -> float:
        """Return the seconds to keep back for the finalists and the end.

        What comes beyond the first finalist has its seconds whole or, where they are too many, not
        at all: half of a finalist is none. The history has what they leave: a plan that may win is
        worth more than a row that explains. Half of what is left is for the first plans.

        Args:
            candidates: Plans that may become finalists, fastest first.
            finalists: At most.
            total: The time budget.
            remaining_s: Of it.
        """
        most, share = _MOST * total, _FINAL_SHARE * total
        first, *followers = candidates[:finalists] or self.trials[:1]  # else one has to be found
        back = self.final_s(first, share) + self.closing_s
        for trial in followers:
            whole = back + self.final_s(trial, share)
            near = _latency_ratio(trial) < NEAR * _latency_ratio(first)
            back = whole if near and whole <= most else back
        back = min(most, back)
        few = sum(trial.has_reached("search") for trial in self.trials[1:]) < _FIRST
        return min(back, remaining_s / 2) if few else back


def _latency_ratio(trial: Trial) -> float:
    return trial.ratio.value if trial.ratio else 1.0
