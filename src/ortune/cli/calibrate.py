"""Find the ranges that static quantization needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, replace
from pathlib import Path
from typing import Annotated

from ortune.analysis.calibration_quality.requests import OBSERVERS, Calibrate, CompareObservers
from ortune.cli.main import DONE
from ortune.cli.terminal.command import given, verb, verbose
from ortune.cli.terminal.output import answer
from ortune.core.errors import BadSettings
from ortune.core.fields import File, Option, Out
from ortune.core.request import request


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
                f"observers given: {len(self.observers)}",
                fix="choose one, or add --compare",
            )
        if given("tensorrt_version") and self.tensorrt_cache is None:
            raise BadSettings(
                "--tensorrt-version is about --tensorrt-cache",
                fix="give --tensorrt-cache FILE too",
            )
        return Calibrate(
            self.model,
            data=self.source,
            observer=next(iter(self.observers), None),
            quantizer=self.quantizer or Calibrate.quantizer,
            samples=self.samples,
            augment=self.augment,
            sequence=self.sequence,
            state=self.state,
            shapes=self.shapes,
            out=self.out,
            tensorrt_cache=self.tensorrt_cache,
            tensorrt_version=self.tensorrt_version,
            force=self.force,
            custom_ops=self.custom_ops,
            sink=self.sink,
        )


@verb(_Asked)
def command(asked: _Asked) -> int:
    """Show the ranges, or the ranking of observers."""
    from ortune.cli.terminal import calibrate_tables as tables

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
        answer(ranking.result(), lambda: tables.show_ranking(ranking))
        return DONE
    wanted = asked.one()
    from ortune.analysis.calibration_quality import calibrate

    found = calibrate.run(wanted)
    out, cache = asked.out, asked.tensorrt_cache
    result = found.result() | {"output": out, "tensorrt_cache": cache}
    answer(result, lambda: tables.show(found, out, cache, every=verbose()))
    return DONE
