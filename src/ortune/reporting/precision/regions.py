"""Regions in blocks: what each costs and saves alone, and what a search made of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from ortune.core.section import Block, Heading, Point, Scatter, Table, Text
from ortune.core.trial import Interval
from ortune.core.wording import count
from ortune.reporting.blocks import Part
from ortune.reporting.explanation.explain import GIVEN, KEPT, RegionTold, SurveyTold
from ortune.search.mixed_precision.survey import RegionCost, unchanged, worth

if TYPE_CHECKING:
    from ortune.analysis.sensitivity.run import Sensitivity

T = TypeVar("T")

_SHOWN = 30
"""Rows of a table that is not asked for whole."""
_NAMED = 8
"""Regions or pairs of them that a sentence names."""
_MARKED = 4
"""Of the costliest regions, that are named in the picture."""
_MUCH = 0.05
"""Of what all regions cost together, from which what two neighbours share is told."""
LOW, FLOAT, OTHER = "best", "original", "other"
LEGEND = (
    (LOW, "at this precision in the winner"),
    (FLOAT, "given back in the winner"),
    (OTHER, "measured alone"),
)


def folded(rows: Sequence[T], alike: Callable[[T], Hashable]) -> list[list[T]]:
    """Return rows in groups of what is alike, in the order of their first."""
    groups: dict[Hashable, list[T]] = {}
    for row in rows:
        groups.setdefault(alike(row), []).append(row)
    return list(groups.values())


def name(regions: Sequence[RegionCost]) -> str:
    """Name a region, or several alike by the first and their number."""
    more = f" and {count(len(regions) - 1, 'other')} like it" if len(regions) > 1 else ""
    return f"{regions[0].region}{more}"


def operators(region: RegionCost) -> str:
    """Write the operators of a region's layers: ``Conv``, ``3 MatMul, Softmax``."""
    counted = {op: region.ops.count(op) for op in dict.fromkeys(region.ops)}
    return ", ".join(f"{number} {op}" if number > 1 else op for op, number in counted.items())


def cost(regions: Sequence[RegionCost]) -> str:
    """Write what regions cost in accuracy: one with its interval, several from least to most."""
    values = sorted(one.accuracy_cost.value for one in regions)
    if len(regions) == 1 or math.isnan(sum(values)):
        return spanned(regions[0].accuracy_cost, 1.0)
    return f"{number(values[0])} to {number(values[-1])}"


def gain(regions: Sequence[RegionCost]) -> str:
    """Write what each of some regions saves, % of the original's latency, with its interval."""
    return spanned(regions[0].time_gained, 100.0)


def spanned(found: Interval, scale: float) -> str:
    """Write an estimate with its ends, scaled; the ends are left out where nothing bounds it."""
    if math.isnan(found.value):
        return "-"
    if not (math.isfinite(found.low) and math.isfinite(found.high)):
        return f"about {number(scale * found.value)}"
    low, high = number(scale * found.low), number(scale * found.high)
    return f"{number(scale * found.value)} [{low}, {high}]"


def number(value: float) -> str:
    """Write a signed figure with three significant digits, zero as ``0``."""
    return f"{value:.3g}" if value else "0"


