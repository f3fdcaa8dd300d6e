"""Latencies of original and winner, run by run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from ortune.core import wording as say
from ortune.core.section import Block, Heading, Line, Lines, Point, Section, Table, Text
from ortune.core.study import Study
from ortune.core.trial import Burst
from ortune.measurement.arrivals.lanes import percentile

_BINS = 72
_LAST = 0.95
"""Share of the runs that the plot holds; slower ones stand in the table."""
_FEWEST = 20
_SHARES = (50, 90, 99)


@dataclass(frozen=True)
class DistributionSection(Section):
    """All runs of the winner's fresh pairs, in which the two took turns."""

    order: ClassVar[int] = 16

    def blocks(self, study: Study) -> Iterable[Block]:
        """Yield two histograms on one axis, and their percentiles; nothing without a winner."""
        best = study.best
        if best.key == study.baseline.key or best.measurement is None:
            return
        pair_blocks = [block for pair in best.measurement.pairs for block in pair.blocks]
        sides = {
            "original": _sort_latencies(block.baseline for block in pair_blocks),
            "winner": _sort_latencies(block.candidate for block in pair_blocks),
        }
        if min(map(len, sides.values())) < _FEWEST:
            return
        measure = study.job.workload.measure
        yield Heading("Latency distribution")
        yield _make_histograms(sides, f"{measure}, ms")
        pairs = say.format_count(
            len(best.measurement.pairs), "pair of new processes", "pairs of new processes"
        )
        yield Text(
            f"All timed runs of {pairs} that ran original and winner in turns. The "
            f"slowest {1 - _LAST:.0%} of each are beyond the axis."
        )
        yield Heading("Percentiles", folded=True)
        yield Text(
            "The speed-up compares runs made right after each other, so it may differ from the "
            "ratio of these percentiles."
        )
        yield Table(
            ("", "runs", *(f"p{share}, ms" for share in _SHARES), "slowest, ms"),
            tuple(_make_row(name, ns) for name, ns in sides.items()),
        )


def _sort_latencies(bursts: Iterable[Burst]) -> list[int]:
    return sorted(ns for burst in bursts for ns in burst.latency_ns)


def _make_row(name: str, ns: Sequence[int]) -> tuple[str, ...]:
    figures = (say.format_milliseconds(percentile(ns, share)) for share in _SHARES)
    return (name, f"{len(ns):,}", *figures, say.format_milliseconds(ns[-1]))


def _make_histograms(sides: dict[str, list[int]], x_label: str) -> Lines:
    """Count both in the same bins; the axis begins at zero where the two lie far apart."""
    high = max(ns[int(_LAST * (len(ns) - 1))] for ns in sides.values()) / 1e6
    low = min(ns[0] for ns in sides.values()) / 1e6
    low = 0.0 if low < high / 2 else low
    wide = (high - low) / _BINS or 1.0
    lines, marks = [], []
    for name, ns in sides.items():
        tone = "win" if name == "winner" else "original"
        counts = [0] * (_BINS + 1)
        for latency in ns:
            if low <= latency / 1e6 <= high:
                counts[int((latency / 1e6 - low) / wide)] += 1
        shares = [100 * count / len(ns) for count in counts]
        # The outline of the bars, from the first that holds a run to the last.
        filled_bins = [place for place, share in enumerate(shares) if share]
        first, last = filled_bins[0], filled_bins[-1]
        points = [(low + first * wide, 0.0)]
        for place in range(first, last + 1):
            points += [
                (low + place * wide, shares[place]),
                (low + (place + 1) * wide, shares[place]),
            ]
        lines.append(Line(name, ((*points, (low + (last + 1) * wide, 0.0))), tone, filled=True))
        top = max(range(len(shares)), key=shares.__getitem__)
        marks.append(Point(low + (top + 0.5) * wide, shares[top], name, tone))
    return Lines(x_label, "% of the runs", tuple(lines), tuple(marks))
