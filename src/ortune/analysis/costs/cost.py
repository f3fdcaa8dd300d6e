"""What inference costs: pure arithmetic over measured latencies and given prices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias

from ortune.analysis.costs.requests import (
    MONTH_DAYS,
    Cost,
    Terms,
    read_devices,
    read_effort,
    read_load,
    read_overhead,
    read_price,
)
from ortune.analysis.costs.sources import ServingOption, joined, read
from ortune.core.fields import paths
from ortune.core.request import verb
from ortune.core.result import TableResult
from ortune.core.trial import Interval

CONSIDER_MONTHS = 24.0
"""Latest return of the money, at the estimate, that is worth a thought."""

Answer: TypeAlias = Literal["do it", "consider", "stay"]


@dataclass(frozen=True)
class Figures:
    """What one option brings and costs under the terms.

    Attributes:
        total_s: One run with its overhead.
        fps_process: Samples a second of one process.
        fps_machine: Of all processes of one machine.
        machines: Paid for: whole ones under a load, else the share of a machine that does the
            first option's work.
        processes: That many do the work.
        fps_all: Samples a second of these machines.
        utilisation: Share of what they could do that is asked for.
        cost_per_million: Money for a million samples on a machine that is always busy.
        cost_per_1000_fps_hours: Money for 1,000 samples a second over an hour, likewise.
        cost_per_month: Money for the machines.
    """

    total_s: float
    fps_process: float
    fps_machine: float
    machines: float
    processes: int
    fps_all: float
    utilisation: float
    cost_per_million: float
    cost_per_1000_fps_hours: float
    cost_per_month: float


@dataclass(frozen=True)
class PricedOption:
    """An option with its figures and what it saves against the first.

    Attributes:
        saving_per_month: Money; the interval follows from the ratio's, and is NaN without one.
        months: Until the one-time cost is earned back; infinite when it never is.
        inferences: Samples until then, on machines that are always busy.
    """

    option: ServingOption
    figures: Figures
    saving_per_month: Interval
    months: Interval
    inferences: float


@dataclass(frozen=True)
class Recommendation:
    """The answer, what it speaks of, and the rule that gave it."""

    answer: Answer
    option: str
    why: str
    rule: str

    def __str__(self) -> str:
        return f"{self.answer} ({self.option or 'nothing'}): {self.why}"


@dataclass(frozen=True, repr=False)
class Costs(TableResult):
    """One table and what follows from it.

    Attributes:
        rows: The first is what is paid today.
        one_time_cost: Effort and the tuning machine's time.
        tuning_s: Seconds of that machine.
        assumptions: What was not measured, in sentences.
    """

    headline = ("verdict", "one_time_cost", "tuning_s")

    terms: Terms
    rows: tuple[PricedOption, ...]
    one_time_cost: float
    tuning_s: float
    verdict: Recommendation
    assumptions: tuple[str, ...] = ()


def figures(option: ServingOption, terms: Terms, work_per_s: float, *, whole: bool) -> Figures:
    """Return what an option brings and costs.

    total = inference + overhead; FPS of a process = samples / total, of a machine =
    processes * that; cost of 1,000 FPS-hours = price / FPS * 1000, of a million = price / 3600 /
    FPS * 10^6; machines = work / FPS, rounded up when `whole`; month = machines * price * hours.

    Args:
        work_per_s: Samples a second that must be done.
        whole: Only whole machines can be paid for.
    """
    total = option.inference_s + terms.overhead_s
    process = option.samples / total
    machine = terms.processes * process
    share = work_per_s / machine
    machines = float(_whole(share)) if whole else share
    return Figures(
        total_s=total,
        fps_process=process,
        fps_machine=machine,
        machines=machines,
        processes=_whole(work_per_s / process),
        fps_all=machines * machine,
        utilisation=share / machines,
        cost_per_million=terms.price_per_hour / 3600 / machine * 1e6,
        cost_per_1000_fps_hours=terms.price_per_hour / machine * 1000,
        cost_per_month=machines * terms.price_per_hour * terms.month_hours,
    )


def _whole(count: float) -> int:
    """Round up, 1 at least; what is above a whole number by rounding alone is that number."""
    return max(1, math.ceil(count - 1e-9))


def work(first: ServingOption, terms: Terms) -> float:
    """Return the samples a second to compare at: the load, or what the first option does now."""
    if terms.load_per_s is not None:
        return terms.load_per_s
    return terms.devices[0] * figures(first, terms, 1.0, whole=False).fps_machine


def months(one_time: float, saving_per_month: float) -> float:
    """Return one-time cost / saving a month: 0 for no cost, infinite for no saving."""
    if saving_per_month <= 0:
        return math.inf
    return one_time / saving_per_month


def _priced(
    option: ServingOption, first: ServingOption, terms: Terms, one_time: float
) -> PricedOption:
    """Put an option beside the first.

    The saving's interval holds the first option's latency and moves this one's to the ends of the
    ratio's interval. Break-even in samples = one-time cost / difference of the costs a sample.
    """
    asked, whole = work(first, terms), terms.load_per_s is not None
    base = figures(first, terms, asked, whole=whole)
    mine = figures(option, terms, asked, whole=whole)

    def saving(inference_s: float) -> float:
        at = figures(replace(option, inference_s=inference_s), terms, asked, whole=whole)
        return base.cost_per_month - at.cost_per_month

    saved = Interval(saving(option.inference_s), math.nan, math.nan)
    back = Interval(months(one_time, saved.value), math.nan, math.nan)
    if ratio := option.ratio:
        low, high = (saving(option.inference_s * r / ratio.value) for r in (ratio.high, ratio.low))
        saved = replace(saved, low=low, high=high)
        back = replace(back, low=months(one_time, high), high=months(one_time, low))
    a_sample = (base.cost_per_million - mine.cost_per_million) / 1e6
    return PricedOption(option, mine, saved, back, months(one_time, a_sample))


def costs(
    options: Sequence[ServingOption],
    terms: Terms,
    *,
    chosen: str = "",
    tuning_s: float = 0.0,
    assumptions: Sequence[str] = (),
) -> Costs:
    """Return the whole table and the verdict.

    Args:
        options: The first is what is paid today.
        chosen: Name of the option that the verdict speaks of; empty takes the cheapest of those
            whose speed-up may be claimed.
        tuning_s: Seconds of a machine at the same price that the search took.
    """
    one_time = terms.effort_cost + tuning_s / 3600 * terms.price_per_hour
    rows = tuple(_priced(option, options[0], terms, one_time) for option in options)
    rest = [r for r in rows[1:] if r.option.faster]
    named = [r for r in rows[1:] if r.option.name == chosen]
    best = min(named or rest, key=lambda r: r.figures.total_s / r.option.samples, default=None)
    judged = recommendation(best, terms, one_time)
    return Costs(terms, rows, one_time, tuning_s, judged, tuple(assumptions))


def recommendation(best: PricedOption | None, terms: Terms, one_time: float) -> Recommendation:
    """Judge by the money's return; see the rule that it carries."""
    rule = (
        f"do it: the 99 % interval's upper end earns the one-time cost back within "
        f"{terms.within_months:g} months; consider: the estimate does within "
        f"{CONSIDER_MONTHS:g} months; stay: otherwise, or no speed-up beyond the noise"
    )
    if best is None or not best.option.faster:
        return Recommendation("stay", best.option.name if best else "", _unproved(best), rule)
    saved, back, name = best.saving_per_month, best.months, best.option.name
    likely = ", its accuracy only likely" if best.option.accuracy == "likely" else ""
    low, high = terms.money(saved.low), terms.money(saved.high)
    once = f"{terms.money(one_time)} once" if one_time else "nothing spent"
    at = f"saves {terms.money(saved.value)} a month [{low}, {high}]{likely}; {once} is back"
    if saved.low > 0 and back.high <= terms.within_months:
        return Recommendation("do it", name, f"{at} in {_months(back.high)} at worst", rule)
    if back.value <= CONSIDER_MONTHS:
        bad = "never" if math.isinf(back.high) else f"in {_months(back.high)}"
        why = f"{at} in {_months(back.value)}, at worst {bad}"
        return Recommendation("consider", name, why, rule)
    why = f"{at} only in {_months(back.value)}"
    if saved.value <= 0:
        why = "faster, but as many machines are paid for: it saves latency, not money"
    return Recommendation("stay", name, why, rule)


