"""Colours and tones of charts, and the parts that specifications share."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

Spec: TypeAlias = dict[str, Any]
"""A Vega-Lite specification, or a part of one."""

LIGHT: Mapping[str, str] = {
    "ink": "#1a1f29",
    "soft": "#5b6472",
    "line": "#dde1e7",
    "card": "#ffffff",
    "winner": "#0b8a4f",
    "confirmed": "#1d4fa8",
    "once": "#4a90d9",
    "rough": "#a9cdf0",
    "fails": "#d1483f",
    "plain": "#6d7482",
    "s0": "#2457d6",
    "s1": "#c2570c",
    "s2": "#0b7a6f",
    "s3": "#a3308f",
    "s4": "#8a7000",
    "s5": "#5b6472",
    "s6": "#0b6fa4",
    "s7": "#8c3b3b",
}
"""Colour by name, on white; a page has the same names as variables of its style."""

TONES: Mapping[str, str] = {
    "win": "winner",
    "": "confirmed",
    "other": "confirmed",
    "open": "once",
    "final": "confirmed",
    "timed": "once",
    "screen": "rough",
    "rough": "rough",
    "lose": "fails",
    "original": "plain",
    "roof": "ink",
}
"""What a mark stands for -> the name of its colour, the same on every chart."""

SERIES = 8
"""Colours of series: s0, s1, ...; then they come round."""
_LONGEST = 44


def colour(name: str) -> str:
    """Return a colour of the page's style."""
    return f"var(--{name})"


def encode_tones(legend: Sequence[tuple[str, str]], shown: Iterable[str]) -> Spec:
    """Return the colour of the field ``tone``, with a legend of the tones that are there."""
    names = dict(legend)
    present = set(shown)
    tones = [tone for tone in names if tone in present]
    tones += [tone for tone in sorted(present) if tone not in names]
    unknown = [tone for tone in names if tone not in TONES]
    series = {tone: f"s{place % SERIES}" for place, tone in enumerate(unknown)}
    colours = [colour(TONES.get(tone) or series.get(tone, "s0")) for tone in tones]
    labels = [names.get(tone, "") for tone in tones]
    key: Spec | None = None
    if any(labels):
        switch = " : ".join(
            f"datum.label === {quote_text(tone)} ? {quote_text(names[tone])}"
            for tone in tones
            if tone in names
        )
        key = {
            "title": None,
            "symbolType": "circle",
            "values": [tone for tone in tones if names.get(tone)],
            "labelExpr": f"{switch} : datum.label",
        }
    return {"field": "tone", "scale": {"domain": tones, "range": colours}, "legend": key}


def quote_text(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", " ")
    return f"'{escaped}'"


def shorten_label(label: str) -> str:
    first = label.splitlines()[0] if label else ""
    return first if len(first) <= _LONGEST else f"{first[: _LONGEST - 1]}…"


def list_texts(texts: Sequence[str]) -> str:
    """Return labels as a list in an expression."""
    return f"[{', '.join(quote_text(shorten_label(text)) for text in texts)}]"


def make_quantity(field: str, title: str, *, log: bool = False, **scale: Any) -> Spec:
    """Return the encoding of a number along an axis."""
    kind = "log" if log else "linear"
    return {
        "field": field,
        "type": "quantitative",
        "title": title,
        "scale": {"type": kind, "nice": False, "zero": False, **scale},
    }


def encode_rows(labels: Sequence[str]) -> Spec:
    """Return the encoding of the field ``row``, a row each, named by its label."""
    names = f"{list_texts(labels)}[datum.value]"
    axis = {"labelExpr": names, "domain": False, "ticks": False}
    return {"field": "row", "type": "ordinal", "title": None, "axis": axis}


def make_tip(
    fields: Iterable[tuple[str, str]], numbers: Iterable[tuple[str, str]] = ()
) -> list[Spec]:
    """Return what a tool tip shows: fields of text, then of numbers, each with its title."""
    return [
        *({"field": field, "title": title} for field, title in fields),
        *({"field": field, "title": title, "format": ".4~g"} for field, title in numbers),
    ]


def fit_axis(values: Sequence[tuple[float, str]], *, log: bool = False) -> tuple[float, float]:
    """Return ends of an axis: of what counts, and of what lost within one more range of that."""
    usable = [(v, tone) for v, tone in values if math.isfinite(v) and (v > 0 or not log)]
    if log:
        low, high = fit_axis([(math.log10(v), tone) for v, tone in usable] or [(0.0, "")])
        return 10.0**low, 10.0**high
    usable = usable or [(0.0, "")]
    kept = [v for v, tone in usable if tone != "lose"] or [v for v, _ in usable]
    low, high = min(kept), max(kept)
    room = (high - low) or max((abs(v - low) for v, _ in usable), default=0.0)
    near = [v for v, _ in usable if low - room <= v <= high + room]
    low, high = min(near), max(near)
    pad = 0.1 * (high - low) or 0.05 * abs(high) or 1.0
    return low - pad, high + pad
