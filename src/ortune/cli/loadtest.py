"""Put a server under load, level by level."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from ortune.cli.main import DONE, NO
from ortune.cli.terminal.command import verb
from ortune.cli.terminal.output import answer, figure, megabytes, milliseconds, say, show, table
from ortune.serving.load_testing.requests import LoadTest

if TYPE_CHECKING:
    from ortune.serving.load_testing.goal import GoalResult
    from ortune.serving.load_testing.loadtest import LoadTestResult

Row: TypeAlias = Mapping[str, Any]
_COLUMNS: tuple[tuple[str, Callable[[Row], str]], ...] = (
    ("", lambda row: row["workload"]),
    ("requests/s>", lambda row: figure(row["requests_per_s"])),
    ("p50 ms>", lambda row: milliseconds(row.get("p50_ns"))),
    ("p90 ms>", lambda row: milliseconds(row.get("p90_ns"))),
    ("p95 ms>", lambda row: milliseconds(row["p95_ns"])),
    ("p99 ms>", lambda row: milliseconds(row.get("p99_ns"))),
    ("errors>", lambda row: str(row["failed"])),
    ("server queue ms>", lambda row: milliseconds(row["server"]["queue_ns"])),
    ("compute ms>", lambda row: milliseconds(row["server"]["compute_ns"])),
    ("rows a run>", lambda row: figure(row["server"]["batch"])),
    ("server CPU ms>", lambda row: milliseconds(row["server"]["cpu_ns"])),
    ("server MB>", lambda row: megabytes(row["peak_rss"])),
    ("client CPU>", lambda row: f"{100 * row['client']['busy']:.0f} %"),
)


@verb(LoadTest)
def command(asked: LoadTest) -> int:
    """Show a row a level; exit code 1 where the limit is not kept or answers are not right."""
    from ortune.serving.load_testing.goal import GoalResult
    from ortune.serving.load_testing.loadtest import run

    found = run(asked)
    if isinstance(found, GoalResult):
        answer(found, lambda: _show_goal(found))
        return DONE
    answer(found, lambda: _show(found))
    broken = found.checked is not None and found.checked.wrong
    return NO if broken or found.most is None or (found.slo and found.kept is None) else DONE


def _show(found: LoadTestResult) -> None:
    from ortune.core.section import Bar, Bars
    from ortune.reporting.terminal import Chart

    cells = [[write(row) for _, write in _COLUMNS] for row in found.rows]
    kept = [k for k in range(len(_COLUMNS)) if any(line[k] != "-" for line in cells)]
    table([_COLUMNS[k][0] for k in kept], [[line[k] for k in kept] for line in cells])
    if len(found.rows) > 1:
        bars = tuple(
            Bar(
                row["workload"].partition(", ")[2],
                (row["requests_per_s"],),
                f"p50 {milliseconds(row.get('p50_ns'))} ms, "
                f"p99 {milliseconds(row.get('p99_ns'))} ms",
            )
            for row in found.rows
        )
        say("")
        show(Chart(Bars("right answers a second", bars)))
        say("")
    for row in found.rows:
        for word, number in row["errors"].items():
            said = row["examples"].get(word, "")
            say(f"{row['workload']}: {number:,} times {word}{f': {said}' if said else ''}")
    for text in found.notes:
        say(f"note: {text}")
    for one in found.judgement.advice:
        say(f"note: {one.what}; to change that: {one.change}")
    if missing := [row for row in found.rows if row["answered"] and row.get("p99_ns") is None]:
        least = min(row["answered"] for row in missing)
        say(f"a percentile needs 10 answers beyond it: p99 takes 1,000; the fewest are {least:,}")
    say(f"latency: {found.clock}")
    if found.checked is not None:
        say(str(found.checked))
    if found.judgement.too_noisy:
        say("this machine is too noisy for a verdict on these times")
    if found.most is not None and len(found.rows) > 1:
        say(f"most: {_named(found, found.most)}")
    if found.knee is not None:
        say(f"knee: {_named(found, found.knee)}: {found.knee_rule}")
    if found.slo:
        kept_by = "no level" if found.kept is None else _named(found, found.kept)
        say(f"within {found.slo}: {kept_by}")


def _show_goal(found: GoalResult) -> None:
    rows = [[one.settings, figure(one.ratio), str(one.pairs)] for one in found.tried]
    say(f"the defaults, {found.defaults}: {found.before}")
    if rows:
        table(["settings", "over the defaults>", "pairs>"], rows)
    for text in found.notes:
        say(f"note: {text}")
    say(found.verdict)
    if found.out:
        say(f"wrote {found.out}: {found.choice}")


def _named(found: LoadTestResult, place: int) -> str:
    row = found.rows[place]
    return f"{row['workload']}, {figure(row['requests_per_s'])} requests/s"
