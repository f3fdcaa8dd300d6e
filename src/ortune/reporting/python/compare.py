"""Compare saved runs, in blocks for a terminal and for a comment."""

import math
from pathlib import Path

from ortune.analysis.benchmark import compare as comparing
from ortune.core import wording
from ortune.core.atomic_write import write_text
from ortune.core.request import make_verb
from ortune.core.section import Block, Table, Text
from ortune.reporting.blocks import Part
from ortune.reporting.markdown import render_markdown_parts
from ortune.reporting.python.requests import CompareFiles

_FEW = 6


def run(request: CompareFiles) -> comparing.CompareResult:
    """Compare, and write the comment."""
    result = comparing.run(request)
    if request.markdown is not None:
        comparisons, total = build_comparison_parts(result)
        write_text(Path(request.markdown), render_markdown_parts([total, comparisons]))
    return result


compare = make_verb(CompareFiles, run, "compare")


def build_comparison_parts(result: comparing.CompareResult) -> tuple[Part, Part]:
    """Return the comparisons and the total: a comment begins with the total."""
    blocks: list[Block] = []
    for comparison in result.comparisons:
        # Name the files, and in the first lines what differs between them.
        where = "the same machine" if comparison.same_machine else "another machine"
        lines = [f"{comparison.other} against {comparison.reference}: {where}"]
        differences = [
            f"{entry.field} {entry.reference or '-'} -> {entry.other or '-'}"
            for entry in comparison.differs
        ]
        if differences:
            more = f", and {len(differences) - _FEW} more" if len(differences) > _FEW else ""
            lines.append(f"differs: {'; '.join(differences[:_FEW])}{more}")
        lines += [
            f"{path} was measured on a machine too noisy for a verdict"
            for path in comparison.too_noisy
        ]
        blocks += map(Text, lines)
        ratios = {n: [row.ratio(n) for row in comparison.rows] for n in comparing.METRICS[1:]}
        metrics = [
            name
            for name, values in ratios.items()  # by a tenth and more one is worth a column
            if name in result.thresholds or any(x and not 0.9 < x < 1.1 for x in values)
        ]
        rows = tuple(
            (
                row.name + ("" if row.same_model in (True, None) else " (another model)"),
                "-" if row.latency is None else str(row.latency),
                *("-" if (ratio := row.ratio(n)) is None else f"{ratio:.3f}" for n in metrics),
                row.verdict,
            )
            for row in comparison.rows
        )
        blocks.append(Table(("row", "latency [99 %]", *metrics, "verdict"), rows))
        blocks += map(Text, _list_remarks(comparison))
    clear = not result.regressions and any(row.judged for row in result.rows)
    total = Text(describe_total(result), "good" if clear else "warn")
    return Part("comparisons", tuple(blocks)), Part("total", (total,))


def _list_remarks(comparison: comparing.ComparedRun) -> list[str]:
    lines = [f"only in the reference: {name}" for name in comparison.only_reference]
    lines += [f"only in {comparison.other}: {name}" for name in comparison.only_other]
    hows = dict.fromkeys(row.how for row in comparison.rows if row.how != "direct")
    lines += [f"latency is {how}: a ratio of ratios" for how in hows]
    if any(row.verdict == "not judged: another machine" for row in comparison.rows):
        lines.append(
            "not judged: the machines differ and no common first row was timed beside it; "
            "--across-machines judges the times as they are"
        )
    for row in comparison.rows:
        for which, error in zip(("reference", comparison.other), row.error, strict=True):
            if error:
                lines.append(f"{row.name} failed in {which}: {error}")
    return lines


def describe_total(result: comparing.CompareResult) -> str:
    """Say how many rows regressed beyond which limits, in one line."""
    limits = ", ".join(f"{name} {100 * share:g} %" for name, share in result.thresholds.items())
    rows = result.rows
    count = result.regressions
    unjudged = sum(not row.judged for row in rows)
    verdict = "no regression"
    if count:
        verdict = f"{count} of {wording.format_count(len(rows), 'row')} regressed"
    if unjudged:
        partly = count or unjudged < len(rows)
        verdict = f"{verdict}, {unjudged} not judged" if partly else "no row was judged"
    reach = [
        row.latency.high / row.latency.value - 1 for row in rows if row.judged and row.latency
    ]
    seen = max(reach, default=math.inf)
    blind = (
        f"; less than {100 * seen:.0f} % cannot be distinguished from noise" if seen < 99 else ""
    )
    return f"{verdict} (threshold: {limits}){blind}"
