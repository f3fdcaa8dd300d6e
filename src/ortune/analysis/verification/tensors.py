"""Values inside a model on real samples, as a stream: some tensors at a time."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.lib import format as npy
from numpy.typing import NDArray

from ortune.core.backend import Backend
from ortune.data import stream
from ortune.measurement.outputs import outputs
from ortune.measurement.process import lone
from ortune.model.graph import spec
from ortune.model.parts.extract import extract
from ortune.model.parts.probed import watched
from ortune.recipe.compare import decibels

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
            rows = outputs(job, range(len(indices)), folder / "found.stream")

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
                pairs = [({name: a[name]}, {name: b[name]}) for a, b in zip(one, two, strict=True)]
                if all(_alike(a[name], b[name]) for a, b in pairs):
                    snr = decibels(*zip(*pairs, strict=True))
                    found[name] = float("-inf") if math.isnan(snr) else snr
    return found


def _alike(one: NDArray[Any], two: NDArray[Any]) -> bool:
    return one.shape == two.shape and one.dtype == two.dtype


def write_samples(
    rows: stream.Stream,
    folder: Path,
    beside: Mapping[str, Sequence[Any] | None],
    *,
    digits: int = 6,
) -> None:
    """Write one ``.npz`` a sample into a folder; files of an earlier run go.

    Args:
        beside: Name -> one value a sample, stored too unless a tensor has that name: labels, say.
        digits: Of the numbers that name the files.
    """
    folder.mkdir(exist_ok=True)
    for old in folder.glob("[0-9]*.npz"):
        old.unlink()
    for index, row in enumerate(rows):
        arrays: dict[str, NDArray[Any]] = dict(row)
        for name, found in beside.items():
            if found is not None and name not in arrays:
                arrays[name] = np.asarray(found[index])
        write_npz(folder / f"{index:0{digits}}.npz", arrays)


def write_npz(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write arrays that may have any name; NumPy's own `savez` reserves some."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                npy.write_array(member, array, allow_pickle=False)
