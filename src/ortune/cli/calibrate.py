"""Find the ranges that static quantization needs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ortune.analysis.calibration_quality.requests import OBSERVERS, Calibrate, CompareObservers
from ortune.cli.main import DONE
from ortune.cli.terminal.command import given, verb, verbose
from ortune.cli.terminal.output import answer, say, table
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
    from ortune.quantizers.calibration.activity import Inactive

_ROWS = 10
_NAMED = 5


@request
class _Asked(CompareObservers):
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
    quantizer: Annotated[str, Option("SPEC", shown="int8-static, with the head")] = ""
    observers: Annotated[Sequence[str], Option("SPEC", "--observer")] = ()
    out: Out = None
    tensorrt_cache: File | None = None
    tensorrt_version: Annotated[str, Option("X.Y.Z")] = "8.6.1"
    compare: bool = False
    force: bool = False

    @property
    def makes(self) -> tuple[Path, ...]:
        """Both files of ranges."""
        return tuple(Path(one) for one in (self.out, self.tensorrt_cache) if one is not None)

    def alone(self, names: Sequence[str], why: str, fix: str) -> None:
        """Refuse options that do not belong to this form of the verb.

        Raises:
            BadSettings: One of these fields is given.
        """
        for name in names:
            if given(name):
                word = "-o" if name == "out" else f"--{name.replace('_', '-')}"
                raise BadSettings(f"{word} {why}", fix=fix)

    def one(self) -> Calibrate:
        """Return the request without --compare.

        Raises:
            BadSettings: An option is about --compare.
        """
        names = ("budget", "labels", "calibration", "on")
        self.alone(names, "is about --compare", "add --compare, or leave it out")
        if len(self.observers) > 1:
            raise BadSettings(
                f"observers given: {len(self.observers)}", fix="choose one, or add --compare"
            )
        if given("tensorrt_version") and self.tensorrt_cache is None:
            raise BadSettings(
                "--tensorrt-version is about --tensorrt-cache",
                fix="give --tensorrt-cache FILE too",
            )
        shared = "samples augment sequence state shapes out tensorrt_cache tensorrt_version"
        return Calibrate(
            self.model,
            data=self.source,
            observer=next(iter(self.observers), None),
            quantizer=self.quantizer or Calibrate.quantizer,
            **{name: getattr(self, name) for name in f"{shared} force custom_ops sink".split()},
        )


@verb(_Asked)
def command(asked: _Asked) -> int:
    """Show the ranges, or the ranking of observers."""
    if asked.compare:
        names = ("out", "tensorrt_cache")
        asked.alone(names, "needs one observer", "leave it out, and calibrate with the best")
        from ortune.analysis.calibration_quality import compare_observers

        ranking = compare_observers.run(
            replace(
                asked,
                observers=asked.observers or OBSERVERS,
                quantizer=asked.quantizer or "int8-static",
            )
        )
        answer(ranking.result(), lambda: _show_ranking(ranking))
        return DONE
    wanted = asked.one()
    from ortune.analysis.calibration_quality import calibrate

    found = calibrate.run(wanted)
    out, cache = asked.out, asked.tensorrt_cache
    result = found.result() | {"output": out, "tensorrt_cache": cache}
    answer(result, lambda: _show(found, out, cache, every=verbose()))
    return DONE


def _show(
    found: Calibration, out: str | Path | None, cache: str | Path | None, *, every: bool
) -> None:
    """Print the tensors that the data says least surely, then what follows."""
    doubtful = sorted(found.tensors, key=lambda tensor: -(tensor.apart or 0.0))
    shown = doubtful if every else doubtful[:_ROWS]
    table(
        (
            "tensor",
            "made by",
            "low>",
            "high>",
            "int8 step>",
            "halves apart, steps>",
            "% of range>",
        ),
        [_cells(tensor) for tensor in shown],
    )
    left = len(doubtful) - len(shown)
    rest = f"; the {len(shown)} most doubtful are shown (-v shows all)" if left else ""
    copies = f", copies by {found.augment} included" if found.augment else ""
    say(
        f"{wording.count(len(found.tensors), 'tensor')} by {found.observer} "
        f"on {wording.count(found.samples, 'sample')}{copies}{rest}"
    )
    if found.tensors:
        widest = max(found.tensors, key=lambda tensor: tensor.step)
        say(f"widest: {widest.name}, {widest.low:.4g} to {widest.high:.4g}")
    unseen = [*found.unanswered, *(one.tensor for one in found.idle if not one.seen)]
    if unseen:
        names = _some(list(dict.fromkeys(unseen)))
        say(f"never run on this data (a branch that was not taken): {names}")
    zero = [one for one in found.idle if one.seen and one.value == 0]
    if zero:
        say(f"never activated, 0 on every sample: {_some([_by(one) for one in zero])}")
    fixed = [one for one in found.idle if one.seen and one.value]
    if fixed:
        texts = [f"{_by(one)} = {one.value:.4g}" for one in fixed]
        say(f"constant on this data: {_some(texts)}")
    partly = [one for one in found.idle if one.channels]
    if partly:
        texts = [f"{_by(one)}: {len(one.channels)} of {one.of}" for one in partly]
        say(f"channels that were 0 on every sample: {_some(texts)}")
    say(str(found.stability))
    if found.stability.enough is False:
        say("this is said of ranges; `--compare` measures what they cost in accuracy")
    for path, what in ((out, "ranges"), (cache, "TensorRT cache")):
        if path is not None:
            say(f"{what}: {path}")


def _cells(tensor: TensorRange) -> tuple[str, ...]:
    apart = "-" if tensor.apart is None else f"{tensor.apart:.1f}"
    share = "-" if tensor.apart is None else f"{tensor.apart / 2.55:.1f}"
    low, high, step = (f"{value:.4g}" for value in (tensor.low, tensor.high, tensor.step))
    return tensor.name, tensor.op or "input", low, high, step, apart, share


def _by(one: Inactive) -> str:
    return f"{one.tensor} ({one.op or 'input'})"


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _show_ranking(found: ObserverRanking) -> None:
    """Print a line an observer, and whether one of them is the best."""
    metric = next((row.score.metric for row in found.rows if row.score), "score")
    table(
        ("observer", "calibrated on", f"{metric}>", "bound>", "budget", "SNR dB>", "s>", ""),
        [_line(row) for row in found.rows],
    )
    base = next((row.score.base for row in found.rows if row.score), math.nan)
    say(
        f"the float model: {metric} {base:.4g}; budget {found.budget}; "
        f"{wording.count(found.calibrated, 'sample')} calibrated on, {found.scored} scored"
    )
    if found.overlap:
        say("the scored samples are those that were calibrated on: scores are optimistic")
    equal = [_name(row) for row in found.rows if row.standing == "not worse"]
    if found.best:
        say(f"best: {found.best}, by {found.by}, beyond the noise (95 %)")
    elif len(equal) > 1:
        say(f"no best beyond the noise: {_some(equal)} cannot be distinguished")


def _line(row: ObserverScore) -> tuple[str, ...]:
    copies = f"samples and {row.augment}" if row.augment else "samples"
    score = row.score
    if score is None:
        return row.observer, copies, "-", "-", "", "-", f"{row.seconds:.1f}", row.error
    snr = "-" if row.snr is None else f"{row.snr:.1f}"
    said = "" if row.standing == "not worse" else row.standing
    return (
        row.observer,
        copies,
        f"{score.value:.4g}",
        wording.bound(score),
        str(score.verdict or ""),
        snr,
        f"{row.seconds:.1f}",
        said,
    )


def _name(row: ObserverScore) -> str:
    return f"{row.observer} with {row.augment}" if row.augment else row.observer
