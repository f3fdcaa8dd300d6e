"""What regions cost and save alone, in blocks for a terminal and for a page."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from ortune.analysis.sensitivity.result import Sensitivity, worth
from ortune.core.section import Block, Heading, Scatter, Table, Text
from ortune.core.wording import count
from ortune.regions.survey import RegionCost, unchanged
from ortune.reporting.blocks import Part
from ortune.reporting.precision import regions

_SHOWN = 30
"""Rows that are shown unless all are asked for."""
_SHARE = 0.05
"""Of what all regions cost together, from which what two neighbours share is told."""
_NAMED = 8
"""Names of what was not reached that are told."""


def parts(found: Sensitivity, *, every: bool = False) -> tuple[Part, ...]:
    """Return the table, what follows from it, and the picture.

    Args:
        found: The figures.
        every: All rows, and each region in its own.
    """
    title = f"{found.precision} by {found.by}, on {found.on}"
    made: list[Block] = [Heading(title), Text(_whole(found))]
    if sum(map(regions.drawn, found.regions)) > 1:
        made.append(picture(found))
    groups = [[one] for one in found.regions] if every else folded(found.regions)
    shown = groups if every else groups[:_SHOWN]
    made.append(_table(shown, found))
    if more := len(groups) - len(shown):
        made.append(Text(f"{count(more, 'row')} more; -v shows all."))
    made += _ending(found)
    return (Part("sensitivity", tuple(made)),)


def picture(found: Sensitivity) -> Scatter:
    """Draw what each region costs against what it saves."""
    return regions.picture([(one, regions.OTHER) for one in found.regions], found.unit)


def folded(rows: Sequence[RegionCost]) -> list[list[RegionCost]]:
    """Return regions of one pattern in one row, in the order of the first of each."""
    return regions.folded(rows, _alike)


def _alike(one: RegionCost) -> Hashable:
    return (one.pattern, one.error)


def _table(groups: Sequence[Sequence[RegionCost]], found: Sensitivity) -> Table:
    nodes = found.by != "node"
    head = (found.by, "layers", *(("nodes",) if nodes else ()), "accuracy cost", "time saved, %")
    rows = tuple(
        (
            regions.name(group),
            regions.operators(group[0]),
            *((str(len(group[0].nodes)),) if nodes else ()),
            *_figures(group),
        )
        for group in groups
    )
    marks = tuple("lose" if group[0].error else "" for group in groups)
    return Table((*head, "cost for 1 % of the time"), rows, marks)


def _figures(group: Sequence[RegionCost]) -> tuple[str, str, str]:
    first = group[0]
    if first.error:
        return regions.cost(group), "-", first.error
    if unchanged(first):
        return "-", "-", "left in float by the step itself"
    ratios = sorted(worth(one) for one in group)
    each = dict.fromkeys(_ratio(value / 100) for value in (ratios[0], ratios[-1]))
    return regions.cost(group), regions.gain(group), " to ".join(each)


def _ratio(value: float) -> str:
    if value == float("inf"):
        return "saves nothing"
    return "-" if value == float("-inf") else regions.number(value)


def _whole(found: Sensitivity) -> str:
    unit = f" ({found.unit})" if found.unit else ""
    counted = count(len(found.regions), "region")
    told = {"node": counted.replace("region", "node"), "op": counted.replace("region", "operator")}
    kept = "kept from an earlier call" if found.kept else f"measured in {found.seconds:.0f} s"
    return (
        f"{told.get(found.by, counted)}, {kept}, on {count(found.samples, 'sample')}. All "
        f"together cost {regions.number(found.whole_cost)}{unit}."
    )


def _ending(found: Sensitivity) -> list[Block]:
    made: list[Block] = []
    much = [one for one in found.shared if one.cost >= _SHARE * found.whole_cost > 0]
    if much:
        pairs = "; ".join(
            f"{one.one} and {one.two} {regions.number(one.cost)}" for one in much[:_NAMED]
        )
        text = (
            f"Lost by either of two neighbours alone, and by both together once: {pairs}. "
            "Giving one of them back alone brings none of it."
        )
        made.append(Text(text))
    if found.not_reached:
        names = ", ".join(found.not_reached[:_NAMED])
        more = len(found.not_reached) - _NAMED
        rest = f" and {count(more, 'other')}" if more > 0 else ""
        text = f"Not reached, for lack of time: {names}{rest}. Give more --time."
        made.append(Text(text, "warn"))
    return made
