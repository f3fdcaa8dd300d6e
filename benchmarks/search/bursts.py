"""Bursts as a table keeps them: thinned, rounded, and in their order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ortune.core.trial import Block, Burst
from ortune.measurement.timing import stats

KEPT_ENTRIES = 10
"""Entries that are kept of a burst: a median of more tells no more."""


@dataclass(frozen=True)
class Side:
    """What one burst took, thinned.

    Attributes:
        unit_ns: What `entries` count: about a thousandth of a run.
    """

    unit_ns: int
    entries: tuple[int, ...]
    alike: bool

    @classmethod
    def of(cls, burst: Burst, kept: Sequence[bool]) -> Side:
        """Keep the entries that no neighbour disturbed, unless there are too few.

        Of many that are alike those at even places of their order stand for all; of others the
        first, which are compared with the other side's first.
        """
        taken = np.asarray(burst.latency_ns)[: len(kept)]
        calm = taken[np.asarray(kept, bool)]
        chosen = calm if len(calm) >= min(4, len(taken)) else taken
        if len(chosen) > KEPT_ENTRIES:
            places = np.linspace(0, len(chosen) - 1, KEPT_ENTRIES).round().astype(int)
            chosen = np.sort(chosen)[places] if burst.alike else chosen[:KEPT_ENTRIES]
        unit = max(1, int(np.median(chosen)) // 1000)
        return cls(unit, tuple(np.rint(chosen / unit).astype(int).tolist()), burst.alike)

    @property
    def latency_ns(self) -> tuple[int, ...]:
        """Nanoseconds of each entry."""
        return tuple(self.unit_ns * one for one in self.entries)


@dataclass(frozen=True)
class Turn:
    """One block, its bursts apart in the order in which they ran: A B B A."""

    bursts: tuple[Side, Side, Side, Side]

    @classmethod
    def of(cls, block: Block) -> Turn:
        """Thin a block."""
        calm = stats.mask_undisturbed(block)
        (a, d), (b, c) = (
            _halves(burst, kept.tolist())
            for burst, kept in zip((block.baseline, block.candidate), calm, strict=True)
        )
        return cls((a, b, c, d))

    def block(self) -> Block:
        """Return it as the statistics read it."""
        a, b, c, d = self.bursts
        return Block(_joined(a, d), _joined(b, c))


def _halves(burst: Burst, kept: Sequence[bool]) -> tuple[Side, Side]:
    """Return both bursts that were joined: they have as many entries each."""
    half = len(burst.latency_ns) // 2
    one = replace(burst, latency_ns=burst.latency_ns[:half])
    two = replace(burst, latency_ns=burst.latency_ns[half:])
    return Side.of(one, kept[:half]), Side.of(two, kept[half:])


def _joined(one: Side, two: Side) -> Burst:
    taken = one.latency_ns + two.latency_ns
    return Burst(taken, (0.0,) * len(taken), alike=one.alike)
