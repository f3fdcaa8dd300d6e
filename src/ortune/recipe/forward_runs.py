"""Steps that decide by forward runs of the model: what a choice costs the outputs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortune.core.errors import Refused
from ortune.core.event import Progress, Sink
from ortune.core.observer import Ranges
from ortune.core.session import Tensors
from ortune.core.step import Quantizer
from ortune.data.stream import Stream, write
from ortune.measurement.outputs import outputs
from ortune.measurement.process import WorkerFailed
from ortune.metrics.snr import Snr
from ortune.model.io import file
from ortune.recipe import compare
from ortune.recipe.material import Material

_RUN = 2
"""Samples that are run with every choice."""


def decided(
    step: Quantizer, model: ir.Model, ranges: Ranges, material: Material, folder: Path, sink: Sink
) -> Quantizer:
    """Have a step decide by forward runs on a few of the samples, where it wants to.

    Raises:
        Refused: The model does not run on them.
        OrtuneError: The step cannot decide.
    """
    feeds, indices = material.feeds, material.calibration[:_RUN]
    if feeds is None or not indices:
        return step.refined(model, ranges, None)
    stream, ops = feeds.stream, material.custom_ops

    def noise(switched: ir.Model, values: Sequence[Tensors]) -> Sequence[float]:
        sink(Progress(f"{step.name()}: forward runs of {len(values) - 1} choices"))
        with TemporaryDirectory(dir=folder, prefix="noise-") as name:
            here, samples = Path(name), Stream(stream)
            path = file.save(switched, here / "switched.onnx", durable=False)
            each = ({**samples[index], **more} for index in indices for more in values)
            count = write(here / "switched.stream", each)
            job = compare.job(path, here / "switched.stream", here, ops)
            powers, first = np.zeros((len(values), 2)), dict[str, NDArray[Any]]()
            for place, answer in enumerate(outputs(job, range(count), here / "outputs.stream")):
                first = {**answer} if place % len(values) == 0 else first
                powers[place % len(values)] += Snr().record(first, answer, None)
        with np.errstate(divide="ignore", invalid="ignore"):
            found = powers[:, 1] / powers[:, 0]
        return [float(one) for one in np.nan_to_num(found, nan=np.inf)]

    try:
        return step.refined(model, ranges, noise)
    except WorkerFailed as error:
        raise Refused(
            f"{step}: the model does not run on the samples: {error.failure.reason}",
            fix="run `ortune inspect` on it",
        ) from None
