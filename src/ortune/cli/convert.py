"""Convert a model to a precision, as told, and check it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ortune.analysis.conversion.requests import Convert
from ortune.cli.terminal.command import verb, verbose
from ortune.cli.terminal.output import answer, size, table
from ortune.core import wording

if TYPE_CHECKING:
    from ortune.analysis.conversion.convert import Converted


@verb(Convert)
def command(asked: Convert) -> None:
    """Show sizes, scores and, where it was timed, the latency."""
    from ortune.analysis.conversion.convert import run
    from ortune.cli.terminal import progress

    with progress.held(asked.sink, verbose=verbose()) as sink:
        found = run(replace(asked, sink=sink))
    answer(found, lambda: _show(found))


def _show(found: Converted) -> None:
    before, after, ratio = found.bytes_before, found.bytes_after, found.latency_ratio
    change = f"{100 * (after - before) / before:+.0f} %"
    held = ", ".join(f"{name} {size(count)}" for name, count in found.weights.items())
    rows = [
        ("size", f"{size(before)} before, {size(after)} after ({change})"),
        ("weights", held or "none"),
    ]
    if scores := found.compared:
        text = ", ".join(f"{score['metric']} {score['value']:.5g}" for score in scores)
        samples = scores[0]["samples"]
        assert isinstance(samples, int)
        rows.append(("against the source", f"{text} ({wording.count(samples, 'sample')})"))
    if ratio:
        spread = f"[{ratio.low:.2f}, {ratio.high:.2f}]"
        rows.append(("latency", f"{ratio.value:.2f} times the source's {spread}"))
    table(("", str(found.output)), rows)
