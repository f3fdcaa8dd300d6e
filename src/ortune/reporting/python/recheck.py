"""Replay a bundle, in blocks for a terminal and for a comment."""

from __future__ import annotations

import math
from pathlib import Path

from ortune.analysis.recheck import recheck as rechecking
from ortune.analysis.recheck.recheck import RecheckResult, RecheckRow
from ortune.core.atomic_write import write_text
from ortune.core.request import verb
from ortune.core.section import Block, Table, Text
from ortune.core.trial import Interval
from ortune.reporting.blocks import Part
from ortune.reporting.markdown import written
from ortune.reporting.python.requests import RecheckPage


def run(asked: RecheckPage) -> RecheckResult:
    """Replay, and write the comment."""
    found = rechecking.run(asked)
    if asked.markdown is not None:
        replays, total = parts(found)
        write_text(Path(asked.markdown), written([total, replays]))
    return found


recheck = verb(RecheckPage, run, "recheck")


def parts(found: RecheckResult) -> tuple[Part, Part]:
    """Return the replays and the total: a comment begins with the total."""
    aside = any(one.beside for one in found.replays)
    columns = ("runtime", "answers dB", "ratio [99 %]", *(("beside here",) if aside else ()))
    rows = tuple(
        (
            one.runtime,
            _decibels(one),
            _interval(one.ratio),
            *((_interval(one.beside),) if aside else ()),
            str(one.verdict),
        )
        for one in found.replays
    )
    made: list[Block] = [Text(_packed(found)), Table((*columns, "verdict"), rows)]
    made += [Text(f"{one.runtime}: {one.why}") for one in found.replays if one.why]
    differing = {one.differs: one.runtime for one in reversed(found.replays) if one.differs}
    made += [Text(f"not as packed, {name}: {text}") for text, name in differing.items()]
    if found.timed_why_not:
        made.append(Text(f"not timed: {found.timed_why_not}"))
    if len(found.replays) > 1 and found.changes:
        made.append(Text(f"changed with {'; then with '.join(found.changes)}"))
    total = Text(found.reason, "good" if found.good else "warn")
    return Part("replays", tuple(made)), Part("total", (total,))


def _packed(found: RecheckResult) -> str:
    """Say what was packed."""
    told = f"{Path(found.bundle).name}: {found.plan}, trial {found.key[:8]}"
    if found.packed is None:
        return f"{told}, no ratio packed"
    if found.predicted is None:
        return f"{told}, {found.packed} of the original's time when packed"
    low, high = found.predicted.low, found.predicted.high
    return (
        f"{told}, {found.packed} of the original's time when packed; a new measurement falls in "
        f"{low:.3f}-{high:.3f} (95 %)"
    )


def _decibels(one: RecheckRow) -> str:
    if one.answers_db is None:
        return "-"
    return "equal" if one.answers_db == math.inf else f"{one.answers_db:.0f}"


def _interval(found: Interval | None) -> str:
    return "-" if found is None else str(found)