def picture(points: Sequence[tuple[RegionCost, str]], unit: str) -> Scatter:
    """Draw what each region costs against what it saves, each with its tone."""
    drawn_ones = [(region, tone) for region, tone in points if drawn(region)]
    # How many letters all names begin with, up to the last part of a path.
    names = [region.region for region, _ in drawn_ones]
    shared = "" if len(names) < 2 else min(names)
    while shared and not all(name.startswith(shared) for name in names):
        shared = shared[:-1]
    start = max(shared.rfind("/"), shared.rfind(".")) + 1
    # The places of the costliest regions, then of those that save most.
    regions = [region for region, _ in drawn_ones]
    places = range(len(regions))
    costly = sorted(places, key=lambda at: -regions[at].accuracy_cost.value)[:_MARKED]
    saving = sorted(places, key=lambda at: -regions[at].time_gained.value)[: _MARKED // 2]
    return Scatter(
        "time saved alone, % of the original",
        f"accuracy cost alone: {unit or 'loss of the metric'}",
        tuple(
            Point(
                100 * region.time_gained.value,
                region.accuracy_cost.value,
                region.region[start:],
                tone,
                x_span=_ends(region.time_gained, 100.0),
                y_span=_ends(region.accuracy_cost, 1.0),
            )
            for region, tone in drawn_ones
        ),
        legend=LEGEND,
        named=tuple(dict.fromkeys((*costly, *saving))),
    )


def drawn(region: RegionCost) -> bool:
    """Whether a region has a place in the picture."""
    return not region.error and all(
        math.isfinite(one.value) for one in (region.accuracy_cost, region.time_gained)
    )


def _ends(found: Interval, scale: float) -> tuple[float, float] | None:
    ends = (scale * found.low, scale * found.high)
    return ends if all(map(math.isfinite, ends)) and ends[0] < ends[1] else None


def survey(found: SurveyTold, *, folds: bool = False, every: bool = True) -> Iterator[Block]:
    """Yield a survey's blocks: what it says of all regions, the picture, a row each.

    Args:
        folds: The table is shown on demand.
        every: All rows, else the first.
    """
    yield Heading(f"Precision by region: {found.plan}")
    if found.error:
        yield Text(f"Not surveyed: {found.error}.", "warn")
        return
    failed = sum(bool(one.cost.error) for one in found.regions)
    told = f"{count(len(found.regions), 'region')} of {found.precision} surveyed"
    told += f" in {found.seconds:.0f} s" if found.seconds >= 1 else ""
    told += f", {failed} could not be measured" if failed else ""
    unit = f" ({found.unit})" if found.unit else ""
    single = sum(one.cost.accuracy_cost.value for one in found.regions if not one.cost.error)
    told += f". All together cost {number(found.whole_cost)}{unit}"
    yield Text(f"{told}; their single costs add up to {number(single)}.")
    points = [(one.cost, _tone(one)) for one in found.regions]
    if sum(drawn(region) for region, _ in points) > 1:
        yield picture(points, found.unit)
    if folds:
        yield Heading("Every region", folded=True)
    groups = folded(found.regions, _alike)
    groups.sort(key=lambda group: worth(group[0].cost), reverse=True)
    shown = groups if every else groups[:_SHOWN]
    yield Table(
        ("region", "layers", "accuracy cost", "time saved, %", "in the winner", "became"),
        tuple(_row(group) for group in shown),
        tuple("lose" if group[0].cost.error else "" for group in shown),
    )
    if len(shown) < len(groups):
        yield Text(f"{count(len(groups) - len(shown), 'more row')}; -v shows all.")


def _alike(one: RegionTold) -> Hashable:
    """Regions of a pattern stand in a row where the same became of them; failed ones by reason."""
    return (one.cost.pattern, one.winner, one.became)


def _tone(one: RegionTold) -> str:
    kinds = {KEPT: LOW, GIVEN: FLOAT}
    return next((tone for word, tone in kinds.items() if one.became.startswith(word)), OTHER)


def _row(group: Sequence[RegionTold]) -> tuple[str, ...]:
    regions, first = [one.cost for one in group], group[0]
    known = not first.cost.error
    return (
        name(regions),
        operators(first.cost),
        cost(regions) if known else "-",
        gain(regions) if known else "-",
        first.winner or "-",
        first.became,
    )


# --- sensitivity --------------------------------------------------------------------------------


def sensitivity_parts(found: Sensitivity, *, every: bool = False) -> tuple[Part, ...]:
    """Return the table, what follows from it, and the picture.

    Args:
        found: The figures.
        every: All rows, and each region in its own.
    """
    title = f"{found.precision} by {found.by}, on {found.on}"
    made: list[Block] = [Heading(title), Text(_whole(found))]
    if sum(map(drawn, found.regions)) > 1:
        made.append(sensitivity_picture(found))
    groups = [[one] for one in found.regions]
    if not every:
        groups = folded(found.regions, lambda one: (one.pattern, one.error))
    shown = groups if every else groups[:_SHOWN]
    nodes = found.by != "node"
    head = (found.by, "layers", *(("nodes",) if nodes else ()), "accuracy cost", "time saved, %")
    rows = tuple(
        (
            name(group),
            operators(group[0]),
            *((str(len(group[0].nodes)),) if nodes else ()),
            *_figures(group),
        )
        for group in shown
    )
    marks = tuple("lose" if group[0].error else "" for group in shown)
    made.append(Table((*head, "cost for 1 % of the time"), rows, marks))
    if more := len(groups) - len(shown):
        made.append(Text(f"{count(more, 'row')} more; -v shows all."))
    made += _ending(found)
    return (Part("sensitivity", tuple(made)),)


def sensitivity_picture(found: Sensitivity) -> Scatter:
    """Draw what each region costs against what it saves."""
    return picture([(one, OTHER) for one in found.regions], found.unit)


def _figures(group: Sequence[RegionCost]) -> tuple[str, str, str]:
    first = group[0]
    if first.error:
        return cost(group), "-", first.error
    if unchanged(first):
        return "-", "-", "left in float by the step itself"
    ratios = sorted(worth(one) for one in group)
    each = dict.fromkeys(_ratio(value / 100) for value in (ratios[0], ratios[-1]))
    return cost(group), gain(group), " to ".join(each)


def _ratio(value: float) -> str:
    if value == float("inf"):
        return "saves nothing"
    return "-" if value == float("-inf") else number(value)


def _whole(found: Sensitivity) -> str:
    unit = f" ({found.unit})" if found.unit else ""
    counted = count(len(found.regions), "region")
    told = {"node": counted.replace("region", "node"), "op": counted.replace("region", "operator")}
    kept = "kept from an earlier call" if found.kept else f"measured in {found.seconds:.0f} s"
    return (
        f"{told.get(found.by, counted)}, {kept}, on {count(found.samples, 'sample')}. All "
        f"together cost {number(found.whole_cost)}{unit}."
    )


def _ending(found: Sensitivity) -> list[Block]:
    made: list[Block] = []
    much = [one for one in found.shared if one.cost >= _MUCH * found.whole_cost > 0]
    if much:
        pairs = "; ".join(f"{one.one} and {one.two} {number(one.cost)}" for one in much[:_NAMED])
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
