"""The result of a verb as a page: its answer first, then a picture, then its tables."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from ortune.analysis.benchmark.compare import CompareResult
from ortune.analysis.costs.cost import Costs, format_months
from ortune.analysis.verification.verify import Comparison
from ortune.core import wording as say
from ortune.core.atomic_write import write_text
from ortune.core.outputs import check_page_file
from ortune.core.section import (
    Bar,
    Bars,
    Block,
    Estimate,
    Heading,
    Intervals,
    Pill,
    Table,
    Text,
    Tile,
)
from ortune.core.trial import Interval, Verdict
from ortune.reporting.blocks import Part, summarize
from ortune.reporting.html import render_page
from ortune.reporting.python.compare import build_comparison_parts, describe_total
from ortune.reporting.sections.answers import show_answers
from ortune.search.each import ModelSearch

Page: TypeAlias = tuple[str, tuple[Part, ...]]
"""Title and parts."""
Result: TypeAlias = CompareResult | Comparison | Costs
_TONES = {Verdict.PROVED: "good", Verdict.FAILS: "bad"}


def write_result_page(page: Page, path: str | Path, force: bool = False) -> Path:
    """Write a result as one offline page.

    Raises:
        OrtuneError: The path is taken, has another ending, or cannot be written.
    """
    return write_text(check_page_file(path, force), render_page(*page))


def build_result_parts(result: Result) -> Page:
    """Return what a result's page is called, and its parts: the answer first."""
    build: Callable[[Any], Page] = _BUILDERS[type(result)]
    return build(result)


def _build_compared(result: CompareResult) -> Page:
    clear = not result.regressions and any(row.judged for row in result.rows)
    pills = [Pill(describe_total(result).split(" (")[0], "good" if clear else "warn")]
    noisy = {path for comparison in result.comparisons for path in comparison.too_noisy}
    pills += [Pill(f"{path} was measured on a noisy machine", "warn") for path in sorted(noisy)]
    timed = [row for row in result.rows if row.latency is not None]
    tiles = [
        Tile("rows", str(len(result.rows)), f"{sum(row.judged for row in result.rows)} judged"),
        Tile("regressed", str(result.regressions), tone="bad" if result.regressions else "plain"),
    ]
    ratios = sorted((row.latency.value, row.name) for row in timed if row.latency is not None)
    for word, ends in (("slowest row", ratios[-1:]), ("fastest row", ratios[:1])):
        tiles += [Tile(word, f"{x:.3f}", "of the reference's latency", name) for x, name in ends]
    rows = tuple(
        Estimate(row.name, x.value, x.low, x.high, str(x), row.verdict, tone)
        for row in timed
        if (x := row.latency) is not None
        for tone in ["lose" if row.regressions else "win" if x.high < 1 else ""]
    )
    legend = (("win", "faster"), ("", "not slower than allowed"), ("lose", "regressed"))
    plot: list[Block] = [Heading("Latency relative to the reference (1)")]
    plot.append(Intervals("row", "latency, 99 %", rows, legend))
    comparisons, _ = build_comparison_parts(result)
    names = " and ".join(Path(file.path).name for file in result.files)
    parts = (Part("latency", tuple(plot)),) if rows else ()
    return names, (summarize(pills, tiles), *parts, comparisons)


def _build_verified(comparison: Comparison) -> Page:
    verdict = comparison.verdict
    pills = [Pill(f"accuracy {verdict}", _TONES.get(verdict, "warn"))]
    if comparison.doubt:
        pills.append(Pill(comparison.doubt, "warn"))
    made_up = "made-up " if comparison.synthetic else ""
    samples = say.format_count(comparison.samples, f"{made_up}sample")
    tiles = [
        Tile(
            say.shorten_metric(score.metric),
            f"{score.value:.6g}",
            "" if math.isnan(score.base) else f"reference {score.base:.6g}",
            score.basis,
            "bad" if score.verdict is Verdict.FAILS else "plain",
        )
        for score in comparison.scores[:2]
    ]
    tiles.append(Tile("compared", samples))
    tiles.append(Tile("budget", say.shorten_groups(str(comparison.budget)), comparison.rule))
    blocks: list[Block] = [Heading("Scores")]
    if comparison.scores:
        blocks.append(Text(say.explain_verdict(comparison.scores[0])))
    heads = ("metric", "value", "reference", "bound", "verdict", "basis")
    blocks.append(Table(heads, tuple(map(say.tabulate_score, comparison.scores))))
    simulated = comparison.simulated
    if simulated and (hit := [layer for layer in simulated.layers if layer.saturated]):
        ranked = sorted(hit, key=lambda layer: -layer.saturated / layer.outputs)[:14]
        bars = tuple(Bar(x.name, (100 * x.saturated / x.outputs,), x.op) for x in ranked)
        blocks[:0] = [Heading(f"Sums that saturate on {simulated.isa}"), Bars("%", bars)]
    parts = [summarize(pills, tiles)]
    if comparison.answers is not None and comparison.answers.samples:
        shown = show_answers(comparison.answers, comparison.budget.metric, comparison.worst)
        parts.append(Part("answers", tuple(shown)))
    return "verify", (*parts, Part("scores", tuple(blocks)))


