"""Two runs on one page: what each came to, and the plans that both tried."""

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ortune.core import wording as say
from ortune.core.section import (
    Block,
    Estimate,
    Heading,
    Intervals,
    Pill,
    Point,
    Scatter,
    Table,
    Text,
    Tile,
)
from ortune.core.study import Study
from ortune.core.trial import Trial, count_spent_s
from ortune.reporting.beside import fill_rows
from ortune.reporting.blocks import Part, summarize

_TONES = ("first", "second")
_MOST = 12
"""Plans of both runs that the plot has."""


def build_compared_parts(first: Study, second: Study) -> tuple[str, tuple[Part, ...]]:
    """Return what a page of two runs is called, and its parts: the answers side by side first."""
    studies = (first, second)
    roots = [Path(study.root).absolute() for study in studies]
    short = tuple(root.name for root in roots)
    names = short if len(set(short)) > 1 else tuple("/".join(root.parts[-2:]) for root in roots)
    legend = tuple(zip(_TONES, names, strict=True))
    parts = (
        summarize(tuple(_judge_likeness(studies)), tuple(_make_tiles(studies, names))),
        Part("front", tuple(_plot_fronts(studies, legend)), columns=7),
        Part("figures", tuple(_tabulate_figures(studies, names)), columns=5),
        Part("plans", tuple(_compare_plans(studies, names, legend))),
    )
    return " and ".join(names), fill_rows([part for part in parts if part.blocks])


def _judge_likeness(studies: Sequence[Study]) -> Iterator[Pill]:
    """Say what the runs have in common: ratios of unlike jobs are no comparison."""
    kinds: tuple[tuple[str, Callable[[Study], object]], ...] = (
        ("model", lambda study: study.job.model_digest),
        ("data", lambda study: study.job.data_digest),
        ("budget", lambda study: str(study.budget)),
        ("workload", lambda study: str(study.job.workload)),
        ("machine", lambda study: dict(study.job.machine)),
        ("versions", lambda study: dict(study.job.versions)),
    )
    for name, read in kinds:
        same = read(studies[0]) == read(studies[1])
        yield Pill(f"same {name}" if same else f"{name} differs", "good" if same else "warn")


def _make_tiles(studies: Sequence[Study], names: Sequence[str]) -> Iterator[Tile]:
    for study, name in zip(studies, names, strict=True):
        speed = study.speedup(study.best)
        yield Tile(
            name,
            f"{say.format_speedup(speed)} as fast",
            f"{_describe_latencies(study)} ms",
            study.label(study.best.plan),
            "good" if speed.is_bounded and speed.low > 1 else "plain",
            (speed.low, speed.high) if speed.is_bounded and speed.low < speed.high else None,
        )


def _plot_fronts(studies: Sequence[Study], legend: Sequence[tuple[str, str]]) -> Iterator[Block]:
    points = []
    scale, unit = say.scale_score(studies[0].budget.metric)
    for study, (tone, name) in zip(studies, legend, strict=True):
        for trial in say.list_latest_trials(study):
            speed, score = study.speedup(trial), trial.score
            if trial.error or score is None or not math.isfinite(speed.value):
                continue
            label = f"{study.label(trial.plan)} ({name})"
            span = (speed.low, speed.high) if speed.is_bounded else None
            change = scale * (score.value - score.base)
            size = trial.size / 1e6 if trial.size else None
            points.append(Point(speed.value, change, label, tone, span, size=size))
    if len(points) < 2 or len({study.budget.metric for study in studies}) > 1:
        return
    yield Heading("Speed against accuracy")
    metric = say.shorten_metric(str(studies[0].budget.metric))
    axes = ("times as fast as the original", f"change of {metric}{unit}")
    yield Scatter(*axes, tuple(points), legend=tuple(legend), log_x=True)
    yield Text("Each run's plans beside its own original. Bars: 99 % intervals of the speed.")


def _tabulate_figures(studies: Sequence[Study], names: Sequence[str]) -> Iterator[Block]:
    figures: tuple[tuple[str, Callable[[Study], str]], ...] = (
        ("winner", lambda study: study.label(study.best.plan)),
        ("speed-up, 99 %", lambda study: say.describe_speedup(study.best.shown_ratio)),
        ("latency, ms", _describe_latencies),
        ("score", lambda study: say.format_score(study, study.best)),
        ("accuracy", lambda study: say.describe_verdict(study.best)),
        ("file, MB", lambda study: say.format_megabytes(study.best.size)),
        ("memory, MB", lambda study: say.format_measurement(study.best, "peak_rss")),
        ("load, ms", lambda study: say.format_measurement(study.best, "load_ns")),
        ("plans tried", lambda study: str(len(say.list_latest_trials(study)) - 1)),
        ("search, s", lambda study: f"{count_spent_s(study.trials):.0f}"),
        ("ended", lambda study: study.finished),
        ("budget", lambda study: str(study.budget)),
    )
    rows = tuple((name, *(write(study) for study in studies)) for name, write in figures)
    yield Heading("Side by side")
    yield Table(("", *names), rows)


def _compare_plans(
    studies: Sequence[Study], names: Sequence[str], legend: Sequence[tuple[str, str]]
) -> Iterator[Block]:
    tried = [
        {str(t.plan): t for t in say.list_latest_trials(study) if t.key != study.baseline.key}
        for study in studies
    ]
    both = [plan for plan in tried[0] if plan in tried[1]]
    both.sort(key=lambda plan: _rank(studies, [trials[plan] for trials in tried]))
    yield Heading("Plans that both tried")
    rows, estimates = [], []
    for place, plan in enumerate(both):
        pair = [trials[plan] for trials in tried]
        label = studies[0].label(pair[0].plan)
        speeds = [study.speedup(trial) for study, trial in zip(studies, pair, strict=True)]
        bounded = [speed.is_bounded for speed in speeds]
        apart = all(bounded) and (speeds[0].high < speeds[1].low or speeds[1].high < speeds[0].low)
        scores = [say.format_score(s, trial) for s, trial in zip(studies, pair, strict=True)]
        outcome = "differ" if apart else "agree" if all(bounded) else "no interval"
        rows.append((label, *map(say.format_speedup, speeds), *scores, outcome))
        for speed, (tone, name) in zip(speeds, legend, strict=True):
            if place < _MOST and math.isfinite(speed.value):
                ends = (speed.value, speed.low, speed.high)
                figure = say.format_speedup(speed)
                estimates.append(Estimate(f"{name}: {label}", *ends, figure, tone=tone))
    if estimates:
        yield Intervals("plan", "speed-up, 99 %", tuple(estimates), tuple(legend))
    if rows:
        heads = (*(f"speed-up, {name}" for name in names), *(f"score, {name}" for name in names))
        yield Table(("plan", *heads, "speed-ups"), tuple(rows))
    alone = [say.format_count(len(trials) - len(both), "plan") for trials in tried]
    only = ", ".join(f"{count} only in {name}" for count, name in zip(alone, names, strict=True))
    yield Text(f"{say.format_count(len(both), 'plan')} in both, {only}.")


def _rank(studies: Sequence[Study], pair: Sequence[Trial]) -> float:
    """Order by the better of both speed-ups, what was not timed last."""
    speeds = [study.speedup(t).value for study, t in zip(studies, pair, strict=True)]
    return -max((speed for speed in speeds if math.isfinite(speed)), default=0.0)


def _describe_latencies(study: Study) -> str:
    latencies = [say.latency_ns(study, trial) for trial in (study.baseline, study.best)]
    return " -> ".join(map(say.format_milliseconds, latencies))
