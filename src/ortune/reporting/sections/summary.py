"""The answer at a glance: faster, how sure, on how quiet a machine, and four figures."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from ortune.core import wording as say
from ortune.core.section import Block, Pill, Pills, Section, Tile, Tiles
from ortune.core.study import AT_WORK, Study
from ortune.core.trial import Trial, Verdict
from ortune.reporting.sections.common.plans import (
    BUSY,
    compute_waiting_share,
    count_disturbances,
)

_ACCURACY = {
    Verdict.PROVED: ("accuracy proved", "good"),
    Verdict.LIKELY: ("accuracy likely, not proved", "warn"),
    Verdict.UNDECIDED: ("accuracy undecided: too few samples", "warn"),
    Verdict.FAILS: ("outside the accuracy budget", "bad"),
}


@dataclass(frozen=True)
class SummarySection(Section):
    """What is seen first."""

    order: ClassVar[int] = 1

    def blocks(self, study: Study) -> Iterable[Block]:
        yield Pills((_judge_speed(study), *_judge_accuracy(study), _judge_machine(study)))
        yield Tiles(tuple(_make_tiles(study, study.best)))


def _judge_speed(study: Study) -> Pill:
    speed = study.speedup(study.best)
    if study.best.key == study.baseline.key:
        stays = "nothing confirmed yet" if study.finished == AT_WORK else "the original stays"
        return Pill(stays, "warn" if study.unconfirmed else "plain")
    if not speed.is_bounded or speed.low < 1:
        needs = study.job.wanted.prefer
        return Pill("no slower" if needs == "speed" else f"less {needs}, no slower")
    return Pill("faster", "good")


def _judge_accuracy(study: Study) -> Iterator[Pill]:
    score = study.best.score
    if study.best.key == study.baseline.key:
        yield Pill("same answers")
    elif score is None or score.verdict is None:
        yield Pill("accuracy not scored", "warn")
    else:
        yield Pill(*_ACCURACY[score.verdict])


def _judge_machine(study: Study) -> Pill:
    if study.job.emulated:
        return Pill(f"times emulated by {study.job.emulated}", "bad")
    share = compute_waiting_share(study.best)
    if share > BUSY:
        return Pill(f"machine was busy: {100 * share:.0f} % of timed runs had to wait", "bad")
    if study.ending.too_noisy:
        return Pill("machine was noisy: timing is loose", "bad")
    return count_disturbances(study.advice)


def _make_tiles(study: Study, best: Trial) -> Iterator[Tile]:
    yield _make_speed_tile(study, best)
    yield _make_score_tile(study, best)
    first, changed = study.baseline, best.key != study.baseline.key
    peaks = [say.format_measurement(trial, "peak_rss") for trial in (first, best)]
    yield Tile(
        "file",
        f"{say.format_megabytes(best.size)} MB",
        f"was {say.format_megabytes(first.size)} MB" if changed else "",
        "peak memory " + (" -> ".join(peaks) if changed else peaks[0]) + " MB",
    )
    yield _make_start_tile(study, best)


def _make_speed_tile(study: Study, best: Trial) -> Tile:
    measure = study.job.workload.measure
    times = [say.format_milliseconds(say.latency_ns(study, t)) for t in (study.baseline, best)]
    if best.key == study.baseline.key:
        return Tile(measure, f"{times[0]} ms", "the original")
    speed = study.speedup(best)
    span = (speed.low, speed.high) if speed.is_bounded else None
    note = f"99 % interval {say.format_span(speed)}x; the mark is 1x" if span else "no interval"
    tone = "good" if span and speed.low > 1 else "plain"
    faster, change = f"{say.format_speedup(speed)} as fast", f"{times[0]} -> {times[1]} ms"
    return Tile(measure, faster, change, note, tone, span)


def _make_score_tile(study: Study, best: Trial) -> Tile:
    metric, score = study.budget.metric, best.score
    name = say.shorten_metric(str(metric))
    budget = f"budget: {study.budget}"
    if score is None or not math.isfinite(score.value):
        return Tile(name, "not scored", "", budget)
    title = f"{name}, {say.format_count(score.samples, 'sample')}"
    scale, unit = say.scale_score(metric)
    if best.key == study.baseline.key:
        return Tile(title, f"{scale * score.value:.4g}{' %' if unit else ''}", "", budget)
    tone = "bad" if score.verdict is Verdict.FAILS else "plain"
    if not metric.needs_labels:
        return Tile(title, f"{score.value:.5g}", "against the original's answers", budget, tone)
    change = scale * (score.value - score.base)
    values = f"{scale * score.base:.4g} -> {scale * score.value:.4g}{' %' if unit else ''}"
    figure = f"{change:+.1f} points" if unit else f"{change:+.3g}"
    return Tile(title, figure, values, budget, tone)


def _make_start_tile(study: Study, best: Trial) -> Tile:
    starts = [
        trial.measurement.load_ns + trial.measurement.first_ns if trial.measurement else None
        for trial in (study.baseline, best)
    ]
    before, after = (say.NONE if ns is None else say.format_seconds(ns / 1e9) for ns in starts)
    if best.key == study.baseline.key or None in starts:
        return Tile("start: load and first run", after)
    note = ""
    was, is_now = (say.latency_ns(study, trial) for trial in (study.baseline, best))
    longer_ns = (starts[1] or 0) - (starts[0] or 0)
    if was and is_now and was > is_now:
        runs = math.ceil(longer_ns / (was - is_now))
        note = f"pays back after {say.format_count(runs, 'run')}" if runs > 0 else "no slower"
    return Tile("start: load and first run", after, f"was {before}", note)
