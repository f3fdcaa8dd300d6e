"""Price inference, and say when a faster model pays back."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ortune.analysis.costs.requests import Cost, format_money_amount
from ortune.cli.terminal.command import make_command
from ortune.cli.terminal.output import print_parts, print_result, print_table, print_text
from ortune.cli.terminal.page import PageOptions, require_page, save_result_page
from ortune.core import wording
from ortune.core.request import request
from ortune.reporting.python.requests import TimelinePage

if TYPE_CHECKING:
    from ortune.analysis.costs.cost import Costs, PricedOption
    from ortune.analysis.costs.requests import Terms
    from ortune.analysis.costs.timeline import Timeline
    from ortune.core.fields import Out
    from ortune.core.trial import Interval


@request
class _Options(PageOptions, Cost):
    """Options of the command line."""


@make_command(_Options, {"timeline": TimelinePage})
def command(options: _Options | TimelinePage) -> None:
    """Show what every row costs and the verdict, or what a model costs over its life."""
    if isinstance(options, TimelinePage):
        from ortune.reporting.python import timeline

        result = timeline.run(options)
        print_result(
            _serialize_timeline(result, options.out),
            lambda: print_parts([timeline.build_timeline_part(result)]),
        )
        return
    from ortune.analysis.costs.cost import run

    require_page(options)
    costs = run(options)
    save_result_page(options, costs)
    base = costs.rows[0].figures.fps_machine
    serialized = {
        "terms": {**vars(costs.terms), "month_hours": costs.terms.month_hours},
        "rows": [
            {
                **vars(row.option),
                "accuracy": row.option.accuracy or None,
                **vars(row.figures),
                "saving_per_month": row.saving_per_month,
                "break_even_months": row.months,
                "break_even_inferences": row.inferences,
                "devices": [
                    _scale_to_devices(row, count, base, costs.terms)
                    for count in costs.terms.devices
                ],
            }
            for row in costs.rows
        ],
        "one_time_cost": costs.one_time_cost,
        "tuning_s": costs.tuning_s,
        "verdict": costs.verdict,
        "assumptions": costs.assumptions,
    }
    print_result(serialized, lambda: _print_costs(costs, bool(options.gpus)))


def _scale_to_devices(
    row: PricedOption, count: int, base: float, terms: Terms
) -> Mapping[str, float]:
    """Return what `count` devices bring; money is for as many times the first row's work."""
    month = count * terms.price_per_hour * terms.month_hours
    return {
        "count": count,
        "fps": count * row.figures.fps_machine,
        "cost_per_month_at_equal_work": month * base / row.figures.fps_machine,
    }


def _print_costs(costs: Costs, gpus: bool) -> None:
    terms, machine = costs.terms, "GPU" if gpus else "machine"
    loaded, money = terms.load_per_s is not None, terms.currency or "cost"
    print_table(
        (
            "",
            "inference ms>",
            "total ms>",
            "FPS/process>",
            f"FPS/{machine}>",
            *((f"{machine}s>", "use>", "FPS, all>") if loaded else ()),
            f"{money} per million>",
            f"{money} per 1,000 FPS-h>",
            f"{money} per month>",
            "saved per month, 99 %>",
            "paid back, months>",
        ),
        [_make_option_cells(row, terms, loaded, costs.rows[0]) for row in costs.rows],
    )
    if max(terms.devices) > 1:
        rows = []
        for count in terms.devices:
            cells = [
                str(count),
                terms.format_money(count * terms.price_per_hour * terms.month_hours),
            ]
            for row in costs.rows:
                fps = count * row.figures.fps_machine
                sufficient = terms.load_per_s is None or fps >= terms.load_per_s
                cells.append(wording.format_rate(fps) + ("" if sufficient else " (too few)"))
            rows.append(cells)
        names = [f"FPS: {row.option.name}>" for row in costs.rows]
        print_table(("GPUs", f"{terms.currency or 'cost'} per month>", *names), rows)
    judged = costs.verdict
    print_text(": ".join(filter(None, (judged.answer, judged.option, judged.why))))
    print_text(f"  rule: {judged.rule}")
    effort, tuning = terms.effort_cost, costs.tuning_s / 3600 * terms.price_per_hour
    print_text(
        f"  one-time cost: {terms.format_money(costs.one_time_cost)} = effort "
        f"{terms.format_money(effort)} "
        f"+ {costs.tuning_s:.0f} s of tuning {terms.format_money(tuning)}"
    )
    work = (
        f"at {terms.load_per_s:g} samples per second"
        if terms.load_per_s is not None
        else f"for the throughput of {terms.devices[0]} {machine} running the first row"
    )
    print_text(f"  per month: {terms.month_hours:g} hours (30.4 days), {work}")
    for text in costs.assumptions:
        print_text(f"  assumed: {text}")


def _make_option_cells(
    row: PricedOption, terms: Terms, loaded: bool, first: PricedOption
) -> Sequence[str]:
    figures = row.figures
    return (
        row.option.name
        + f" ({row.option.accuracy})" * (row.option.accuracy not in ("", "proved")),
        f"{row.option.inference_s * 1e3:.3f}",
        f"{figures.total_s * 1e3:.3f}",
        wording.format_rate(figures.fps_process),
        wording.format_rate(figures.fps_machine),
        *(
            (
                f"{figures.machines:g}",
                f"{100 * figures.utilisation:.0f} %",
                wording.format_rate(figures.fps_all),
            )
            if loaded
            else ()
        ),
        format_money_amount(figures.cost_per_million),
        format_money_amount(figures.cost_per_1000_fps_hours),
        format_money_amount(figures.cost_per_month),
        "" if row is first else _format_saving(row.saving_per_month, terms),
        "" if row is first else _format_break_even(row.months),
    )


def _format_saving(saved: Interval, terms: Terms) -> str:
    if math.isnan(saved.low):
        return terms.format_money(saved.value)
    low, high = format_money_amount(saved.low), format_money_amount(saved.high)
    return f"{terms.format_money(saved.value)} [{low}, {high}]"


def _format_break_even(months: Interval) -> str:
    if months.value == months.high == 0:
        return "at once"
    if math.isinf(months.value) or math.isnan(months.high):
        return _format_months(months.value)
    return (
        f"{_format_months(months.value)} [{_format_months(months.low)}, "
        f"{_format_months(months.high)}]"
    )


def _format_months(months: float) -> str:
    if math.isinf(months):
        return "never"
    return "<0.01" if months < 0.01 else f"{months:.2g}" if months < 10 else f"{months:.0f}"


def _serialize_timeline(timeline: Timeline, out: Out) -> Mapping[str, Any]:
    from ortune.analysis.costs.timeline import find_break_even

    return {
        "model": timeline.model,
        "page": out,
        "quantizer": timeline.quantizer or None,
        "inferences_per_session": timeline.per_session,
        "import_ns": timeline.import_ns,
        "lines": timeline.lines,
        "measured": [
            {
                "name": row.line.name,
                "load_ns": row.load_ns,
                "first_ns": row.first_ns,
                "against": row.against or None,
                "ratio": row.ratio,
                "equal": row.equal,
                "session_equal": row.session_equal,
                "size": row.size,
            }
            for row in timeline.rows
        ],
        "break_even": [
            {
                "from": old.name,
                "to": new.name,
                "inferences": find_break_even(old, new, timeline.per_session),
            }
            for old in timeline.lines
            for new in timeline.lines
            if new is not old
        ],
        "cheapest": timeline.cheapest,
        "notes": timeline.notes,
        "machine": timeline.machine,
        "versions": timeline.versions,
    }
