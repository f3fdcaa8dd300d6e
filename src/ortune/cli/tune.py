"""Find the runtime settings a model runs fastest with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ortune.analysis.tuning.requests import Tune
from ortune.cli.terminal.command import make_command
from ortune.cli.terminal.output import format_interval, print_result, print_table, print_text
from ortune.core.wording import shorten_groups

if TYPE_CHECKING:
    from ortune.analysis.tuning.tune import TuneResult


@make_command(Tune)
def command(request: Tune) -> None:
    """Show one line a value, then what to paste."""
    from ortune.analysis.tuning.tune import run

    result = run(request)
    print_result(result, lambda: _print_attempts(result))


def _print_attempts(result: TuneResult) -> None:
    print_table(
        ("setting", "value", "ratio to the best so far [99 %]>", "", "why"),
        [
            (
                attempt.setting,
                attempt.value,
                format_interval(attempt.ratio),
                "kept" if attempt.kept else "",
                attempt.why,
            )
            for attempt in result.attempts
        ],
    )
    counts = ", ".join(f"{number} {kind}" for kind, number in result.counts.items() if number)
    late = ": out of time" if result.finished == "time" else ""
    print_text(f"values: {counts or 'none to try'}{late}")
    for text in result.advice:
        print_text(f"note: {text}")
    if result.too_noisy:
        print_text(
            "this machine is too noisy for a verdict: stay with --on "
            f"{quote_backend(result.start)}"
        )
        return
    if result.unconfirmed:
        print_text(f"not confirmed when re-measured: {result.unconfirmed}")
    if not result.improved:
        print_text(
            f"no setting was faster (within noise): stay with --on {quote_backend(result.start)}"
        )
        return
    print_text(f"latency ratio to {result.start}: {format_interval(result.ratio)}, re-measured")
    cpu = result.cpu_ratio
    if cpu is not None:
        print_text(f"CPU time per inference, spinning included: {cpu.value:.2f} times")
    if result.lossy:
        budget = shorten_groups(str(result.budget))
        print_text(f"these settings change the outputs, within the budget {budget}")
    print_text(f"use: --on {quote_backend(result.best)}")


def quote_backend(spelling: str) -> str:
    """Quote a backend for the shell."""
    escaped = spelling.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
