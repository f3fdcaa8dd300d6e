"""Find the ranges that static quantization needs, and say whether the data is enough."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import click

from ortune.cli import _calibrating, shared
from ortune.core.errors import BadSettings


@shared.verb(shared.Verb)
@shared.model
@shared.data
@click.option(
    "--observer",
    "observers",
    metavar="SPEC",
    multiple=True,
    help='How ranges are read off the data, such as "percentile(p=99.99)"; several to --compare.',
)
@click.option(
    "--quantizer",
    metavar="SPEC",
    help="Whose tensors are calibrated.  [default: int8-static, with the head]",
)
@click.option(
    "--samples", type=click.IntRange(min=1), help="Calibrate on so many, spread over the data."
)
@shared.augment
@shared.output("Write the ranges to this JSON file, for --ranges-from.")
@click.option(
    "--tensorrt-cache",
    type=shared.FILE,
    metavar="FILE",
    help="Write a TensorRT calibration cache of every float tensor.",
)
@click.option(
    "--tensorrt-version",
    metavar="X.Y.Z",
    help="The version that will read the cache; it takes no other's.  [default: 8.6.1]",
)
@click.option("--compare", is_flag=True, help="Try the observers, and score each.")
@shared.budget
@shared.labels
@shared.calibration
@click.option("--on", metavar="BACKEND", help="With --compare: what runs the models.  [cpu]")
@shared.custom_ops
@shared.force
def command(
    model: Path,
    data: str | None,
    observers: tuple[str, ...],
    quantizer: str | None,
    samples: int | None,
    augment: str | None,
    out: Path | None,
    tensorrt_cache: Path | None,
    tensorrt_version: str | None,
    compare: bool,
    budget: str | None,
    labels: str | None,
    calibration: str | None,
    on: str | None,
    custom_ops: tuple[str, ...],
    force: bool,
    json_to: str | None,
    verbose: bool,
) -> int:
    """Find the ranges of the tensors that static int8 needs, and say whether the data is enough.

    The ranges of two halves of the data are compared; inactive tensors are named. With
    --compare the observers are tried instead, each scored against the float model on samples that
    were not calibrated on.

    \b
    Example:
      ortune calibrate model.onnx --data samples/ -o ranges.json
      ortune calibrate model.onnx --data samples/ --compare --budget "top1>=base-0.01"
    """
    from ortune.cli.terminal import progress

    if data is None:
        raise BadSettings(
            "--data is missing: made-up samples have made-up ranges", fix="give --data SOURCE"
        )
    sink = progress.lines(verbose)
    if compare:
        _alone({"-o": out, "--tensorrt-cache": tensorrt_cache}, "needs one observer")
        from ortune.analysis.calibration_quality.compare_observers import (
            OBSERVERS,
            compare_observers,
        )

        ranking = compare_observers(
            model,
            data=data,
            labels=labels,
            calibration=calibration,
            budget=budget,
            observers=observers or OBSERVERS,
            quantizer=quantizer or "int8-static",
            samples=samples or 0,
            augment=augment or "",
            on=shared.equipped(on or "cpu", custom_ops),
            sink=sink,
        )
        shared.answer(json_to, ranking.result(), lambda: _calibrating.show_ranking(ranking))
        return 0
    given = {"--budget": budget, "--labels": labels, "--calibration": calibration, "--on": on}
    _alone(given, "is about --compare", fix="add --compare, or leave it out")
    if len(observers) > 1:
        raise BadSettings(
            f"{len(observers)} observers are given", fix="choose one, or add --compare"
        )
    if tensorrt_version and tensorrt_cache is None:
        raise BadSettings(
            "--tensorrt-version is about --tensorrt-cache", fix="give --tensorrt-cache FILE too"
        )
    for path in (out, tensorrt_cache):
        if path is not None:
            shared.free(path, force, model)
    if (
        out is not None
        and tensorrt_cache is not None
        and out.resolve() == tensorrt_cache.resolve()
    ):
        raise BadSettings(f"-o and --tensorrt-cache both write {out}", fix="give two names")
    from ortune.analysis.calibration_quality.calibrate import QUANTIZER, TENSORRT, calibrate
    from ortune.calibration.tensorrt_cache import number

    version = tensorrt_version or TENSORRT
    number(version)
    found = calibrate(
        model,
        data=data,
        observer=observers[0] if observers else None,
        quantizer=quantizer or QUANTIZER,
        samples=samples or 0,
        augment=augment or "",
        every=tensorrt_cache is not None,
        custom_ops=custom_ops,
        sink=sink,
    )
    if out is not None:
        found.save(out)
    if tensorrt_cache is not None:
        found.save_tensorrt(tensorrt_cache, version)
    result = found.result() | {"output": out, "tensorrt_cache": tensorrt_cache}
    shared.answer(
        json_to, result, lambda: _calibrating.show(found, out, tensorrt_cache, every=verbose)
    )
    return 0


def _alone(
    given: Mapping[str, object], why: str, fix: str = "leave it out, and calibrate with the best"
) -> None:
    """Refuse options that do not belong to this form of the verb."""
    for name, value in given.items():
        if value is not None:
            raise BadSettings(f"{name} {why}", fix=fix)
