"""Values inside a model on real samples, as a stream: some tensors at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortune.core.backend import Backend
from ortune.data import stream
from ortune.measurement.process import ask_once, lone
from ortune.model import spec
from ortune.model.extract import extract
from ortune.model.watched import watched

AT_ONCE = 24
"""Tensors whose values are on disk at a time."""


def values(
    model: ir.Model,
    names: Sequence[str],
    samples: Path,
    indices: Sequence[int],
    backend: Backend,
    out: Path,
) -> stream.Stream:
    """Write the values of tensors of the main graph to the stream `out`, one entry an index.

    Args:
        names: Tensors that nodes make, or inputs.
        samples: Stream of the model's inputs.

    Raises:
        WorkerFailed: The model does not run up to there.
        BadModel: There is no such tensor.
    """
    given = {one.name for one in spec.inputs(model)}
    made = [name for name in names if name not in given]
    source = stream.Stream(samples)
    if not made:
        stream.write(out, ({n: source[i][n] for n in names} for i in indices))
        return stream.Stream(out)
    head = extract(model, (), made)
    takes = [one.name for one in spec.inputs(head)]
    with TemporaryDirectory(prefix="ortune-") as name:
        folder = Path(name)
        fed = folder / "fed.stream"
        stream.write(fed, ({n: source[i][n] for n in takes} for i in indices))
        with watched(head, folder) as files:
            path, _, _ = files.showing([])
            job = lone(path, backend, fed, folder, "values")
            found = (folder / "found.stream").resolve()
            order = list(range(len(indices)))
            ask_once(job, ("score", {"indices": order, "metrics": [], "save": str(found)}))
        rows = stream.Stream(found)

        def joined() -> Iterator[dict[str, NDArray[Any]]]:
            for place, index in enumerate(indices):
                every = {**source[index], **rows[place]}
                yield {one: every[one] for one in names}

        stream.write(out, joined())
    return stream.Stream(out)


def closeness(
    models: tuple[ir.Model, ir.Model],
    names: Sequence[str],
    samples: Path,
    indices: Sequence[int],
    backends: tuple[Backend, Backend],
) -> dict[str, float]:
    """Return the SNR, dB, of every tensor of the second model against the first's.

    Tensors of another shape in one of them are left out. Some are compared at a time, so that disk
    and memory do not grow with the model.
    """
    found: dict[str, float] = {}
    for start in range(0, len(names), AT_ONCE):
        part = names[start : start + AT_ONCE]
        with TemporaryDirectory(prefix="ortune-") as folder:
            one, two = (
                values(model, part, samples, indices, backend, Path(folder) / f"{side}.stream")
                for side, (model, backend) in enumerate(zip(models, backends, strict=True))
            )
            for name in part:
                pairs = [(one[i][name], two[i][name]) for i in range(len(indices))]
                if all(a.shape == b.shape and a.dtype == b.dtype for a, b in pairs):
                    found[name] = _decibels(pairs)
    return found


def _decibels(pairs: Sequence[tuple[NDArray[Any], NDArray[Any]]]) -> float:
    signal = noise = 0.0
    for one, two in pairs:
        wide = one.astype(np.float64)
        signal += float(np.square(wide).sum())
        noise += float(np.square(wide - two.astype(np.float64)).sum())
    if not np.isfinite(noise):
        return float("-inf")
    if not noise:
        return float("inf")
    return 10 * float(np.log10(signal / noise)) if signal else float("-inf")
