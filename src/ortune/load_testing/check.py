"""Are the answers of a server those of the model, run here?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ortune.core.session import Tensors
from ortune.engine.engine import Engine
from ortune.engine.golden import TOLERANCE_DB, snr_db
from ortune.load_testing import bodies
from ortune.load_testing.level import Level


@dataclass(frozen=True)
class CheckedAnswers:
    """What became of all right answers of a load test.

    Attributes:
        answers: How many were compared; equal ones once, and counted.
        wrong: Those further from the model's own than the limit.
        worst_db: The smallest signal-to-noise ratio; infinite where all are equal.
        limit_db: What it must be at least.
        unread: Answers of too many kinds, which were not compared.
    """

    answers: int
    wrong: int
    worst_db: float
    limit_db: float
    unread: int

    def __str__(self) -> str:
        worst = "equal" if self.worst_db == float("inf") else f"worst {self.worst_db:.0f} dB"
        unread = f"; {self.unread:,} were not compared" if self.unread else ""
        return (
            f"answers compared with the model's own: {self.answers:,}, {worst}, "
            f"{self.wrong:,} wrong (below {self.limit_db:.0f} dB){unread}"
        )


def check(
    levels: Sequence[Level], samples: Sequence[Tensors], engine: Engine, protocol: str
) -> CheckedAnswers:
    """Compare what was kept of every level with the engine's answers.

    Raises:
        BadData: An answer cannot be read.
    """
    wanted: dict[int, Tensors] = {}
    answers = wrong = 0
    worst = float("inf")
    for kind in (one for level in levels for one in level.answers):
        if kind.sample not in wanted:
            wanted[kind.sample] = engine(**samples[kind.sample])
        body = kind.body.read_bytes()
        found = (
            bodies.answer_over_http(body, kind.head)
            if protocol == "http"
            else bodies.answer_over_grpc(body)
        )
        ratio = snr_db(wanted[kind.sample], found)
        answers += kind.count
        wrong += kind.count if ratio < TOLERANCE_DB else 0
        worst = min(worst, ratio)
    unread = sum(level.not_kept for level in levels)
    return CheckedAnswers(answers, wrong, worst, TOLERANCE_DB, unread)
