"""When a trial is stopped part way: its plan cannot reach the best any more.

How far the log-ratio lies from that of the whole pair (``benchmarks/results/abandoned.json``, by
``python -m benchmarks.noise.abandoned``: 255 sides of `benchmarks.noise.aa`, five models, one and
two threads, quiet and beside a neighbour; the first A B by the raw bursts of 15 pairs of an LSTM):

| after | median | 90 % | too slow by, 99 % | stopped from |
|---|---|---|---|---|
| first A B | 12 % | 31 % | 34 % | 1.5 times the best |
| 1 block | 1.7 % | 13 % | 28 % | 1.35 |
| 2 blocks | 1.0 % | 6 % | 23 % | 1.22 |
| 3 blocks and more | 0.6 % | 3 % | 9 % | 1.1 |

Of plans that would end at 1.02 times the best 3 % are stopped; of all that are stopped, where
plans lie evenly between 0.8 and 4 times the best, 0.16 % would have ended within 2 % of it.
"""

import math
from dataclasses import dataclass

from ortune.core.trial import Pair, Plan
from ortune.measurement.timing import stats
from ortune.search.compare import to_beat
from ortune.search.policy import View

NEAR = 1.02  # a plan within 2 % of the best is not to be stopped
_BEHIND = {0.0: 3.0, 0.5: 1.5, 1.0: 1.35, 2.0: 1.22, 3.0: 1.1}
"""Blocks that were timed (0: a warm-up run alone) -> times the best from which it is stopped."""
_WHOLE = 10  # times from which on no decimal is written
_AGREEING = 3  # blocks that have to agree, each by itself, where their runs waited for a CPU
_FAR_BEHIND = 3.0
"""Times the best from which so many runs are enough. Single disturbed blocks look up to 1.6 times
as slow as they are (109 of ``benchmarks/results/MACHINE/busy.json``)."""


@dataclass(frozen=True)
class StoppingRule:
    """Says when a trial has lost against what is to be beaten.

    Attributes:
        best: Latency of the best plan so far that keeps the budget over the original's; 1 without.
    """

    best: float = 1.0

    def __call__(self, pair: Pair, done: float | None = None) -> str:
        """Return why the timing is to end; empty where the plan may yet win.

        Args:
            pair: What was timed so far.
            done: Blocks that this is; half a block is the first A B, 0 a warm-up run.
        """
        if stats.count_unusable([pair]):
            # A run as long as the scheduler's slice waits where a shorter one does not, so that a
            # disturbed block says next to nothing of a plan that is near: all blocks or runs do.
            logs = [stats.rough_log(Pair((block,))) for block in pair.blocks]
            if any(map(math.isnan, logs)):
                return ""
            if len(logs) >= _AGREEING and (why := self._compare_to_best(min(logs), _BEHIND[1.0])):
                return why
            runs = stats.rough_entry_logs(pair)
            return self._compare_to_best(min(runs), _FAR_BEHIND) if len(runs) >= _AGREEING else ""
        middle, *_ = stats.pair_spread([pair])
        if math.isnan(middle):
            return ""
        blocks = float(len(pair.blocks)) if done is None else done
        reached = max(timed_blocks for timed_blocks in _BEHIND if timed_blocks <= blocks)
        return self._compare_to_best(middle, _BEHIND[reached])

    def _compare_to_best(self, log_ratio: float, limit: float) -> str:
        behind = log_ratio - math.log(self.best)
        if behind <= math.log(limit):
            return ""
        times = math.exp(behind)
        shown = f"{times:.1f}" if times < _WHOLE else f"{times:.0f}"
        return f"stopped early: {shown}x slower than the best"


def make_stopping_rule(plan: Plan, view: View, *, strict: bool) -> StoppingRule:
    """Return what a plan's trial is stopped by: the best other that keeps the budget so far.

    A plan that changes no numbers, and so keeps it for sure, is stopped only by one that may be
    accepted. A plan that was screened does not run against its own block: that may have been a
    lucky one. Where `strict`, what is only likely to keep the budget may not win.
    """
    original, *tried = view.trials if plan.lossy else view.acceptable
    certain = strict and not plan.lossy
    rivals = [t for t in tried if t.plan != plan and not (certain and t.plan.lossy)]
    return StoppingRule(to_beat([original, *rivals], view.goal))
