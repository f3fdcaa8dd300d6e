"""Replay a bundle, in blocks for a terminal and for a comment."""

import math
from pathlib import Path

from ortune.analysis.recheck import recheck as rechecking
from ortune.core.atomic_write import write_text
from ortune.core.request import make_verb
from ortune.core.section import Block, Table, Text
from ortune.core.trial import Interval
from ortune.reporting.blocks import Part
from ortune.reporting.markdown import render_markdown_parts
from ortune.reporting.python.requests import RecheckPage


def run(request: RecheckPage) -> rechecking.RecheckResult:
    """Replay, and write the comment."""
    result = rechecking.run(request)
    if request.markdown is not None:
        replays, total = build_recheck_parts(result)
        write_text(Path(request.markdown), render_markdown_parts([total, replays]))
    return result


recheck = make_verb(RecheckPage, run, "recheck")


def build_recheck_parts(result: rechecking.RecheckResult) -> tuple[Part, Part]:
    """Return the replays and the total: a comment begins with the total."""
    aside = any(row.beside for row in result.replays)
    columns = ("runtime", "answers dB", "ratio [99 %]", *(("beside here",) if aside else ()))
    rows = tuple(
        (
            row.runtime,
            _format_decibels(row),
            _format_interval(row.ratio),
            *((_format_interval(row.beside),) if aside else ()),
            str(row.verdict),
        )
        for row in result.replays
    )
    blocks: list[Block] = [Text(_describe_packed(result)), Table((*columns, "verdict"), rows)]
    blocks += [Text(f"{row.runtime}: {row.why}") for row in result.replays if row.why]
    differing = {row.differs: row.runtime for row in reversed(result.replays) if row.differs}
    blocks += [
        Text(f"differs from the packed state, {name}: {text}") for text, name in differing.items()
    ]
    if result.timed_why_not:
        blocks.append(Text(f"not timed: {result.timed_why_not}"))
    if len(result.replays) > 1 and result.changes:
        blocks.append(Text(f"results changed with {'; then with '.join(result.changes)}"))
    total = Text(result.reason, "good" if result.good else "warn")
    return Part("replays", tuple(blocks)), Part("total", (total,))


def _describe_packed(result: rechecking.RecheckResult) -> str:
    headline = f"{Path(result.bundle).name}: {result.plan}, trial {result.key[:8]}"
    if result.packed is None:
        return f"{headline}, no ratio packed"
    if result.predicted is None:
        return f"{headline}, {result.packed} of the original's time when packed"
    low, high = result.predicted.low, result.predicted.high
    return (
        f"{headline}, {result.packed} of the original's time when packed; repeat measurements: "
        f"{low:.3f}-{high:.3f} (95 %)"
    )


def _format_decibels(row: rechecking.RecheckRow) -> str:
    if row.answers_db is None:
        return "-"
    return "equal" if row.answers_db == math.inf else f"{row.answers_db:.0f}"


def _format_interval(ratio: Interval | None) -> str:
    return "-" if ratio is None else str(ratio)
