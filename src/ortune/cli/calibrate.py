"""Find the ranges that static quantization needs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ortune.analysis.calibration_quality.requests import OBSERVERS, Calibrate, CompareObservers
from ortune.cli.main import DONE
from ortune.cli.terminal.command import is_given, is_verbose, make_command, refuse_options
from ortune.cli.terminal.output import print_result, print_table, print_text
from ortune.core import wording
from ortune.core.errors import BadSettings
from ortune.core.fields import File, Option, Out
from ortune.core.request import request

if TYPE_CHECKING:
    from ortune.analysis.calibration_quality.calibrate import Calibration, TensorRange
    from ortune.analysis.calibration_quality.compare_observers import (
        ObserverRanking,
        ObserverScore,
    )
    from ortune.quantizers.calibration.calibrate import Inactive

_ROWS = 10
_NAMED = 5


@request
class _Options(CompareObservers):
    """Find the ranges of the tensors that static int8 needs, and say whether the data is enough.

    The ranges of two halves of the data are compared; inactive channels are named. With --compare
    the observers are tried instead, each scored against the float model on samples that were not
    calibrated on.

    Example:
        ortune calibrate model.onnx --data samples/ -o ranges.json
        ortune calibrate model.onnx --data samples/ --compare --budget "top1>=base-0.01"

    Attributes:
        observers: How ranges are read off the data, such as "percentile(p=99.99)"; several to
            --compare.
        out: Write the ranges to this JSON file, for --ranges-from.
        tensorrt_cache: Write a TensorRT calibration cache of every float tensor.
        tensorrt_version: The version that will read the cache; it takes no other's.
        compare: Try the observers, and score each.
        on: With --compare: what runs the models.
        force: Overwrite an existing output.
    """

    _: KW_ONLY
    step: Annotated[str, Option("SPEC", shown="int8-static, with the head")] = ""
    observers: Annotated[Sequence[str], Option("SPEC", "--observer")] = ()
    out: Out = None
    tensorrt_cache: File | None = None
    tensorrt_version: Annotated[str, Option("X.Y.Z")] = "8.6.1"
    compare: bool = False
    force: bool = False

    @property
    def makes(self) -> tuple[Path, ...]:
        """Both files of ranges."""
        return tuple(Path(path) for path in (self.out, self.tensorrt_cache) if path is not None)


@make_command(_Options)
def command(options: _Options) -> int:
    """Show the ranges, or the ranking of observers."""
    if options.compare:
        refuse_options(
            ("out", "tensorrt_cache"),
            "cannot be combined with --compare",
            "leave it out, then calibrate with the best observer",
        )
        from ortune.analysis.calibration_quality import compare_observers

        ranking = compare_observers.run(
            replace(
                options,
                observers=options.observers or OBSERVERS,
                step=options.step or "int8-static",
            )
        )
        print_result(ranking.result(), lambda: _print_ranking(ranking))
        return DONE
    alone = ("budget", "labels", "calibration", "on")
    refuse_options(alone, "needs --compare", "add --compare, or leave it out")
    if len(options.observers) > 1:
        raise BadSettings(
            f"observers given: {len(options.observers)}", fix="choose one, or add --compare"
        )
    if is_given("tensorrt_version") and options.tensorrt_cache is None:
        raise BadSettings(
            "--tensorrt-version needs --tensorrt-cache", fix="add --tensorrt-cache FILE"
        )
    shared = "samples augment sequence state shapes out tensorrt_cache tensorrt_version"
    calibrate_request = Calibrate(
        options.model,
        data=options.source,
        observer=next(iter(options.observers), None),
        step=options.step or Calibrate.step,
        **{name: getattr(options, name) for name in f"{shared} force custom_ops sink".split()},
    )
    from ortune.analysis.calibration_quality import calibrate

    calibration = calibrate.run(calibrate_request)
    out, cache = options.out, options.tensorrt_cache
    result = calibration.result() | {"output": out, "tensorrt_cache": cache}
    print_result(
        result, lambda: _print_calibration(calibration, out, cache, show_all=is_verbose())
    )
    return DONE


def _print_calibration(
    calibration: Calibration, out: str | Path | None, cache: str | Path | None, *, show_all: bool
) -> None:
    """Print the tensors that the data says least surely, then what follows."""
    doubtful = sorted(calibration.tensors, key=lambda tensor: -(tensor.apart or 0.0))
    shown = doubtful if show_all else doubtful[:_ROWS]
    print_table(
        (
            "tensor",
            "made by",
            "low>",
            "high>",
            "int8 step>",
            "halves apart, steps>",
            "% of range>",
        ),
        [_make_tensor_cells(tensor) for tensor in shown],
    )
    hidden = len(doubtful) - len(shown)
    hint = f"; the {len(shown)} most doubtful are shown (-v shows all)" if hidden else ""
    copies = f", copies by {calibration.augment} included" if calibration.augment else ""
    print_text(
        f"{wording.format_count(len(calibration.tensors), 'tensor')} by {calibration.observer} "
        f"on {wording.format_count(calibration.samples, 'sample')}{copies}{hint}"
    )
    if calibration.tensors:
        widest = max(calibration.tensors, key=lambda tensor: tensor.step)
        print_text(f"widest: {widest.name}, {widest.low:.4g} to {widest.high:.4g}")
    unseen = [
        *calibration.unanswered,
        *(channel.tensor for channel in calibration.idle if not channel.seen),
    ]
    if unseen:
        names = wording.join_names(list(dict.fromkeys(unseen)), _NAMED)
        print_text(f"never run on this data (a branch that was not taken): {names}")
    zero = [channel for channel in calibration.idle if channel.seen and channel.value == 0]
    if zero:
        print_text(
            "never activated, 0 on every sample: "
            f"{wording.join_names([_describe_producer(channel) for channel in zero], _NAMED)}"
        )
    fixed = [channel for channel in calibration.idle if channel.seen and channel.value]
    if fixed:
        texts = [f"{_describe_producer(channel)} = {channel.value:.4g}" for channel in fixed]
        print_text(f"constant on this data: {wording.join_names(texts, _NAMED)}")
    partly = [channel for channel in calibration.idle if channel.channels]
    if partly:
        texts = [
            f"{_describe_producer(channel)}: {len(channel.channels)} of {channel.of}"
            for channel in partly
        ]
        print_text(f"channels that were 0 on every sample: {wording.join_names(texts, _NAMED)}")
    print_text(str(calibration.stability))
    if calibration.stability.enough is False:
        print_text("this judges the ranges alone; `--compare` measures their effect on accuracy")
    for path, label in ((out, "ranges"), (cache, "TensorRT cache")):
        if path is not None:
            print_text(f"{label}: {path}")


def _make_tensor_cells(tensor: TensorRange) -> tuple[str, ...]:
    apart = "-" if tensor.apart is None else f"{tensor.apart:.1f}"
    share = "-" if tensor.apart is None else f"{tensor.apart / 2.55:.1f}"
    low, high, step = (f"{value:.4g}" for value in (tensor.low, tensor.high, tensor.step))
    return tensor.name, tensor.op or "input", low, high, step, apart, share


def _describe_producer(inactive: Inactive) -> str:
    return f"{inactive.tensor} ({inactive.op or 'input'})"


def _print_ranking(ranking: ObserverRanking) -> None:
    """Print a line an observer, and whether one of them is the best."""
    from ortune.analysis.calibration_quality.compare_observers import format_row_name

    metric = next((row.score.metric for row in ranking.rows if row.score), "score")
    metric = wording.shorten_groups(metric)
    print_table(
        ("observer", "calibrated on", f"{metric}>", "bound>", "budget", "SNR dB>", "s>", ""),
        [_make_observer_cells(row) for row in ranking.rows],
    )
    base = next((row.score.base for row in ranking.rows if row.score), math.nan)
    budget = wording.shorten_groups(str(ranking.budget))
    print_text(
        f"the float model: {metric} {base:.4g}; budget {budget}; "
        f"calibrated on {wording.format_count(ranking.calibrated, 'sample')}, scored on "
        f"{ranking.scored}"
    )
    if ranking.overlap:
        print_text("the scored samples were also calibrated on: scores are optimistic")
    equal = [format_row_name(row) for row in ranking.rows if row.standing == "not worse"]
    if ranking.best:
        print_text(f"best: {ranking.best}, by {ranking.by}, beyond noise (95 %)")
    elif len(equal) > 1:
        print_text(f"no clear best: {wording.join_names(equal, _NAMED)} are tied (within noise)")


def _make_observer_cells(row: ObserverScore) -> tuple[str, ...]:
    copies = f"samples and {row.augment}" if row.augment else "samples"
    score = row.score
    if score is None:
        return row.observer, copies, "-", "-", "", "-", f"{row.seconds:.1f}", row.error
    snr = "-" if row.snr is None else f"{row.snr:.1f}"
    standing = "" if row.standing == "not worse" else row.standing
    return (
        row.observer,
        copies,
        f"{score.value:.4g}",
        wording.format_bound(score),
        str(score.verdict or ""),
        snr,
        f"{row.seconds:.1f}",
        standing,
    )
