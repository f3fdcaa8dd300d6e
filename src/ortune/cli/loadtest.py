"""Put a server under load, level by level."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from ortune.cli.main import DONE, NO
from ortune.cli.terminal import output
from ortune.cli.terminal.command import make_command
from ortune.cli.terminal.page import PageOptions, require_page, save_page
from ortune.core.request import request
from ortune.serving.load_testing.requests import LoadTest

if TYPE_CHECKING:
    from ortune.serving.load_testing.goal import GoalResult
    from ortune.serving.load_testing.loadtest import LoadTestResult

Row: TypeAlias = Mapping[str, Any]
_COLUMNS: tuple[tuple[str, Callable[[Row], str]], ...] = (
    ("", lambda row: row["workload"]),
    ("requests/s>", lambda row: output.format_figure(row["requests_per_s"])),
    ("p50 ms>", lambda row: output.format_ms(row.get("p50_ns"))),
    ("p90 ms>", lambda row: output.format_ms(row.get("p90_ns"))),
    ("p95 ms>", lambda row: output.format_ms(row["p95_ns"])),
    ("p99 ms>", lambda row: output.format_ms(row.get("p99_ns"))),
    ("errors>", lambda row: str(row["failed"])),
    ("server queue ms>", lambda row: output.format_ms(row["server"]["queue_ns"])),
    ("compute ms>", lambda row: output.format_ms(row["server"]["compute_ns"])),
    ("rows a run>", lambda row: output.format_figure(row["server"]["batch"])),
    ("server CPU ms>", lambda row: output.format_ms(row["server"]["cpu_ns"])),
    ("server MB>", lambda row: output.format_mb(row["peak_rss"])),
    ("client CPU>", lambda row: f"{100 * row['client']['busy']:.0f} %"),
)


@request
class _Options(PageOptions, LoadTest):
    """Options of the command line."""


@make_command(_Options)
def command(options: _Options) -> int:
    """Show a row a level; exit code 1 where the limit is not kept or answers are not right."""
    from ortune.serving.load_testing.goal import GoalResult
    from ortune.serving.load_testing.loadtest import run

    require_page(options)
    result = run(options)
    if options.page is not None:
        from ortune.cli.terminal.load_page import build_goal_page, build_load_page

        if isinstance(result, GoalResult):
            save_page(options, build_goal_page(result))
        else:
            save_page(options, build_load_page(result))
    if isinstance(result, GoalResult):
        output.print_result(result, lambda: _print_goal(result))
        return DONE
    output.print_result(result, lambda: _print_levels(result))
    broken = result.checked is not None and result.checked.wrong
    return NO if broken or result.most is None or (result.slo and result.kept is None) else DONE


def _print_levels(result: LoadTestResult) -> None:
    from ortune.core.section import Bar, Bars
    from ortune.reporting.terminal import BarRows

    cells = [[write(row) for _, write in _COLUMNS] for row in result.rows]
    kept = [k for k in range(len(_COLUMNS)) if any(line[k] != "-" for line in cells)]
    output.print_table([_COLUMNS[k][0] for k in kept], [[line[k] for k in kept] for line in cells])
    if len(result.rows) > 1:
        bars = tuple(
            Bar(
                row["workload"].partition(", ")[2],
                (row["requests_per_s"],),
                f"p50 {output.format_ms(row.get('p50_ns'))} ms, "
                f"p99 {output.format_ms(row.get('p99_ns'))} ms",
            )
            for row in result.rows
        )
        output.print_text("")
        output.print_items(BarRows(Bars("right answers a second", bars)))
        output.print_text("")
    for row in result.rows:
        for word, number in row["errors"].items():
            example = row["examples"].get(word, "")
            output.print_text(
                f"{row['workload']}: {number:,} x {word}{f': {example}' if example else ''}"
            )
    for text in result.notes:
        output.print_text(f"note: {text}")
    for advice in result.judgement.advice:
        output.print_text(f"note: {advice.what}; to change that: {advice.change}")
    if missing := [row for row in result.rows if row["answered"] and row.get("p99_ns") is None]:
        least = min(row["answered"] for row in missing)
        output.print_text(
            f"a percentile needs 10 answers beyond it, so p99 needs 1,000; a level here has only "
            f"{least:,}"
        )
    output.print_text(f"latency: {result.clock}")
    if result.checked is not None:
        output.print_text(str(result.checked))
    if result.judgement.too_noisy:
        output.print_text("this machine is too noisy for a verdict on these times")
    if result.most is not None and len(result.rows) > 1:
        output.print_text(f"most: {_describe_level(result, result.most)}")
    if result.knee is not None:
        output.print_text(f"knee: {_describe_level(result, result.knee)}: {result.knee_rule}")
    if result.slo:
        kept_by = "no level" if result.kept is None else _describe_level(result, result.kept)
        output.print_text(f"within {result.slo}: {kept_by}")


def _print_goal(result: GoalResult) -> None:
    rows = [
        [attempt.settings, output.format_figure(attempt.ratio), str(attempt.pairs)]
        for attempt in result.tried
    ]
    output.print_text(f"the defaults, {result.defaults}: {result.before}")
    if rows:
        output.print_table(["settings", "over the defaults>", "pairs>"], rows)
    for text in result.notes:
        output.print_text(f"note: {text}")
    output.print_text(result.verdict)
    if result.out:
        output.print_text(f"wrote {result.out}: {result.choice}")


def _describe_level(result: LoadTestResult, index: int) -> str:
    row = result.rows[index]
    return f"{row['workload']}, {output.format_figure(row['requests_per_s'])} requests/s"
