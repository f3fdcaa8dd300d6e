"""Regions in blocks: what each costs and saves alone, and what a search made of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from ortune.core.section import Block, Heading, Pill, Point, Scatter, Table, Text, Tile
from ortune.core.trial import Interval
from ortune.core.wording import format_count, join_names
from ortune.reporting.blocks import Part, summarize
from ortune.reporting.explanation.explain import GIVEN, KEPT, RegionExplanation, SurveyExplanation
from ortune.search.mixed_precision.survey import RegionCost, cost_per_time, is_unchanged

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
TIME_SAVED = "time saved by the profile, %"
LOW, FLOAT, OTHER = "best", "original", "other"
LEGEND = (
    (LOW, "at this precision in the winner"),
    (FLOAT, "in float in the winner"),
    (OTHER, "measured alone"),
)


def group_alike(rows: Sequence[T], alike: Callable[[T], Hashable]) -> list[list[T]]:
    """Return rows in groups of what is alike, in the order of their first."""
    groups: dict[Hashable, list[T]] = {}
    for row in rows:
        groups.setdefault(alike(row), []).append(row)
    return list(groups.values())


def name_regions(regions: Sequence[RegionCost]) -> str:
    """Name a region, or several alike by the first and their number."""
    more = f" and {format_count(len(regions) - 1, 'other')} like it" if len(regions) > 1 else ""
    return f"{regions[0].region}{more}"


def format_operators(region: RegionCost) -> str:
    """Write the operators of a region's layers: ``Conv``, ``3 MatMul, Softmax``."""
    counted = {op: region.ops.count(op) for op in dict.fromkeys(region.ops)}
    return ", ".join(f"{number} {op}" if number > 1 else op for op, number in counted.items())


def format_cost(regions: Sequence[RegionCost]) -> str:
    """Write what regions cost in accuracy: one with its interval, several from least to most."""
    values = sorted(region.accuracy_cost.value for region in regions)
    if len(regions) == 1 or math.isnan(sum(values)):
        interval = regions[0].accuracy_cost
        if math.isnan(interval.value):
            return "-"
        if not (math.isfinite(interval.low) and math.isfinite(interval.high)):
            return f"about {format_number(interval.value)}"
        low, high = format_number(interval.low), format_number(interval.high)
        return f"{format_number(interval.value)} [{low}, {high}]"
    return f"{format_number(values[0])} to {format_number(values[-1])}"


def format_gain(regions: Sequence[RegionCost]) -> str:
    """Write what each of some regions saves by its part of the profile, and its part: the most.

    Both in % of the original's latency. It is no interval: nothing was measured of it.
    """
    gained = regions[0].time_gained
    if math.isnan(gained.value):
        return "-"
    most = f", at most {format_number(100 * gained.high)}" if gained.high > gained.value else ""
    return f"about {format_number(100 * gained.value)}{most}" if gained.value or most else "0"


def format_number(value: float) -> str:
    """Write a signed figure with three significant digits, zero as ``0``."""
    return f"{value:.3g}" if value else "0"


