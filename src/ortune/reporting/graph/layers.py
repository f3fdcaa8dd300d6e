"""The layers whose time changed most, before and after."""

from __future__ import annotations

from ortune.core.section import Chart, Table
from ortune.reporting.charts.style import colour, encode_rows
from ortune.reporting.graph.sides import Counterpart, Sides

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
    labels = [_name_layer(step) for step in steps]
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
    spec = {
        "description": "ms a run of the layers that changed most, in the original and the winner",
        "height": {"step": 22},
        "data": {"values": rows},
        "layer": [
            {
                "mark": {
                    "type": "line",
                    "strokeWidth": 3,
                    "opacity": 0.35,
                    "color": colour("ink"),
                },
                "encoding": {"y": y, "x": x, "detail": {"field": "row"}},
            },
            {
                "mark": {"type": "point", "filled": True, "size": 80, "opacity": 1},
                "encoding": {
                    "y": y,
                    "x": x,
                    "color": {
                        "field": "side",
                        "type": "nominal",
                        "scale": scale,
                        "legend": {"title": None, "symbolType": "circle"},
                    },
                    "tooltip": tip,
                },
            },
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


def _name_layer(step: Counterpart) -> str:
    side = step.original if step.original.nodes else step.winner
    return side.nodes[0] + (f" and {len(side.nodes) - 1} more" if len(side.nodes) > 1 else "")
