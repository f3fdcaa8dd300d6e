"""What paid on a kind of machine in earlier searches: counts and means, no names of models."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PlanTally:
    """What came of like plans, each search counted once.

    Attributes:
        words: What the plans and the models have in common; see `search.earlier.words.words`.
        tried: Searches that tried one.
        failed: Of these, those in which none built, loaded and ran.
        measured: Searches that timed one.
        mean: Of the logarithm of latency over the original's.
        squares: Sum of its squared deviations from the mean.
        scored: Searches that judged the accuracy of one.
        kept: Of these, those in which one kept the budget.
        build_s: Mean seconds that all steps of the recipe took, those from a cache included.
        load_s: Mean seconds of opening a session.
    """

    words: tuple[str, ...]
    tried: int = 0
    failed: int = 0
    measured: int = 0
    mean: float = 0.0
    squares: float = 0.0
    scored: int = 0
    kept: int = 0
    build_s: float = 0.0
    load_s: float = 0.0


@dataclass(frozen=True)
class Paid:
    """All tallies of a kind of machine, what was tried last first."""

    tallies: tuple[PlanTally, ...] = ()


NOTHING = Paid()
"""Of a machine that nothing is known of."""
