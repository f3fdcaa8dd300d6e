"""What `bench` shows of frames around a model, and of processes side by side."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ortune.cli.terminal import output
from ortune.cli.terminal.figures import figure, interval, megabytes, milliseconds
from ortune.core.capabilities import placed
from ortune.core.trial import Interval
from ortune.core.wording import count

if TYPE_CHECKING:
    from ortune.analysis.benchmark.result import BenchResult, SideBySide


def show(found: BenchResult) -> None:
    """Print frames or processes, then what follows from them."""
    if found.pipelines:
        _frames(found)
    if found.side_by_side:
        _processes(found)
    for advice in found.judgement.advice:
        output.say(f"note: {advice.what}; to change that: {advice.change}")
    if found.judgement.too_noisy:
        output.say("nothing is claimed: this machine is too noisy for a verdict")


def _frames(found: BenchResult) -> None:
    output.table(
        (
            *("model", "backend", "model ms>", "model, a second>", "ratio [99 %]>"),
            *("frame ms>", "frames a second>", "ratio [99 %]>", "model in a frame>", ""),
        ),
        [
            (
                Path(found.rows[one.row]["model"]).name,
                placed(found.rows[one.row]),
                milliseconds(_each_ns(one.model_per_s)),
                figure(one.model_per_s),
                interval(one.model_ratio),
                milliseconds(_each_ns(one.frames_per_s)),
                figure(one.frames_per_s),
                interval(one.ratio),
                _percent(one.share),
                found.rows[one.row]["error"] or found.rows[one.model_row]["error"] or "",
            )
            for one in found.pipelines
        ],
        f"around the model: {found.rows[0]['workload']}",
    )
    output.say("model: the calls that a frame makes of the engine, without the rest of the frame")
    if not found.judgement.too_noisy:
        for line in _gains(found):
            output.say(line)


def _gains(found: BenchResult) -> Iterator[str]:
    """Say of every plan but the first what its speed is worth in the frame."""
    for one in found.pipelines[1:]:
        if one.ratio is None or one.model_ratio is None:
            continue
        row = found.rows[one.row]
        name = f"{Path(row['model']).name} on {placed(row)}"
        yield f"{name}: the model is {_times(one.model_ratio)}, the pipeline {_times(one.ratio)}"


def _times(ratio: Interval) -> str:
    """Say how a time stands to the first one's."""
    if not ratio.clear:
        return "no other within the noise"
    return f"{1 / ratio.value:.2f}x as fast [{1 / ratio.high:.2f}, {1 / ratio.low:.2f}]"


def _percent(share: Interval | None) -> str:
    if share is None:
        return "-"
    return f"{100 * share.value:.0f} % [{100 * share.low:.0f}, {100 * share.high:.0f}]"


def _each_ns(per_second: float | None) -> float | None:
    return 1e9 / per_second if per_second else None


def _processes(found: BenchResult) -> None:
    output.table(
        (
            *("model", "backend", "side by side", "samples/s>", "time each, ratio [99 %]>"),
            *("run p50 ms>", "p99 ms>", "run, ratio [99 %]>", "USS MB>", ""),
        ),
        [
            (
                Path(found.rows[one.row]["model"]).name,
                placed(found.rows[one.row]),
                _layout(one),
                figure(one.per_second),
                interval(one.time_ratio),
                milliseconds(one.run_p50_ns),
                milliseconds(one.run_p99_ns),
                interval(one.latency_ratio or Interval(1.0, 1.0, 1.0)),
                megabytes(found.rows[one.row]["uss"]),
                found.rows[one.row]["error"] or "",
            )
            for one in found.side_by_side
        ],
    )
    output.say("ratio: to one process with all instances; all sessions are always busy")


def _layout(one: SideBySide) -> str:
    processes = count(one.processes, "process", "processes")
    each = "" if one.processes == 1 else " each"
    return f"{processes}, {count(one.instances, 'instance')}{each}"
