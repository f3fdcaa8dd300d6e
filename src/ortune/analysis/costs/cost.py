"""What inference costs: pure arithmetic over measured latencies and given prices."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, Literal, TypeAlias

from ortune.analysis.benchmark.interleave import PER_FRAME
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
from ortune.core import regular_file
from ortune.core.errors import BadData
from ortune.core.fields import make_paths
from ortune.core.plugins import stored
from ortune.core.request import make_verb
from ortune.core.result import TableResult
from ortune.core.study import Study
from ortune.core.trial import Interval
from ortune.search.experiment.ledger import read_study

_LATENCY = "latency"
_SERVED = "latency from the intended start"
"""What rows of a load test measure."""
_ONE = Interval(1.0, 1.0, 1.0)
_WHOLE = (
    "{}: times are of whole frames and include the work around the model; --overhead is not added"
)
_NOISY = "{} was measured on a machine too noisy for a verdict: its figures are unreliable"


@dataclass(frozen=True)
class ServingOption:
    """One way to run the model."""

    name: str  # model and backend
    inference_s: float  # one run of one process alone
    # Its latency over the first option's, 99 %; None where both were not timed in turns.
    ratio: Interval | None = None
    samples: int = 1  # in one run
    accuracy: str = ""  # ``proved``, ``likely``, ``undecided``, or empty where it was not judged
    # Its source stands by the ratio: measured anew at the end of a search, and on a machine that
    # was calm enough for a verdict.
    confirmed: bool = True

    @property
    def faster(self) -> bool:
        """Whether a speed-up over the first option may be claimed."""
        return self.confirmed and self.ratio is not None and self.ratio.high < 1


@dataclass(frozen=True)
class PricedSource:
    """What a source offers to price."""

    options: tuple[ServingOption, ...]  # the first is the measure of those timed in turns with it
    measure: tuple[str, str]  # file name of the first option's model, and its backend
    chosen: str = ""  # name of the option that the source itself calls best, or empty
    tuning_s: float = 0.0
    notes: tuple[str, ...] = ()


def read_priced_source(source: Path) -> PricedSource:
    """Read a run's folder or a JSON file.

    Raises:
        BadData: It is neither, or holds no latencies.
    """
    if source.is_dir():
        return of_study(read_study(source))
    try:
        content = stored.parse_json(regular_file.read_text(source))
    except ValueError:
        content = None
    except FileNotFoundError:
        raise BadData(f"no file or folder {source}", fix="check the path") from None
    if not isinstance(content, Mapping) or not isinstance(content.get("rows"), list):
        raise BadData(
            f"{source} is not a result of `ortune bench` or `ortune loadtest`",
            fix="give the -o folder of `ortune optimize`, or a file of `ortune bench --json`",
        )
    if any(isinstance(row, Mapping) and row.get("measure") == _SERVED for row in content["rows"]):
        return of_load_test(content, source)
    return of_bench(content, source)


def merge_sources(sources: Sequence[PricedSource]) -> PricedSource:
    """Put several sources into one.

    Where a later source's first row is the very model and backend of the first source's, its rows
    keep their ratios: each was timed in turns with that row. Otherwise they have none.
    """
    first, *later_sources = sources
    options = list(first.options)
    for source in later_sources:
        chained = source.measure == first.measure
        base, *other_options = source.options
        scale = first.options[0].inference_s / base.inference_s if chained else 1.0
        for option in other_options if chained else source.options:
            kept = option.ratio if chained else None
            options.append(replace(option, inference_s=option.inference_s * scale, ratio=kept))
    return replace(
        first,
        options=tuple(options),
        tuning_s=sum(source.tuning_s for source in sources),
        notes=tuple(note for source in sources for note in source.notes),
    )


def of_study(study: Study) -> PricedSource:
    """Offer the baseline, the front within the budget, the winner and the file as it came.

    A trial's latency is the baseline's median times its ratio, which was timed in turns. What a
    finished search did not measure anew at its end is shown and not claimed.
    """
    workload = study.job.workload
    if workload.measure != _LATENCY:
        raise BadData(
            f"{study.root} was searched under the workload '{workload}', not for latency",
            fix="give a run that was searched without --workload",
        )
    base = study.baseline
    if base.measurement is None:
        raise BadData(
            f"{study.root} holds no measured baseline", fix="run `ortune optimize` again"
        )
    last = {t.key: t for t in study.trials}
    kept = {key: (t, t.ratio) for key, t in last.items() if t.ratio and study.accepts(t)}
    shown = {t.key for t in (*study.front(), study.best)}
    shown |= {key for key, (t, _) in kept.items() if not t.plan.recipe.steps}
    shown -= {base.key}
    trial_ratios = sorted(
        (kept[key] for key in kept if key in shown), key=lambda pair: pair[1].value
    )
    inference_s = median(base.measurement.latency_ns) / 1e9
    samples = max(1, workload.batch)
    options = [ServingOption(study.label(base.plan), inference_s, _ONE, samples)]
    for t, ratio in trial_ratios:
        accuracy = str(t.score.verdict or "") if t.score else ""
        sure = not study.too_noisy and t.part == "final"
        seconds = inference_s * ratio.value
        option = ServingOption(
            study.label(t.plan), seconds, ratio, samples, accuracy=accuracy, confirmed=sure
        )
        options.append(option)
    return PricedSource(
        tuple(options),
        (Path(study.job.model).name, str(base.plan.backend)),
        chosen="" if study.best.key == base.key else study.label(study.best.plan),
        tuning_s=sum(t.seconds for t in study.trials),
        notes=(_NOISY.format(study.root),) if study.too_noisy else (),
    )


def of_bench(content: Mapping[str, Any], source: Path) -> PricedSource:
    """Offer every row that ran; a row's latency is the first one's median times its ratio.

    Of models with the user's frame around them the whole frames are offered.
    """
    pairs = zip(
        content["rows"], content.get("ratios") or [None] * len(content["rows"]), strict=False
    )
    try:
        live = [(row, r) for row, r in pairs if not row.get("error") and not row.get("again")]
        whole = [(row, r) for row, r in live if row.get("measure") == PER_FRAME]
        live = whole or live
        options = [_read_row(row, ratio, live[0][0]) for row, ratio in live]
        noisy = bool((content.get("judgement") or {}).get("too_noisy"))
        measures = {str(row.get("measure", _LATENCY)) for row, _ in live}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise BadData(
            f"{source} cannot be read as rows of a bench: {type(error).__name__} {error}",
            fix="write it again with `ortune bench`",
        ) from None
    if measures - {_LATENCY, PER_FRAME}:
        raise BadData(
            f"{source} holds no latencies of single runs", fix="bench without --workload"
        )
    if not options:
        raise BadData(
            f"all rows of {source} failed",
            fix="read the errors in that file, then measure again with `ortune bench`",
        )
    first = live[0][0]
    notes = [_NOISY.format(source)] * noisy + [_WHOLE.format(source)] * bool(whole)
    return PricedSource(
        tuple(replace(option, confirmed=not noisy) for option in options),
        (Path(first["model"]).name, str(first["backend"])),
        notes=tuple(notes),
    )


def of_load_test(content: Mapping[str, Any], source: Path) -> PricedSource:
    """Offer the level that answers most: of those within the limit where there is one, else of
    those without an error. One run takes the time in which the whole server answers one.
    """
    try:
        rows = [row for row in content["rows"] if row["keeps_up"] and row["per_second"]]
        if content.get("slo"):
            rows = [] if content["kept"] is None else [content["rows"][content["kept"]]]
        best = max(rows, key=lambda row: float(row["per_second"]), default=None)
        if best is None:
            limit = f"keeps {content['slo']}" if content.get("slo") else "is without errors"
            raise BadData(f"no level of {source} {limit}", fix="load test it at lower levels")
        samples = max(1, int(best["batch"] or 1))
        name = f"{Path(best['model']).name} @ {best['backend']}, {best['workload']}"
        option = ServingOption(name, samples / float(best["per_second"]), None, samples)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise BadData(
            f"{source} cannot be read as levels of a load test: {type(error).__name__} {error}",
            fix="write it again with `ortune loadtest --json FILE.json`",
        ) from None
    note = (
        f"{source}: throughput of the whole server at '{best['workload']}'; --processes counts "
        "servers"
    )
    return PricedSource((option,), (str(source), _SERVED), notes=(note,))


def _read_row(
    row: Mapping[str, Any], ratio: Mapping[str, float] | None, first: Mapping[str, Any]
) -> ServingOption:
    """Read a row. The ratio holds within one batch."""
    samples, batch = (max(1, int(entry.get("batch") or 1)) for entry in (row, first))
    name = f"{Path(row['model']).name} @ {row['backend']}"
    name += f", batch {samples}" if samples > 1 else ""
    name += ", whole frames" if row.get("measure") == PER_FRAME else ""
    if ratio is None or samples != batch:
        return ServingOption(name, _read_latency(row), None, samples)
    interval = Interval(ratio["value"], ratio["low"], ratio["high"])
    return ServingOption(name, _read_latency(first) * interval.value, interval, samples)


def _read_latency(row: Mapping[str, Any]) -> float:
    p50_ns = row.get("p50_ns")
    latency_s = float(p50_ns if p50_ns is not None else median(row["latency_ns"])) / 1e9
    if not 0 < latency_s < math.inf:
        raise ValueError(f"{latency_s:g} s is not a latency")
    return latency_s


CONSIDER_MONTHS = 24.0
"""Latest return of the money, at the estimate, that is worth a thought."""

Answer: TypeAlias = Literal["do it", "consider", "stay"]


@dataclass(frozen=True)
class Figures:
    """What one option brings and costs under the terms."""

    total_s: float  # one run with its overhead
    fps_process: float  # samples a second of one process
    fps_machine: float  # of all processes of one machine
    # Paid for: whole ones under a load, else the share of a machine that does the first option's
    # work.
    machines: float
    processes: int  # that many do the work
    fps_all: float  # samples a second of these machines
    utilisation: float  # share of what they could do that is asked for
    cost_per_million: float  # money for a million samples on a machine that is always busy
    cost_per_1000_fps_hours: float  # money for 1,000 samples a second over an hour, likewise
    cost_per_month: float  # money for the machines


@dataclass(frozen=True)
class PricedOption:
    """An option with its figures and what it saves against the first."""

    option: ServingOption
    figures: Figures
    # Money; the interval follows from the ratio's, and is NaN without one.
    saving_per_month: Interval
    months: Interval  # until the one-time cost is earned back; infinite when it never is
    inferences: float  # samples until then, on machines that are always busy


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
        assumptions: What was not measured, in sentences.
    """

    headline = ("verdict", "one_time_cost", "tuning_s")

    terms: Terms
    rows: tuple[PricedOption, ...]
    one_time_cost: float
    tuning_s: float
    verdict: Recommendation
    assumptions: tuple[str, ...] = ()


