"""Cost over a life in seconds: break-even points and the lower envelope of lines.

T(n) = once + sessions(n) * session + n * inference, with sessions(n) = max(1, n / N) for N
inferences a session: one session is always paid, further ones by their share.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class CostLine:
    """A choice.

    Attributes:
        name: What it is called.
        once_s: Paid once.
        session_s: Paid by every session.
        inference_s: Paid by every inference.
    """

    name: str
    once_s: float
    session_s: float
    inference_s: float


@dataclass(frozen=True)
class EnvelopeSegment:
    """A range of inferences in which one line is the lowest; `until` may be infinite."""

    since: float
    until: float
    name: str

    def __str__(self) -> str:
        return f"{self.name} from {self.since:.4g}"


def total(line: CostLine, inferences: float, per_session: float) -> float:
    """Return the seconds spent when `inferences` are served, `per_session` in each session."""
    sessions = max(1.0, inferences / per_session)
    return line.once_s + sessions * line.session_s + inferences * line.inference_s


def crossings(one: CostLine, two: CostLine, per_session: float) -> tuple[float, ...]:
    """Return the numbers of inferences at which the cheaper of two lines changes: two at most.

    Up to one session the difference is (once + session) + n * inference, beyond it
    once + n * (inference + session / N): each part has one root at most.
    """
    once = two.once_s - one.once_s
    session = two.session_s - one.session_s
    inference = two.inference_s - one.inference_s
    found = []
    if inference:
        root = -(once + session) / inference
        if 0 < root <= per_session:
            found.append(root)
    steep = inference + session / per_session
    if steep and math.isfinite(per_session):
        root = -once / steep
        if root > per_session:
            found.append(root)
    return tuple(root for root in found if math.isfinite(root))


def pays_from(old: CostLine, new: CostLine, per_session: float) -> float:
    """Return the inferences from which `new` stays cheaper than `old`; infinite for never.

    0 when it is cheaper from the start.
    """
    found = crossings(old, new, per_session)
    last = max(found, default=0.0)
    beyond = 2 * last + 2 * (per_session if math.isfinite(per_session) else 1.0)
    if total(new, beyond, per_session) >= total(old, beyond, per_session):
        return math.inf
    return last


def lower_envelope(lines: Sequence[CostLine], per_session: float) -> tuple[EnvelopeSegment, ...]:
    """Return which line is the lowest from 0 inferences to infinity; of equal ones the first."""
    pairs = itertools.combinations(lines, 2)
    cuts = sorted({n for one, two in pairs for n in crossings(one, two, per_session)})
    edges = [0.0, *cuts, math.inf]
    found: list[EnvelopeSegment] = []
    for since, until in itertools.pairwise(edges):
        inside = (since + until) / 2 if math.isfinite(until) else 2 * since + 1
        name = min(lines, key=lambda line: total(line, inside, per_session)).name
        if found and found[-1].name == name:
            found[-1] = EnvelopeSegment(found[-1].since, until, name)
        else:
            found.append(EnvelopeSegment(since, until, name))
    return tuple(found)
