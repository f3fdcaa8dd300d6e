"""What inference costs, what a faster model saves, and when the work on it is paid back."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ortune.cli import shared

if TYPE_CHECKING:
    from ortune.analysis.costs.cost import Costs, PricedOption
    from ortune.analysis.costs.terms import Terms
    from ortune.core.trial import Interval


@shared.verb(shared.Verb)
@click.argument("sources", metavar="RUN...", type=shared.FILE, nargs=-1, required=True)
@click.option("--price", metavar="P/h", required=True, help='Of a machine, or of a GPU: "2.50/h".')
@click.option("--load", metavar="N/s", default="", help="Samples that must be served: 150/s.")
@click.option("--overhead", metavar="TIME", default="", help="Of a run, outside the model: 20ms.")
@click.option(
    "--processes", type=int, default=1, show_default=True, help="At work on one machine."
)
@click.option("--gpus", metavar="N|N-M", default="", help="Numbers of GPUs to show: 1-8.")
@click.option("--effort", metavar="H@P", default="", help="Work the change takes: 4h@80/h.")
@click.option(
    "--hours-per-day",
    type=float,
    default=24.0,
    show_default=True,
    help="Hours that machines are paid for; a month has 30.4 days.",
)
@click.option(
    "--within",
    type=float,
    default=6.0,
    show_default=True,
    metavar="MONTHS",
    help='Latest return of the money for the verdict "do it".',
)
@click.option("--measure", is_flag=True, help="Time that many processes at once, on this machine.")
def command(
    sources: tuple[Path, ...],
    price: str,
    load: str,
    overhead: str,
    processes: int,
    gpus: str,
    effort: str,
    hours_per_day: float,
    within: float,
    measure: bool,
    json_to: str | None,
    verbose: bool,
) -> int:
    """Price what RUN measured: an `optimize -o` folder, or a file of `bench --json`.

    The first row is what is paid today. Money is in the price's own unit.

    \b
    Example:
      ortune cost RUN --price 2.50/h --overhead 20ms --processes 6 --effort 4h@80/h
      ortune cost bench.json --price "2.50 EUR/h" --load 150/s
    """
    from ortune.analysis.costs.pricing import cost
    from ortune.cli.terminal import progress

    found = cost(
        sources,
        price,
        load=load,
        overhead=overhead,
        processes=processes,
        gpus=gpus,
        effort=effort,
        hours_per_day=hours_per_day,
        within_months=within,
        measure=measure,
        sink=progress.lines(verbose),
    )
    shared.answer(json_to, answer(found), lambda: _show(found, bool(gpus)))
    return 0


def answer(found: Costs) -> Mapping[str, Any]:
    """Return the JSON object."""
    base = found.rows[0].figures.fps_machine
    return {
        "terms": {**vars(found.terms), "month_hours": found.terms.month_hours},
        "rows": [
            {
                "name": row.option.name,
                "inference_s": row.option.inference_s,
                "ratio": row.option.ratio,
                "samples": row.option.samples,
                "slowdown": row.option.slowdown,
                "accuracy": row.option.accuracy or None,
                "confirmed": row.option.confirmed,
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
    shared.table(
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
    shared.say(": ".join(filter(None, (judged.answer, judged.option, judged.why))))
    shared.say(f"  rule: {judged.rule}")
    effort, tuning = terms.effort_cost, found.tuning_s / 3600 * terms.price_per_hour
    shared.say(
        f"  one-time cost: {terms.money(found.one_time_cost)} = effort {terms.money(effort)} "
        f"+ {found.tuning_s:.0f} s of tuning {terms.money(tuning)}"
    )
    work = (
        f"at {terms.load_per_s:g} samples a second"
        if terms.load_per_s is not None
        else f"for the work that {terms.devices[0]} {machine} of the first row does"
    )
    shared.say(f"  a month: {terms.month_hours:g} hours (30.4 days), {work}")
    for text in found.assumptions:
        shared.say(f"  assumed: {text}")


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
    shared.table(("GPUs", "a month>", *names), rows)