def compute_figures(
    option: ServingOption, terms: Terms, work_per_s: float, *, whole: bool
) -> Figures:
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
    machines = float(_round_up(share)) if whole else share
    return Figures(
        total_s=total,
        fps_process=process,
        fps_machine=machine,
        machines=machines,
        processes=_round_up(work_per_s / process),
        fps_all=machines * machine,
        utilisation=share / machines,
        cost_per_million=terms.price_per_hour / 3600 / machine * 1e6,
        cost_per_1000_fps_hours=terms.price_per_hour / machine * 1000,
        cost_per_month=machines * terms.price_per_hour * terms.month_hours,
    )


def _round_up(count: float) -> int:
    """Round up, 1 at least; what is above a whole number by rounding alone is that number."""
    return max(1, math.ceil(count - 1e-9))


def compute_work_rate(first: ServingOption, terms: Terms) -> float:
    """Return the samples a second to compare at: the load, or what the first option does now."""
    if terms.load_per_s is not None:
        return terms.load_per_s
    return terms.devices[0] * compute_figures(first, terms, 1.0, whole=False).fps_machine


def compute_payback(one_time: float, saving_per_month: float) -> float:
    """Return one-time cost / saving a month: 0 for no cost, infinite for no saving."""
    if saving_per_month <= 0:
        return math.inf
    return one_time / saving_per_month


