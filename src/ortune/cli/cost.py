"""Price inference, and say when a faster model pays back."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ortune.analysis.costs.requests import Cost
from ortune.cli.terminal.command import verb
from ortune.cli.terminal.output import answer, say, table

if TYPE_CHECKING:
    from ortune.analysis.costs.cost import Costs, PricedOption
    from ortune.analysis.costs.requests import Terms
    from ortune.core.trial import Interval


@verb(Cost)
def command(asked: Cost) -> None:
    """Show what every row costs, and the verdict."""
    from ortune.analysis.costs.cost import run

    found = run(asked)
    answer(_json(found), lambda: _show(found, bool(asked.gpus)))


def _json(found: Costs) -> Mapping[str, Any]:
    base = found.rows[0].figures.fps_machine
    return {
        "terms": {**vars(found.terms), "month_hours": found.terms.month_hours},
        "rows": [
            {
                **vars(row.option),
                "accuracy": row.option.accuracy or None,
                **vars(row.figures),
                "saving_per_month": row.saving_per_month,
                "break_even_months": row.months,
                "break_even_inferences": row.inferences,
                "devices": [
                    _device(row, count, base, found.terms) for count in found.terms.devices
                ],
            }
            for row in found.rows
        ],
        "one_time_cost": found.one_time_cost,
        "tuning_s": found.tuning_s,
        "verdict": found.verdict,
        "assumptions": found.assumptions,
    }


def _device(row: PricedOption, count: int, base: float, terms: Terms) -> Mapping[str, float]:
    """Return what `count` devices bring, linear in their number.

    Money is for the work that as many do of the first row's.
    """
    month = count * terms.price_per_hour * terms.month_hours
    return {
        "count": count,
        "fps": count * row.figures.fps_machine,
        "cost_per_month_at_equal_work": month * base / row.figures.fps_machine,
    }


def _show(found: Costs, gpus: bool) -> None:
    terms, machine = found.terms, "GPU" if gpus else "machine"
    loaded = terms.load_per_s is not None
    table(
        (
            "",
            "inference ms>",
            "total ms>",
            "FPS/process>",
            f"FPS/{machine}>",
            *((f"{machine}s>", "use>", "FPS, all>") if loaded else ()),
            "a million>",
            "1,000 FPS-h>",
            "a month>",
            "saved a month [99 %]>",
            "paid back, months>",
        ),
        [_line(row, terms, loaded, found.rows[0]) for row in found.rows],
    )
    if max(terms.devices) > 1:
        _show_devices(found)
    judged = found.verdict
    say(": ".join(filter(None, (judged.answer, judged.option, judged.why))))
    say(f"  rule: {judged.rule}")
    effort, tuning = terms.effort_cost, found.tuning_s / 3600 * terms.price_per_hour
    say(
        f"  one-time cost: {terms.money(found.one_time_cost)} = effort {terms.money(effort)} "
        f"+ {found.tuning_s:.0f} s of tuning {terms.money(tuning)}"
    )
    work = (
        f"at {terms.load_per_s:g} samples a second"
        if terms.load_per_s is not None
        else f"for the work that {terms.devices[0]} {machine} of the first row does"
    )
    say(f"  a month: {terms.month_hours:g} hours (30.4 days), {work}")
    for text in found.assumptions:
        say(f"  assumed: {text}")


def _line(row: PricedOption, terms: Terms, loaded: bool, first: PricedOption) -> Sequence[str]:
    got = row.figures
    return (
        row.option.name + (f" ({row.option.accuracy})" if row.option.accuracy == "likely" else ""),
        f"{row.option.inference_s * 1e3:.3f}",
        f"{got.total_s * 1e3:.3f}",
        f"{got.fps_process:.4g}",
        f"{got.fps_machine:.4g}",
        *(
            (f"{got.machines:g}", f"{100 * got.utilisation:.0f} %", f"{got.fps_all:.4g}")
            if loaded
            else ()
        ),
        terms.money(got.cost_per_million),
        terms.money(got.cost_per_1000_fps_hours),
        terms.money(got.cost_per_month),
        "" if row is first else _saving(row.saving_per_month, terms),
        "" if row is first else _back(row.months),
    )


def _saving(saved: Interval, terms: Terms) -> str:
    if math.isnan(saved.low):
        return terms.money(saved.value)
    low, high = f"{saved.low:,.2f}", f"{saved.high:,.2f}"
    return f"{terms.money(saved.value)} [{low}, {high}]"


def _back(months: Interval) -> str:
    if months.value == months.high == 0:
        return "at once"
    if math.isinf(months.value) or math.isnan(months.high):
        return _count(months.value)
    return f"{_count(months.value)} [{_count(months.low)}, {_count(months.high)}]"


def _count(months: float) -> str:
    if math.isinf(months):
        return "never"
    return "<0.01" if months < 0.01 else f"{months:.2g}" if months < 10 else f"{months:.0f}"


def _show_devices(found: Costs) -> None:
    terms = found.terms
    rows = []
    for count in terms.devices:
        cells = [str(count), terms.money(count * terms.price_per_hour * terms.month_hours)]
        for row in found.rows:
            fps = count * row.figures.fps_machine
            held = terms.load_per_s is None or fps >= terms.load_per_s
            cells.append(f"{fps:.4g}" + ("" if held else " (too few)"))
        rows.append(cells)
    names = [f"FPS: {row.option.name}>" for row in found.rows]
    table(("GPUs", "a month>", *names), rows)
