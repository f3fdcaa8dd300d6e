"""A part of a model in a file of its own, with its inputs recorded in real runs."""

from __future__ import annotations

import math
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.lib import format as npy
from numpy.typing import NDArray

from ortune.analysis.verification.requests import Extract
from ortune.backends.cpu import Cpu
from ortune.core.backend import Backend
from ortune.core.errors import BadData, BadModel
from ortune.core.event import Progress
from ortune.core.facts import TensorSpec
from ortune.core.outputs import empty, free
from ortune.core.request import verb
from ortune.core.result import Result
from ortune.data import feeds, stream
from ortune.data.sources import Source
from ortune.graph.analysis.facts import weight_bytes
from ortune.graph.io import file
from ortune.graph.ir import spec
from ortune.graph.parts.extract import begins, crossings
from ortune.graph.parts.extract import extract as cut
from ortune.graph.parts.probed import watched
from ortune.measurement.process import WorkerFailed, ask_once, lone, outputs
from ortune.search.recipe.compare import ExpectedOutputs, decibels, difference

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
    head = cut(model, (), made)
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


_CHECKED = 4
"""Samples on which the piece is held against the whole."""


@dataclass(frozen=True, repr=False)
class Extracted(Result):
    """A piece of a model.

    Attributes:
        path: Its file.
        inputs: What it takes.
        outputs: What it makes.
        added: Those of its inputs that nobody named: ways round the named ones lead to them.
        ways: Tensors by which these ways join what depends on the named ones.
        nodes: Nodes of the piece, bodies included.
        of_nodes: Nodes of the model.
        weight_bytes: Of the piece.
        samples: Folder of recorded inputs, one ``.npz`` a sample; None when none were asked for.
        count: Samples in it.
    """

    headline = ("path", "nodes", "of_nodes", "weight_bytes", "samples", "count")

    path: Path
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    added: tuple[str, ...]
    ways: tuple[str, ...]
    nodes: int
    of_nodes: int
    weight_bytes: int
    samples: Path | None = None
    count: int = 0


def run(asked: Extract) -> Extracted:
    """Write the piece to a file; see `ortune.graph.parts.extract`."""
    out = free(asked.out, asked.force, asked.model)
    if asked.data is not None:
        empty(asked.samples_folder, asked.force)
    loaded = file.load(asked.model)
    if asked.data is None:
        piece = cut(loaded, asked.inputs, asked.outputs)
        file.save(piece, out)
        return _described(loaded, piece, asked.inputs, out)
    with tempfile.TemporaryDirectory(prefix="ortune-") as name:
        run = _Run(loaded, asked.data, asked.limit, Path(name), asked.custom_ops)
        asked.sink(Progress("running the whole model", 0, 2))
        try:
            piece = cut(loaded, asked.inputs, asked.outputs, runtime=run.types)
            recorded = run.inputs(piece)
            asked.sink(Progress("comparing the piece with it", 1, 2))
            run.compare(piece, recorded)
        except WorkerFailed as error:
            why = error.failure
            text = f"the model does not run: {why.reason}"
            raise BadModel(text, fix=why.fix or why.reproduce) from None
        file.save(piece, out)
        folder = asked.samples_folder
        rows = stream.Stream(recorded)
        write_samples(rows, folder, {"label": run.feeds.labels, "group": run.feeds.groups})
    return _described(loaded, piece, asked.inputs, out, folder, len(rows))


extract = verb(Extract, run)


class _Run:
    """Runs of the whole model, each in a worker of its own."""

    def __init__(
        self, model: ir.Model, data: Source, limit: int, folder: Path, custom_ops: tuple[str, ...]
    ) -> None:
        self._model, self._folder = model, folder
        self._backend = Cpu(level="disabled", custom_ops=custom_ops)
        specs = spec.inputs(model)
        self.feeds = feeds.load(data, specs, folder / "data")
        self._count = min(limit or self.feeds.count, self.feeds.count)
        self._given = [one.name for one in specs]

    def types(self, names: list[str]) -> Mapping[str, tuple[str, Sequence[int]]]:
        """Return dtype and shape of values on the first sample; the last rung of the ladder."""
        with watched(self._model, self._folder) as files:
            path, found, _ = files.showing(names)
            job = lone(path, self._backend, self.feeds.stream, self._folder, "types")
            shapes = ask_once(job, ("describe", {}))[0]["shapes"]
        return {name: tuple(shapes[name]) for name in found if name in shapes}

    def inputs(self, piece: ir.Model) -> Path:
        """Run the model up to where the piece begins; return the stream of what it takes."""
        wanted = spec.inputs(piece)
        for one in wanted:
            if "(" in one.dtype:
                raise BadData(
                    f"'{one.name}' is {one.dtype}, not an array",
                    fix="cut elsewhere, or without --data",
                )
        return self._values([one.name for one in wanted], "recorded", self._count)

    def compare(self, piece: ir.Model, recorded: Path) -> None:
        """Hold the piece against the whole on the first samples.

        Raises:
            BadModel: It does not run, or its outputs differ.
        """
        indices = tuple(range(min(_CHECKED, self._count)))
        whole = self._values([one.name for one in spec.outputs(piece)], "whole", len(indices))
        found = ExpectedOutputs(recorded, indices, whole, self._backend.custom_ops)
        with watched(piece, self._folder) as files:
            path, _, _ = files.showing([])
            why = difference(path, found, self._folder)
        if why is not None:
            raise BadModel(
                f"the piece's outputs differ from the whole model's: {why}",
                fix="cut elsewhere; operators that draw random numbers differ in every run",
            )

    def _values(self, names: Sequence[str], stem: str, count: int) -> Path:
        """Run the model up to some tensors; return the stream of their values."""
        self._demand_reached([name for name in names if name not in self._given])
        path = (self._folder / f"{stem}.stream").resolve()
        values(self._model, names, self.feeds.stream, range(count), self._backend, path)
        return path

    def _demand_reached(self, names: Sequence[str]) -> None:
        """Refuse what a Loop or Scan gives its body: no run of the whole shows it.

        Raises:
            BadData: There is such a tensor.
        """
        made = {v.name for node in self._model.graph.all_nodes() for v in node.outputs}
        for name in names:
            if name not in made:
                raise BadData(
                    f"'{name}' is what a Loop or Scan gives its body: it is not in the samples",
                    fix="cut outside of the body, or without --data",
                )
        takes = [one.name for one in spec.inputs(cut(self._model, (), names))] if names else []
        if lost := [name for name in takes if name not in self._given]:
            raise BadData(
                f"the piece depends on '{lost[0]}', which a Loop or Scan gives its body",
                fix="cut outside of the body, or without --data",
            )


def _described(
    model: ir.Model,
    piece: ir.Model,
    named: Sequence[str],
    out: Path,
    samples: Path | None = None,
    count: int = 0,
) -> Extracted:
    inputs = spec.inputs(piece)
    begun = begins(model, named)
    return Extracted(
        out,
        inputs,
        spec.outputs(piece),
        tuple(one.name for one in inputs if named and one.name not in begun),
        tuple(crossings(piece, begun)),
        sum(1 for _ in piece.graph.all_nodes()),
        sum(1 for _ in model.graph.all_nodes()),
        weight_bytes(piece),
        samples,
        count,
    )