def _price_option(
    option: ServingOption, first: ServingOption, terms: Terms, one_time: float
) -> PricedOption:
    """Put an option beside the first.

    The saving's interval holds the first option's latency and moves this one's to the ends of the
    ratio's interval, where that says anything: of one block it may be without an upper end.
    Break-even in samples = one-time cost / difference of the costs a sample.
    """
    request, whole = compute_work_rate(first, terms), terms.load_per_s is not None
    base = compute_figures(first, terms, request, whole=whole)
    mine = compute_figures(option, terms, request, whole=whole)

    def saving(inference_s: float) -> float:
        at = compute_figures(replace(option, inference_s=inference_s), terms, request, whole=whole)
        return base.cost_per_month - at.cost_per_month

    saved = Interval(saving(option.inference_s), math.nan, math.nan)
    back = Interval(compute_payback(one_time, saved.value), math.nan, math.nan)
    if (ratio := option.ratio) is not None and ratio.is_bounded:
        low, high = (saving(option.inference_s * r / ratio.value) for r in (ratio.high, ratio.low))
        saved = replace(saved, low=low, high=high)
        back = replace(
            back, low=compute_payback(one_time, high), high=compute_payback(one_time, low)
        )
    a_sample = (base.cost_per_million - mine.cost_per_million) / 1e6
    return PricedOption(option, mine, saved, back, compute_payback(one_time, a_sample))


