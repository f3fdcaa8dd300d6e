"""The graph's part of a report: what the page's script draws, and the same as a table."""

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ortune.core import wording as say
from ortune.core.section import Block, Chart, GraphPair, Heading, Table, Text
from ortune.core.study import Study
from ortune.reporting.charts.style import colour, encode_rows
from ortune.reporting.graph.sides import Counterpart, Side, Sides, find_models

_KINDS = ("fused", "split", "replaced", "changed", "added", "removed")
"""Of a step what is called by its own name; others by the precision that they came to."""


def name_change(step: Counterpart) -> str:
    """Return what became of a step in a word or two; empty where it is as it was."""
    before, after = step.original.precision, step.winner.precision
    if step.kind in _KINDS:
        return step.kind
    if after and before != after:
        return f"to {after}"
    return "other type" if step.kind == "retyped" else ""


def count_changes(steps: Iterable[Counterpart]) -> str:
    """Return how many steps became what, the most first."""
    counts = Counter(filter(None, map(name_change, steps)))
    return ", ".join(f"{count} {word}" for word, count in counts.most_common())


def draw_graphs(sides: Sides) -> GraphPair:
    """Return both graphs, a row a step, under the regions that they are in."""
    regions: dict[str, dict[str, list[int]]] = {}
    for place, step in enumerate(sides.steps):
        region, member = _name_region(step)
        regions.setdefault(region, {}).setdefault(member, []).append(place)
    precisions = sorted(
        {side.precision for step in sides.steps for side in (step.original, step.winner)} - {""}
    )
    words = ["", *sorted({name_change(step) for step in sides.steps} - {""})]
    shown = {
        "timed": sides.is_timed,
        "words": words,
        "precisions": precisions,
        "regions": [
            [name, [[member, places] for member, places in members.items()]]
            for name, members in regions.items()
        ],
        "steps": [  # what became of each, both sides, why
            [
                words.index(name_change(step)),
                _encode_side(step.original, precisions, sides.is_timed),
                _encode_side(step.winner, precisions, sides.is_timed),
                "; ".join(step.changes),
            ]
            for step in sides.steps
        ],
    }
    rows = tuple(
        _make_row(name, [sides.steps[place] for places in members.values() for place in places])
        for name, members in regions.items()
    )
    columns = ("region", "nodes before", "after", "ms before", "ms after", "what became of them")
    return GraphPair(shown, Table(columns, rows))


def _name_region(step: Counterpart) -> tuple[str, str]:
    """Return the region of a step, repeated layers as one, and which of them it is in."""
    if not step.member:
        return step.region, ""
    parts = step.member.split(".")
    number = next((place for place, part in enumerate(parts) if part.isdigit()), len(parts) - 1)
    return ".".join([*parts[:number], "*"]), ".".join(parts[: number + 1])


def _encode_side(side: Side, precisions: Sequence[str], timed: bool) -> list[Any] | int:
    """Return names, operators, width, precision and what is read; 0 of a side without nodes."""
    if not side.nodes:
        return 0
    operators = " + ".join(side.operators)
    operators += f" + {side.conversions} Q/DQ/Cast" if side.conversions else ""
    width = (side.ms or 0.0) if timed else len(side.nodes) + side.conversions
    precision = precisions.index(side.precision) if side.precision else -1
    return [", ".join(side.nodes), operators, float(f"{width:.3g}"), precision, list(side.reads)]


def _make_row(name: str, steps: Sequence[Counterpart]) -> tuple[str, ...]:
    before, after = ([step.original for step in steps], [step.winner for step in steps])
    counts = (str(sum(len(s.nodes) + s.conversions for s in side)) for side in (before, after))
    return (name, *counts, *map(_sum_ms, (before, after)), count_changes(steps))


def _sum_ms(sides: Sequence[Side]) -> str:
    times_ms = [side.ms for side in sides if side.ms is not None]
    return say.format_milliseconds(sum(times_ms) * 1e6) if times_ms else "-"


def build_graph_blocks(study: Study, name: str, sides: Sides) -> Iterator[Block]:
    """Yield what changed in one of a study's models, both graphs, and how to open the winner."""
    width = "number of nodes, as no time was recorded"
    if sides.is_timed:
        width = "time in a run; a step without one runs in another's kernel, or not at all"
    yield Heading(f"The graph{f' of {name}' if name else ''}: original and winner")
    yield Text(
        f"{say.format_count(len(sides.steps), 'step')}: "
        f"{count_changes(sides.steps) or 'none changed'}. Colour is precision, width {width}."
    )
    if (added := sides.added_ms[1]) and sides.is_timed:
        yield Text(f"{added:.2g} ms more are in nodes that the winner's runtime added.")
    yield draw_graphs(sides)
    yield Text("Open the winner in Netron, whose page asks public hosts:")
    winner = find_models(study)[name][1]
    yield Text(f"pip install netron && netron {shlex.quote(str(winner))}", "code")


_MOST = 14
_COLOURS = {"original": "plain", "winner": "winner"}


def plot_layers(sides: Sides) -> Chart | None:
    """Return the layers that changed most as pairs of marks; None where nothing was timed."""
    if not sides.is_timed:
        return None
    ranked = sorted(sides.steps, key=lambda step: -abs(_change_ms(step)))
    steps = [step for step in ranked if _change_ms(step)][:_MOST]
    if not steps:
        return None
    named = [step.original if step.original.nodes else step.winner for step in steps]
    labels = [say.join_names(side.nodes, 1) for side in named]
    rows = [
        {"row": row, "side": side, "ms": ms, "label": label}
        for row, (step, label) in enumerate(zip(steps, labels, strict=True))
        for side, ms in zip(_COLOURS, _list_ms(step), strict=True)
    ]
    x = {"field": "ms", "type": "quantitative", "title": "ms a run", "scale": {"zero": True}}
    scale = {"domain": list(_COLOURS), "range": [colour(c) for c in _COLOURS.values()]}
    tip = [{"field": "label", "title": " "}, {"field": "side", "title": " "}]
    tip.append({"field": "ms", "title": "ms", "format": ".3~g"})
    y = encode_rows(labels)
    y["axis"]["labelPadding"] = 9  # marks at zero reach to the left
    line = {"type": "line", "strokeWidth": 3, "opacity": 0.35, "color": colour("ink")}
    point = {"type": "point", "filled": True, "size": 80, "opacity": 1}
    legend = {"title": None, "symbolType": "circle"}
    tone = {"field": "side", "type": "nominal", "scale": scale, "legend": legend}
    spec = {
        "description": "ms a run of the layers that changed most, in the original and the winner",
        "height": {"step": 22},
        "data": {"values": rows},
        "layer": [
            {"mark": line, "encoding": {"y": y, "x": x, "detail": {"field": "row"}}},
            {"mark": point, "encoding": {"y": y, "x": x, "color": tone, "tooltip": tip}},
        ],
    }
    cells = tuple(
        (label, *(f"{ms:.3g}" for ms in _list_ms(step)))
        for step, label in zip(steps, labels, strict=True)
    )
    return Chart(spec, Table(("layer", "original, ms", "winner, ms"), cells))


def _list_ms(step: Counterpart) -> tuple[float, float]:
    return step.original.ms or 0.0, step.winner.ms or 0.0


def _change_ms(step: Counterpart) -> float:
    before, after = _list_ms(step)
    return after - before
