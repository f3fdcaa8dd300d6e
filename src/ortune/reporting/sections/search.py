"""The search over time: what it tried and for how long, and what was left."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from ortune.core import wording as say
from ortune.core.acceptance import Outcome
from ortune.core.section import Block, Chart, Heading, Section, Table, Text
from ortune.core.study import Study
from ortune.core.trial import Trial
from ortune.reporting.charts.style import TONES, colour
from ortune.reporting.sections.common.plans import PLAN_LEGEND, select_tone

_UNTRIED = 5


@dataclass(frozen=True)
class SearchSection(Section):
    """Every trial as a bar from its start to its end; the best that was left as hollow bars."""

    order: ClassVar[int] = 8

    def blocks(self, study: Study) -> Iterable[Block]:
        if len(study.trials) < 2:
            return
        ends, rows = {"": 0.0}, []  # device -> when its last trial ended
        for trial in study.trials:
            begin = ends.get(trial.device, ends[""]) if trial.device else max(ends.values())
            rows.append(_make_row(study, trial, begin))
            end = begin + trial.seconds
            ends = {**ends, trial.device: end} if trial.device else {"": end}
        spent = max(ends.values())
        hopeful = sorted(
            (plan for plan in study.ending.left_out if plan.speedup and plan.seconds),
            key=lambda plan: -(plan.speedup.value if plan.speedup else 0.0) * (plan.chance or 0),
        )[:_UNTRIED]
        for plan in hopeful:
            assert plan.speedup is not None and plan.seconds is not None
            rows.append(
                {
                    "plan": plan.label or plan.plan,
                    "start": spent,
                    "end": spent + plan.seconds,
                    "tone": "untried",
                    "speed-up": f"expected {plan.speedup.value:.2g}x",
                    "why": plan.why,
                }
            )
        yield Heading("The search over time")
        cells = tuple(
            (r["plan"], f"{r['start']:.0f}", f"{r['end']:.0f}", r["speed-up"], r["why"])
            for r in rows
        )
        heads = ("plan", "from, s", "to, s", "speed-up", "why")
        yield Chart(_draw_bars(rows), Table(heads, cells))
        untried = study.counts[Outcome.UNTRIED]
        if hopeful:
            yield Text(
                f"Hollow: the most promising of {say.format_count(untried, 'plan')} that were not "
                "tried, as long as they were expected to take."
            )


def _make_row(study: Study, trial: Trial, start: float) -> dict[str, Any]:
    speed = study.speedup(trial)
    return {
        "plan": study.label(trial.plan),
        "start": start,
        "end": start + trial.seconds,
        "tone": select_tone(study, trial),
        "speed-up": say.format_speedup(speed) if math.isfinite(speed.value) else "",
        "why": say.explain_outcome(trial) if trial.key != study.baseline.key else "",
    }


def _draw_bars(rows: list[dict[str, Any]]) -> dict[str, Any]:
    names = dict(PLAN_LEGEND)
    tones = [tone for tone in names if any(row["tone"] == tone for row in rows)]
    values = [{**row, "kind": names.get(row["tone"], "")} for row in rows]
    colours = [colour(TONES.get(tone, "soft")) for tone in tones]
    scale = {"domain": [names[tone] for tone in tones], "range": colours}
    y = {"field": "plan", "type": "nominal", "sort": None, "title": None}
    encoding = {
        "y": {**y, "axis": {"domain": False, "ticks": False}},
        "x": {"field": "start", "type": "quantitative", "title": "seconds of the search"},
        "x2": {"field": "end"},
        "tooltip": [{"field": name} for name in ("plan", "speed-up", "why")],
    }
    is_tried, is_untried = "datum.tone !== 'untried'", "datum.tone === 'untried'"
    bar = {"type": "bar", "cornerRadius": 2, "height": {"band": 0.65}}
    legend = {"title": None, "symbolType": "square"}
    tone = {"field": "kind", "type": "nominal", "scale": scale, "legend": legend}
    return {
        "description": "trials of the search, from start to end",
        "height": {"step": 22},
        "data": {"values": values},
        "encoding": encoding,
        "layer": [
            {"transform": [{"filter": is_tried}], "mark": bar, "encoding": {"color": tone}},
            {
                "transform": [{"filter": is_untried}],
                "mark": {**bar, "filled": False, "stroke": colour("soft"), "strokeDash": [3, 3]},
            },
        ],
    }
