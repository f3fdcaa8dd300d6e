"""What `recheck` returns."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ortune.core.result import TableResult
from ortune.core.trial import Interval


class Replayed(enum.StrEnum):
    """How a bundle stands to what was packed."""

    SAME = "as packed"
    UNTIMED = "answers as packed"
    UNCLEAR = "perhaps slower"
    SLOWER = "slower"
    CHANGED = "answers changed"
    FAILED = "does not run"

    @property
    def good(self) -> bool:
        """Whether nothing is known to have changed."""
        return self in (Replayed.SAME, Replayed.UNTIMED, Replayed.UNCLEAR)


@dataclass(frozen=True)
class RecheckRow:
    """A bundle run again in one environment.

    Attributes:
        runtime: The release of what runs it there, such as ``onnxruntime 1.31.1``.
        answers_db: The worst answer's distance from the packed one, as a signal-to-noise ratio in
            dB; infinite where they are equal, None where it did not run.
        ratio: The plan's time over the original's, both there; None where it was not timed.
        beside: The plan's time there over its time in this Python's own environment, timed in
            turns; None where that is the same, or does not run.
        why: What follows, in a line.
        differs: What is not as on the machine that the bundle was packed on; empty if nothing.
    """

    environment: str
    runtime: str
    verdict: Replayed
    answers_db: float | None = None
    ratio: Interval | None = None
    beside: Interval | None = None
    why: str = ""
    differs: str = ""


@dataclass(frozen=True, repr=False)
class RecheckResult(TableResult):
    """A bundle run again, in one environment or in several.

    Attributes:
        plan: The packed plan, as a person reads it.
        key: Of its trial.
        backend: What it runs on.
        packed: The plan's time over the original's when it was packed, at 99 %.
        predicted: Where a new measurement of that falls with 95 %, as it was predicted then.
        tolerance_db: The least distance in dB that answers may have.
        replays: One an environment, oldest release first.
        changes: Runtimes with which something changed, or came back, in that order.
        good: Nothing is known to have changed anywhere.
        reason: What changed first, or that nothing did.
        timed_why_not: Why it was not timed; empty where it was.
    """

    bundle: str
    plan: str
    key: str
    backend: str
    packed: Interval | None
    predicted: Interval | None
    tolerance_db: float
    replays: tuple[RecheckRow, ...]
    changes: tuple[str, ...]
    good: bool
    reason: str
    timed_why_not: str = ""

    table = "replays"

    @property
    def first_changed(self) -> RecheckRow | None:
        """The oldest release with which something changed."""
        return next((one for one in self.replays if not one.verdict.good), None)

    def summary(self) -> Mapping[str, object]:
        """Return the verdict and the key figures of the first replay."""
        first = self.replays[0]
        return {
            "bundle": self.bundle,
            "plan": self.plan,
            "good": self.good,
            "reason": self.reason,
            "answers dB": first.answers_db,
            "ratio": first.ratio,
            "packed": self.packed,
        }

    def records(self) -> Sequence[Mapping[str, object]]:
        """Return a row an environment."""
        return [
            {
                "runtime": one.runtime,
                "environment": one.environment,
                "verdict": str(one.verdict),
                "answers_db": one.answers_db,
                "ratio": one.ratio and one.ratio.value,
                "beside": one.beside and one.beside.value,
                "why": one.why,
            }
            for one in self.replays
        ]
