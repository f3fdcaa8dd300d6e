"""Price a run's folder, or a file of `ortune bench` or `ortune loadtest --json`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ortune.analysis.costs import terms as reading
from ortune.analysis.costs.cost import Costs, ServingOption, costs
from ortune.analysis.costs.requests import Cost
from ortune.analysis.costs.sources import joined, read
from ortune.analysis.costs.terms import Terms
from ortune.core.fields import paths
from ortune.core.request import verb


def run(asked: Cost) -> Costs:
    """Price the rows of runs and of files of `ortune bench --json`."""
    amount, currency = reading.read_price(asked.price)
    terms = Terms(
        price_per_hour=amount,
        currency=currency,
        overhead_s=reading.read_overhead(asked.overhead) if asked.overhead else 0.0,
        processes=asked.processes,
        devices=reading.read_devices(asked.gpus) if asked.gpus else (1,),
        load_per_s=reading.read_load(asked.load) if asked.load else None,
        effort_cost=reading.read_effort(asked.effort) if asked.effort else 0.0,
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
