"""Compare saved runs, in blocks for a terminal and for a comment."""

from __future__ import annotations

import math
from pathlib import Path

from ortune.analysis.benchmark import compare as comparing
from ortune.analysis.benchmark.compare import ComparedRun, CompareResult
from ortune.core import wording
from ortune.core.atomic_write import write_text
from ortune.core.request import verb
from ortune.core.section import Block, Table, Text
from ortune.reporting.blocks import Part
from ortune.reporting.markdown import written
from ortune.reporting.python.requests import CompareFiles

_FEW = 6


def run(asked: CompareFiles) -> CompareResult:
    """Compare, and write the comment."""
    found = comparing.run(asked)
    if asked.markdown is not None:
        comparisons, total = parts(found)
        write_text(Path(asked.markdown), written([total, comparisons]))
    return found


compare = verb(CompareFiles, run, "compare")


def parts(found: CompareResult) -> tuple[Part, Part]:
    """Return the comparisons and the total: a comment begins with the total."""
    made: list[Block] = []
    for one in found.comparisons:
        # Name the files, and in the first lines what differs between them.
        where = "the same machine" if one.same_machine else "another machine"
        lines = [f"{one.other} against {one.reference}: {where}"]
        told = [
            f"{entry.field} {entry.reference or '-'} -> {entry.other or '-'}"
            for entry in one.differs
        ]
        if told:
            more = f", and {len(told) - _FEW} more" if len(told) > _FEW else ""
            lines.append(f"differs: {'; '.join(told[:_FEW])}{more}")
        lines += [
            f"{path} was measured on a machine too noisy for a verdict" for path in one.too_noisy
        ]
        made += map(Text, lines)
        others = [
            name
            for name in ("p99", "memory", "size", "load")
            if name in found.thresholds or any(_moved(row.ratio(name)) for row in one.rows)
        ]
        rows = tuple(
            (
                row.name + ("" if row.same_model in (True, None) else " (another model)"),
                ("-" if row.latency is None else str(row.latency)),
                *("-" if row.ratio(name) is None else f"{row.ratio(name):.3f}" for name in others),
                row.verdict,
            )
            for row in one.rows
        )
        made.append(Table(("row", "latency [99 %]", *others, "verdict"), rows))
        made += map(Text, _tail(one))
    clear = not found.regressions and any(row.judged for row in found.rows)
    total = Text(_total(found), "good" if clear else "warn")
    return Part("comparisons", tuple(made)), Part("total", (total,))


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
    said = f"{count} of {wording.count(len(rows), 'row')} regressed" if count else "no regression"
    if left:
        said = f"{said}, {left} not judged" if count or left < len(rows) else "no row was judged"
    reach = [
        row.latency.high / row.latency.value - 1 for row in rows if row.judged and row.latency
    ]
    seen = max(reach, default=math.inf)
    blind = (
        f"; less than {100 * seen:.0f} % cannot be distinguished from noise" if seen < 99 else ""
    )
    return f"{said} (threshold: {limits}){blind}"