def draw_regions(points: Sequence[tuple[RegionCost, str]], unit: str) -> Scatter:
    """Draw what each region costs against what it saves, each with its tone."""
    drawable = [(region, tone) for region, tone in points if is_drawable(region)]
    # How many letters all names begin with, up to the last part of a path.
    names = [region.region for region, _ in drawable]
    shared = "" if len(names) < 2 else min(names)
    while shared and not all(name.startswith(shared) for name in names):
        shared = shared[:-1]
    start = max(shared.rfind("/"), shared.rfind(".")) + 1
    # The places of the costliest regions, then of those that save most.
    regions = [region for region, _ in drawable]
    places = range(len(regions))
    costly = sorted(places, key=lambda at: -regions[at].accuracy_cost.value)[:_MARKED]
    saving = sorted(places, key=lambda at: -regions[at].time_gained.value)[: _MARKED // 2]
    return Scatter(
        "time saved alone, by the profile, % of the original",
        f"accuracy cost alone: {unit or 'loss of the metric'}",
        tuple(
            Point(
                100 * region.time_gained.value,
                region.accuracy_cost.value,
                region.region[start:],
                tone,
                y_span=_find_finite_ends(region.accuracy_cost),
            )
            for region, tone in drawable
        ),
        legend=LEGEND,
        named=tuple(dict.fromkeys((*costly, *saving))),
    )


def is_drawable(region: RegionCost) -> bool:
    """Whether a region has a place in the picture."""
    return not region.error and all(
        math.isfinite(interval.value) for interval in (region.accuracy_cost, region.time_gained)
    )


def _find_finite_ends(interval: Interval) -> tuple[float, float] | None:
    ends = (interval.low, interval.high)
    return ends if all(map(math.isfinite, ends)) and ends[0] < ends[1] else None


def build_survey_blocks(
    region_survey: SurveyExplanation, *, folds: bool = False, show_all: bool = True
) -> Iterator[Block]:
    """Yield a survey's blocks: what it says, the picture, a row each (on demand if it `folds`)."""
    yield Heading(f"Precision by region: {region_survey.label}")
    if region_survey.error:
        yield Text(f"Not measured: {region_survey.error}.", "warn")
        return
    failed = sum(bool(entry.cost.error) for entry in region_survey.regions)
    count = format_count(len(region_survey.regions), "region")
    summary = f"{count} tried in {region_survey.precision}, one at a time"
    summary += f" in {region_survey.seconds:.0f} s" if region_survey.seconds >= 1 else ""
    summary += f", {failed} could not be measured" if failed else ""
    unit = f" ({region_survey.unit})" if region_survey.unit else ""
    single = sum(
        entry.cost.accuracy_cost.value for entry in region_survey.regions if not entry.cost.error
    )
    summary += f". All of them together cost {format_number(region_survey.whole_cost)}{unit}"
    yield Text(f"{summary}; one by one they add up to {format_number(single)}.")
    points = [(entry.cost, _select_tone(entry)) for entry in region_survey.regions]
    if sum(is_drawable(region) for region, _ in points) > 1:
        yield draw_regions(points, region_survey.unit)
    if folds:
        yield Heading("Every region", folded=True)
    # Regions of a pattern stand in a row where the same became of them; failed ones by reason.
    groups = group_alike(
        region_survey.regions, lambda entry: (entry.cost.pattern, entry.winner, entry.became)
    )
    groups.sort(key=lambda group: cost_per_time(group[0].cost), reverse=True)
    shown = groups if show_all else groups[:_SHOWN]
    yield Table(
        ("region", "layers", "accuracy cost", TIME_SAVED, "in the winner", "result"),
        tuple(_make_row(group) for group in shown),
        tuple("lose" if group[0].cost.error else "" for group in shown),
    )
    if len(shown) < len(groups):
        yield Text(f"{format_count(len(groups) - len(shown), 'more row')}; -v shows all.")


def _select_tone(entry: RegionExplanation) -> str:
    kinds = {KEPT: LOW, GIVEN: FLOAT}
    return next((tone for word, tone in kinds.items() if entry.became.startswith(word)), OTHER)


def _make_row(group: Sequence[RegionExplanation]) -> tuple[str, ...]:
    regions, first = [entry.cost for entry in group], group[0]
    measured = not first.cost.error
    return (
        name_regions(regions),
        format_operators(first.cost),
        format_cost(regions) if measured else "-",
        format_gain(regions) if measured else "-",
        first.winner or "-",
        first.became,
    )


# --- sensitivity --------------------------------------------------------------------------------


def build_sensitivity_parts(
    sensitivity: Sensitivity, *, show_all: bool = False
) -> tuple[Part, ...]:
    """Return the table, what follows from it and the picture; `show_all`: a row a region."""
    title = f"{sensitivity.precision} by {sensitivity.by}, on {sensitivity.on}"
    unit = f" ({sensitivity.unit})" if sensitivity.unit else ""
    counted = format_count(len(sensitivity.regions), "region")
    labels = {
        "node": counted.replace("region", "node"),
        "op": counted.replace("region", "operator"),
    }
    kept = "from the cache" if sensitivity.kept else f"measured in {sensitivity.seconds:.0f} s"
    count = format_count(sensitivity.samples, "sample")
    total = f"All together cost {format_number(sensitivity.whole_cost)}{unit}."
    summary = f"{labels.get(sensitivity.by, counted)}, {kept}, on {count}. {total}"
    blocks: list[Block] = [Heading(title), Text(summary)]
    if sum(map(is_drawable, sensitivity.regions)) > 1:
        blocks.append(draw_sensitivity(sensitivity))
    groups = [[region] for region in sensitivity.regions]
    if not show_all:
        groups = group_alike(sensitivity.regions, lambda region: (region.pattern, region.error))
    shown = groups if show_all else groups[:_SHOWN]
    nodes = sensitivity.by != "node"
    head = (sensitivity.by, "layers", *(("nodes",) if nodes else ()), "accuracy cost", TIME_SAVED)
    rows = tuple(
        (
            name_regions(group),
            format_operators(group[0]),
            *((str(len(group[0].nodes)),) if nodes else ()),
            *_format_figures(group),
        )
        for group in shown
    )
    marks = tuple("lose" if group[0].error else "" for group in shown)
    blocks.append(Table((*head, "cost per 1 % saved"), rows, marks))
    if more := len(groups) - len(shown):
        blocks.append(Text(f"{format_count(more, 'row')} more; -v shows all."))
    much = [pair for pair in sensitivity.shared if pair.cost >= _MUCH * sensitivity.whole_cost > 0]
    if much:
        pairs = "; ".join(
            f"{pair.one} and {pair.two} {format_number(pair.cost)}" for pair in much[:_NAMED]
        )
        text = (
            f"Neighbours that share a loss: {pairs}. Leaving only one of the two in float does "
            "not win it back."
        )
        blocks.append(Text(text))
    if sensitivity.not_reached:
        names = join_names(sensitivity.not_reached, _NAMED)
        text = f"Not measured, out of time: {names}. Give more --time."
        blocks.append(Text(text, "warn"))
    return (Part("sensitivity", tuple(blocks)),)


def summarize_sensitivity(sensitivity: Sensitivity) -> Part:
    """Return what regions cost at a glance."""
    measured = [region for region in sensitivity.regions if not region.error]
    worst = max(measured, key=lambda region: region.accuracy_cost.value, default=None)
    unit = sensitivity.unit
    pills = [Pill(f"all in {sensitivity.precision} lose {sensitivity.whole_cost:.3g} ({unit})")]
    if sensitivity.finished != "done":
        pills.append(Pill(f"{len(sensitivity.not_reached)} not reached in time", "warn"))
    tiles = [
        Tile("all together cost", f"{sensitivity.whole_cost:.3g}", unit),
        Tile("measured", str(len(measured)), f"{sensitivity.by}s", f"on {sensitivity.on}"),
        Tile("samples", f"{sensitivity.samples:,}", sensitivity.budget),
    ]
    if worst is not None:
        figure = f"{worst.accuracy_cost.value:.3g}"
        tiles.insert(1, Tile("most costly region", figure, unit, worst.region))
    return summarize(pills, tiles)


def draw_sensitivity(sensitivity: Sensitivity) -> Scatter:
    """Draw what each region costs against what it saves."""
    return draw_regions([(region, OTHER) for region in sensitivity.regions], sensitivity.unit)


def _format_figures(group: Sequence[RegionCost]) -> tuple[str, str, str]:
    first = group[0]
    if first.error:
        return format_cost(group), "-", first.error
    if is_unchanged(first):
        return "-", "-", "not changed by the step"
    ratios = sorted(cost_per_time(region) for region in group)
    each = dict.fromkeys(_format_ratio(value / 100) for value in (ratios[0], ratios[-1]))
    return format_cost(group), format_gain(group), " to ".join(each)


def _format_ratio(value: float) -> str:
    if value == float("inf"):
        return "saves nothing"
    return "-" if value == float("-inf") else format_number(value)