def _build_costs(costs: Costs) -> Page:
    terms, verdict, first = costs.terms, costs.verdict, costs.rows[0]
    money = terms.currency or "cost"
    tones = {"do it": "good", "consider": "warn"}
    answer = ": ".join(filter(None, (verdict.answer, verdict.option)))
    best = next((row for row in costs.rows if row.option.name == verdict.option), None)
    best = best or min(costs.rows, key=lambda row: row.figures.cost_per_month)
    million, month = (
        [terms.format_money(getattr(row.figures, name)) for row in (first, best)]
        for name in ("cost_per_million", "cost_per_month")
    )
    months = best.months.value
    tiles = [
        Tile("per million inferences", million[1], f"was {million[0]}"),
        Tile("per month", month[1], f"was {month[0]}"),
        Tile("paid once", terms.format_money(costs.one_time_cost), "effort and tuning"),
        Tile("paid back", format_months(months) if math.isfinite(months) else "never"),
    ]
    bars = tuple(
        Bar(
            row.option.name,
            (row.figures.cost_per_month,),
            terms.format_money(row.figures.cost_per_month),
            "win" if row is best and row is not first else "original" if row is first else "",
        )
        for row in costs.rows
    )
    prices = (f"{money} per million", f"{money} per month")
    columns = ("", "inference ms", "samples/s per process", *prices, "paid back")
    cells = tuple(
        (
            row.option.name,
            f"{1e3 * row.option.inference_s:.4g}",
            say.format_rate(row.figures.fps_process),
            terms.format_money(row.figures.cost_per_million),
            terms.format_money(row.figures.cost_per_month),
            format_months(row.months.value) if math.isfinite(row.months.value) else "-",
        )
        for row in costs.rows
    )
    blocks: tuple[Block, ...] = (
        Heading("Cost per month"),
        Bars(f"{money} per month", bars),
        Table(columns, cells),
        Text(f"{verdict.why}. Rule: {verdict.rule}."),
        *(Text(f"Assumed: {text}.") for text in costs.assumptions),
    )
    pills = [Pill(answer, tones.get(verdict.answer, "plain"))]
    return "What inference costs", (summarize(pills, tiles), Part("costs", blocks))


_BUILDERS: Mapping[type, Callable[[Any], Page]] = {
    CompareResult: _build_compared,
    Comparison: _build_verified,
    Costs: _build_costs,
}


def build_searches(searches: Sequence[ModelSearch]) -> Page:
    """Return the page of several models' searches: a row a model, and why some have no answer."""
    answers = {item.name: item.study for item in searches if item.study is not None}
    speeds = {name: study.speedup(study.best) for name, study in answers.items()}
    faster = [name for name, study in answers.items() if study.best is not study.baseline]
    failed = [item for item in searches if item.problem]
    waiting = len(searches) - len(answers) - len(failed)
    pills = [
        Pill(f"{len(answers)} of {say.format_count(len(searches), 'model')} answered", "good")
    ]
    pills += [Pill(f"{len(failed)} failed", "bad")] * bool(failed)
    pills += [Pill(f"{waiting} not searched yet", "warn")] * bool(waiting)
    tiles = [Tile("models", str(len(searches))), Tile("faster", str(len(faster)))]
    if faster:
        best = max(faster, key=lambda name: speeds[name].value)
        tiles.append(Tile("most", say.format_speedup(speeds[best]), best))
    rows = tuple(_describe_search(item, speeds.get(item.name)) for item in searches)
    columns = ("model", "answer", "times as fast", "accuracy", "file MB", "run")
    blocks: list[Block] = [Table(columns, rows)]
    blocks += [Text(f"{item.name}: {item.problem}. Fix: {item.fix}", "bad") for item in failed]
    estimates = tuple(
        Estimate(name, x.value, x.low, x.high, f"{say.format_speedup(x)} [{say.format_span(x)}]")
        for name, x in speeds.items()
        if name in faster and x.is_bounded
    )
    title = "Times as fast as the original, which is 1"
    plot = Part("speeds", (Heading(title), Intervals("model", "times, 99 %", estimates, ())))
    parts = (Part("models", tuple(blocks)), *([plot] if estimates else []))
    return say.format_count(len(searches), "model"), (summarize(pills, tiles), *parts)


def _describe_search(item: ModelSearch, speed: Interval | None) -> tuple[str, ...]:
    study = item.study
    if study is None or speed is None:
        return (item.name, "failed" if item.problem else "not searched yet", *4 * ("-",))
    best, changed = study.best, study.best is not study.baseline
    answer = study.label(best.plan) if changed else "the original stays"
    if study.finished == "interrupted":
        answer += " (interrupted)"
    times = f"{say.format_speedup(speed)} [{say.format_span(speed)}]" if changed else "1"
    accuracy = f"{say.describe_scores(study, best.score)}" if changed and best.score else "-"
    sizes = [say.format_megabytes(trial.size) for trial in (study.baseline, best)]
    return (item.name, answer, times, accuracy, " -> ".join(sizes[: 1 + changed]), str(item.root))
