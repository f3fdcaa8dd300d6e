"""Find the runtime settings a model runs fastest with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ortune.analysis.tuning.requests import Tune
from ortune.cli.terminal.command import verb
from ortune.cli.terminal.output import answer, interval, say, table

if TYPE_CHECKING:
    from ortune.analysis.tuning.tune import TuneResult


@verb(Tune)
def command(asked: Tune) -> None:
    """Show one line a value, then what to paste."""
    from ortune.analysis.tuning.tune import run

    found = run(asked)
    answer(found, lambda: _show(found))


def _show(found: TuneResult) -> None:
    table(
        ("setting", "value", "ratio to the best so far [99 %]>", "", "why"),
        [
            (one.setting, one.value, interval(one.ratio), "kept" if one.kept else "", one.why)
            for one in found.attempts
        ],
    )
    counts = ", ".join(f"{number} {kind}" for kind, number in found.counts.items() if number)
    late = ": time is up" if found.finished == "time" else ""
    say(f"values: {counts or 'none to try'}{late}")
    for text in found.advice:
        say(f"note: {text}")
    if found.too_noisy:
        say(f"this machine is too noisy for a verdict: stay with --on {quoted(found.start)}")
        return
    if found.unconfirmed:
        say(f"not confirmed in fresh pairs: {found.unconfirmed}")
    if not found.improved:
        say(f"nothing was faster beyond the noise: stay with --on {quoted(found.start)}")
        return
    say(f"ratio to {found.start}: {interval(found.ratio)}, in fresh pairs")
    cpu = found.cpu_ratio
    if cpu is not None:
        say(f"CPU time per inference, spinning included: {cpu.value:.2f} times")
    if found.lossy:
        say(f"these settings change numbers; within the budget {found.budget}")
    say(f"use: --on {quoted(found.best)}")


def quoted(spelling: str) -> str:
    """Quote a backend for the shell."""
    escaped = spelling.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
