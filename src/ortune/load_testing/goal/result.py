"""What a goal search returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ortune.core.result import TableResult
from ortune.core.trial import Interval
from ortune.engine.instances import Serving


@dataclass(frozen=True)
class TriedRow:
    """Settings that were measured.

    Attributes:
        settings: As a person reads them.
        ratio: Their score over the defaults'; more is better, 0 where they could not be served.
        pairs: With the defaults, in the search.
    """

    settings: str
    ratio: float
    pairs: int


@dataclass(frozen=True, repr=False)
class GoalResult(TableResult):
    """Settings that were chosen by measuring real servers, each beside the defaults.

    Attributes:
        goal: As it was asked for.
        before: The defaults' score in the first turn, in words: the highest rate that keeps the
            goal, or the percentile at the rate that was asked for.
        defaults: The settings without a choice, as a person reads them.
        choice: The settings to take.
        chosen: They as fields.
        better: They beat the defaults beyond noise; else they are the defaults.
        ratio: Of the best settings over the defaults, from fresh pairs of servers that nothing was
            chosen by, at 95 %; None where there were none.
        pairs: So many.
        tried: In the search, the best first.
        verdict: In a sentence.
        notes: What a reader must know before the figures.
        out: The copy of the bundle that says so; empty where none was asked for.
    """

    bundle: str
    goal: str
    before: str
    defaults: str
    choice: str
    chosen: Serving
    better: bool
    ratio: Interval | None
    pairs: int
    tried: tuple[TriedRow, ...]
    verdict: str
    seconds: float
    notes: tuple[str, ...] = ()
    out: str = ""

    table = "tried"

    def summary(self) -> Mapping[str, object]:
        """Return the verdict and what it rests on."""
        return {
            "bundle": self.bundle,
            "goal": self.goal,
            "defaults": self.before,
            "verdict": self.verdict,
            "choice": self.choice,
            "ratio": self.ratio,
            "out": self.out,
        }

    def records(self) -> Sequence[Mapping[str, object]]:
        """Return a row for each of the settings tried."""
        return [
            {"settings": one.settings, "ratio": one.ratio, "pairs": one.pairs}
            for one in self.tried
        ]
