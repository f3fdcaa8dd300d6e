"""One value of one setting that a descent tried, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass

from ortune.core.acceptance import Outcome
from ortune.core.trial import Interval


@dataclass(frozen=True)
class Answers:
    """How a candidate's outputs stand to those of the start.

    Attributes:
        fine: They are equal, or within the budget when the candidate changes numbers.
        said: In a few words.
        snr: Signal to noise, dB.
        max_error: Largest absolute difference.
    """

    fine: bool
    said: str
    snr: float
    max_error: float


@dataclass(frozen=True)
class Attempt:
    """One value of one setting, and what became of it.

    Attributes:
        setting: The field, or another name of the coordinate.
        value: The fields that it changes, as they are spelled.
        backend: All settings of the candidate, spelled.
        ratio: Its latency over that of the best before it; None when it did not run.
        kept: It became the best.
        why: Why it was kept or not.
        answers: Compared only when it was faster.
    """

    setting: str
    value: str
    backend: str
    ratio: Interval | None
    kept: bool
    why: str
    answers: Answers | None = None

    @property
    def outcome(self) -> Outcome:
        """What the value may be called by its interval."""
        if self.ratio is None:
            return Outcome.FAILED
        if not self.ratio.clear:
            return Outcome.LEVEL
        if self.answers is not None and not self.answers.fine:
            return Outcome.FAILS
        return Outcome.FASTER if self.ratio.high < 1 else Outcome.SLOWER
