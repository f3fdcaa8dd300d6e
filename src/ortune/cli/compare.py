"""Compare saved runs of `bench` and `loadtest`; made for continuous integration."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import KW_ONLY
from pathlib import Path
from typing import TYPE_CHECKING

from ortune.analysis.benchmark.requests import Compare
from ortune.cli.main import DONE, NO
from ortune.cli.terminal.command import verb
from ortune.cli.terminal.figures import interval
from ortune.cli.terminal.output import answer, say, table
from ortune.core.fields import File
from ortune.core.request import request

if TYPE_CHECKING:
    from ortune.analysis.benchmark.compare_result import ComparedRun, CompareResult

_FEW = 6


@request
class _Asked(Compare):
    """Options of the command line.

    Attributes:
        markdown: Write the table for a comment.
    """

    _: KW_ONLY
    markdown: File | None = None


@verb(_Asked)
def command(asked: _Asked) -> int:
    """Show the rows; exit code 1 when one regressed."""
    from ortune.analysis.benchmark.compare import run

    found = run(asked)
    if asked.markdown is not None:
        Path(asked.markdown).write_text(_markdown(found), encoding="utf-8")
    answer(found, lambda: _show(found))
    return NO if found.regressions else DONE


def _show(found: CompareResult) -> None:
    for one in found.comparisons:
        for line in _head(one):
            say(line)
        columns, cells = _table(one, found.thresholds)
        table([f"{name}>" if k else name for k, name in enumerate(columns)], cells)
        for line in _tail(one):
            say(line)
    say(_total(found))


def _head(one: ComparedRun) -> list[str]:
    """Name the files, and in the first lines what differs between them."""
    where = "the same machine" if one.same_machine else "another machine"
    lines = [f"{one.other} against {one.reference}: {where}"]
    told = [
        f"{entry.field} {entry.reference or '-'} -> {entry.other or '-'}" for entry in one.differs
    ]
    if told:
        more = f", and {len(told) - _FEW} more" if len(told) > _FEW else ""
        lines.append(f"differs: {'; '.join(told[:_FEW])}{more}")
    lines += [
        f"{path} was measured on a machine too noisy for a verdict" for path in one.too_noisy
    ]
    return lines


def _table(one: ComparedRun, limits: Mapping[str, float]) -> tuple[list[str], list[list[str]]]:
    others = [
        name
        for name in ("p99", "memory", "size", "load")
        if name in limits or any(_moved(row.ratio(name)) for row in one.rows)
    ]
    cells = [
        [
            row.name + ("" if row.same_model in (True, None) else " (another model)"),
            interval(row.latency),
            *("-" if row.ratio(name) is None else f"{row.ratio(name):.3f}" for name in others),
            row.verdict,
        ]
        for row in one.rows
    ]
    return ["row", "latency [99 %]", *others, "verdict"], cells


def _moved(ratio: float | None) -> bool:
    """Worth a column though nobody asked: by a tenth and more."""
    return ratio is not None and not 0.9 < ratio < 1.1


def _tail(one: ComparedRun) -> list[str]:
    lines = [f"only in the reference: {name}" for name in one.only_reference]
    lines += [f"only in {one.other}: {name}" for name in one.only_other]
    hows = dict.fromkeys(row.how for row in one.rows if row.how != "direct")
    lines += [f"latency is {how}: a ratio of ratios" for how in hows]
    if any(row.verdict == "not judged: another machine" for row in one.rows):
        lines.append(
            "not judged: the machines differ and no common first row was timed beside it; "
            "--across-machines judges the times as they are"
        )
    for row in one.rows:
        for which, error in zip(("reference", one.other), row.error, strict=True):
            if error:
                lines.append(f"{row.name} failed in {which}: {error}")
    return lines


def _total(found: CompareResult) -> str:
    limits = ", ".join(f"{name} {100 * share:g} %" for name, share in found.thresholds.items())
    rows = found.rows
    count = found.regressions
    left = sum(not row.judged for row in rows)
    said = f"{count} of {len(rows)} rows regressed" if count else "no regression"
    if left:
        said = f"{said}, {left} not judged" if count or left < len(rows) else "no row was judged"
    reach = [
        row.latency.high / row.latency.value - 1 for row in rows if row.judged and row.latency
    ]
    seen = max(reach, default=math.inf)
    blind = f"; less than {100 * seen:.0f} % cannot be told from noise" if seen < 99 else ""
    return f"{said} (threshold: {limits}){blind}"


def _markdown(found: CompareResult) -> str:
    lines = [f"**{_total(found)}**", ""]
    for one in found.comparisons:
        columns, cells = _table(one, found.thresholds)
        lines += [*(f"{_cell(line)}  " for line in _head(one)), ""]
        lines += [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
        lines += [f"| {' | '.join(_cell(cell) for cell in line)} |" for line in cells]
        lines += ["", *(f"- {_cell(line)}" for line in _tail(one)), ""]
    return "\n".join(lines).rstrip() + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