def _unproved(best: PricedOption | None) -> str:
    if best is not None and best.option.ratio is None:
        return "not timed in turns with the first row"
    if best is not None and best.option.ratio is not None and best.option.ratio.high < 1:
        return "its speed-up is not confirmed"
    return "no speed-up beyond the noise"


def _months(count: float) -> str:
    if count * MONTH_DAYS < 1:
        return "less than a day"
    return f"{count:.1f} months" if count >= 0.1 else f"{count * MONTH_DAYS:.1f} days"


def run(asked: Cost) -> Costs:
    """Price the rows of runs and of files of `ortune bench --json`."""
    amount, currency = read_price(asked.price)
    terms = Terms(
        price_per_hour=amount,
        currency=currency,
        overhead_s=read_overhead(asked.overhead) if asked.overhead else 0.0,
        processes=asked.processes,
        devices=read_devices(asked.gpus) if asked.gpus else (1,),
        load_per_s=read_load(asked.load) if asked.load else None,
        effort_cost=read_effort(asked.effort) if asked.effort else 0.0,
        hours_per_day=asked.hours_per_day,
        within_months=asked.within_months,
    )
    return priced(asked.sources, terms)


cost = verb(Cost, run)


def priced(sources: str | Path | Sequence[str | Path], terms: Terms) -> Costs:
    """Price as `cost` does, under terms that are read."""
    found = joined([read(path) for path in paths(sources)])
    assumed = (*found.notes, *_assumptions(terms, found.options))
    return costs(
        found.options,
        terms,
        chosen=found.chosen,
        tuning_s=found.tuning_s,
        assumptions=assumed,
    )


def _assumptions(terms: Terms, options: Sequence[ServingOption]) -> tuple[str, ...]:
    found = []
    if (count := terms.processes) > 1:
        found.append(f"{count} processes at once are assumed to do {count} times what one does")
    if max(terms.devices) > 1:
        found.append(f"1 to {max(terms.devices)} GPUs: linear scaling is assumed, not measured")
    if terms.overhead_s:
        found.append("the overhead is taken as given, the same for every row and however many run")
    if terms.load_per_s is not None:
        found.append("machines are counted at full use; a queue that stays short needs some spare")
    if any(option.ratio is None for option in options):
        found.append("rows without an interval were timed in another run than the first row")
    always = "costs a million and per 1,000 FPS-hours are those of a machine that is always busy"
    return (*found, always)
