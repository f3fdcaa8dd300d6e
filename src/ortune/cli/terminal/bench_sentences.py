"""What follows from a bench, in sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from ortune.cli.terminal.figures import interval
from ortune.core.capabilities import placed
from ortune.core.wording import count

if TYPE_CHECKING:
    from ortune.analysis.benchmark.crossover import Crossover
    from ortune.analysis.benchmark.result import BenchResult, SelfCheck, Winner

Row: TypeAlias = Mapping[str, Any]


def sentences(found: BenchResult, rows: Sequence[Row]) -> list[str]:
    """Return the lines below the tables, the winner last."""
    several = len(found.winners) > 1
    lines = []
    if len(rows) > 1:
        of = "the first row of the same batch" if several else "the first row"
        lines.append(f"ratio: {rows[0]['measure']} over that of {of}, with its 99 % interval")
        lines.append("ms: the median of the first row, of the others that times the ratio")
        lines += _counted(found)
    if rows[0]["measure"] == "latency" and any(n > 1 for row in rows for n in row["runs_each"]):
        most = max(each for row in rows for each in row["runs_each"])
        text = f"short runs: a sample is the mean of up to {count(most, 'run')}, percentiles too"
        lines.append(text)
    lines += [
        f"{row['backend']}: {note}" if len(rows) > 1 else note
        for row in rows
        for note in row["reported"].get("notes", ())
    ]
    lines += _check(found.self_check)
    judged = found.judgement
    lines += [f"note: {one.what}; to change that: {one.change}" for one in judged.advice]
    for one in found.winners:
        lines += _winner(one, found, rows, several)
    return lines + _crossovers(found.crossovers)


def _crossovers(every: Sequence[Crossover]) -> list[str]:
    """Say where sides change; where none does, who is ahead of the first."""
    real = [one for one in every if one.batch is not None]
    first = [one for one in every if one.one == every[0].one]
    return [one.says for one in real or first]


def _check(check: SelfCheck | None) -> list[str]:
    if check is None:
        return []
    text = interval(check.ratio)
    if check.equal:
        apart = 100 * (check.ratio.high / check.ratio.value - 1)
        said = f"self-check: equal is called equal here: the first row is {text} of itself"
        return [f"{said}; less than {apart:.1f} % cannot be distinguished"]
    return [
        f"self-check failed: the first row is {text} of itself; the intervals have that in them",
        "measure again on a quieter machine, or for longer with --seconds",
    ]


def _counted(found: BenchResult) -> list[str]:
    """Count the rows by how they stand to the first."""
    said = ", ".join(f"{number} {kind}" for kind, number in found.counts.items() if number)
    return [f"beside the first row: {said}"] if said else []


def _winner(one: Winner, found: BenchResult, rows: Sequence[Row], several: bool) -> list[str]:
    group = [row for row in rows if row["workload"] == one.workload and not row["again"]]
    if len(group) < 2:
        return []
    where = f"batch {one.batch}: " if several else ""
    if one.row is not None:
        row = rows[one.row]
        model = f"{Path(row['model']).name} on " if len({r["model"] for r in rows}) > 1 else ""
        return [f"{where}fastest: {model}{placed(row)}"]
    if found.judgement.too_noisy:
        return [f"{where}no winner: this machine is too noisy for a verdict"]
    return [f"{where}no winner: the difference is inside the noise"]