def tabulate_costs(
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
    rows = tuple(_price_option(option, options[0], terms, one_time) for option in options)
    faster_rows = [r for r in rows[1:] if r.option.faster]
    named = [r for r in rows[1:] if r.option.name == chosen]
    best = min(
        named or faster_rows, key=lambda r: r.figures.total_s / r.option.samples, default=None
    )
    judged = make_recommendation(best, terms, one_time)
    return Costs(terms, rows, one_time, tuning_s, judged, tuple(assumptions))


def make_recommendation(
    best: PricedOption | None, terms: Terms, one_time: float
) -> Recommendation:
    """Judge by the money's return; see the rule that it carries."""
    rule = (
        f"do it: the 99 % interval's upper end earns the one-time cost back within "
        f"{terms.within_months:g} months; consider: the estimate does within "
        f"{CONSIDER_MONTHS:g} months; stay: otherwise, or no speed-up (within noise)"
    )
    if best is None or not best.option.faster:
        why, ratio = "no speed-up (within noise)", best.option.ratio if best else None
        if best is not None and ratio is None:
            why = "not timed in turns with the first row"
        elif ratio is not None and ratio.high < 1:
            why = "its speed-up was not re-measured"
        return Recommendation("stay", best.option.name if best else "", why, rule)
    saved, back, name = best.saving_per_month, best.months, best.option.name
    is_proved = best.option.accuracy in ("", "proved")
    likely = "" if is_proved else ", accuracy not proved"
    low, high = terms.format_money(saved.low), terms.format_money(saved.high)
    once = f"{terms.format_money(one_time)} once" if one_time else "nothing spent"
    gain = f"saves {terms.format_money(saved.value)} per month [{low}, {high}]{likely}"
    at = f"{gain}; {once} is back"
    if saved.low > 0 and back.high <= terms.within_months:
        return Recommendation("do it", name, f"{at} in {format_months(back.high)} at worst", rule)
    if back.value <= CONSIDER_MONTHS:
        bad = "never" if math.isinf(back.high) else f"in {format_months(back.high)}"
        why = f"{at} in {format_months(back.value)}, at worst {bad}"
        return Recommendation("consider", name, why, rule)
    why = f"{at} only in {format_months(back.value)}"
    if saved.value <= 0:
        why = "faster, but as many machines are paid for: it saves latency, not money"
    return Recommendation("stay", name, why, rule)


def format_months(count: float) -> str:
    """Write a finite number of months, in days where it is less than a tenth of one."""
    if count * MONTH_DAYS < 1:
        return "less than a day"
    return f"{count:.1f} months" if count >= 0.1 else f"{count * MONTH_DAYS:.1f} days"


def run(request: Cost) -> Costs:
    """Price the rows of runs and of files of `ortune bench --json`."""
    amount, currency = read_price(request.price)
    terms = Terms(
        price_per_hour=amount,
        currency=request.currency or currency,
        overhead_s=read_overhead(request.overhead) if request.overhead else 0.0,
        processes=request.processes,
        devices=read_devices(request.gpus) if request.gpus else (1,),
        load_per_s=read_load(request.load) if request.load else None,
        effort_cost=read_effort(request.effort) if request.effort else 0.0,
        hours_per_day=request.hours_per_day,
        within_months=request.within_months,
    )
    return price_sources(request.sources, terms)


cost = make_verb(Cost, run)


def price_sources(sources: str | Path | Sequence[str | Path], terms: Terms) -> Costs:
    """Price as `cost` does, under terms that are read."""
    offer = merge_sources([read_priced_source(path) for path in make_paths(sources)])
    sentences = []
    if (count := terms.processes) > 1:
        sentences.append(
            f"{count} processes at once are assumed to do {count} times what one does"
        )
    if max(terms.devices) > 1:
        sentences.append(
            f"1 to {max(terms.devices)} GPUs: linear scaling is assumed, not measured"
        )
    if terms.overhead_s:
        sentences.append(
            "the overhead is taken as given: the same for every row and any number of processes"
        )
    if terms.load_per_s is not None:
        sentences.append("machines are counted at full use; short queues need spare capacity")
    if any(option.ratio is None for option in offer.options):
        sentences.append("rows without an interval were timed in another run than the first row")
    always = "costs per million and per 1,000 FPS-hours hold for a machine that is always busy"
    assumed = (*offer.notes, *sentences, always)
    return tabulate_costs(
        offer.options, terms, chosen=offer.chosen, tuning_s=offer.tuning_s, assumptions=assumed
    )
