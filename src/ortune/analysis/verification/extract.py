"""A part of a model in a file of its own, with its inputs recorded in real runs."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortune.analysis.verification.requests import Extract
from ortune.backends.cpu import Cpu
from ortune.core import hub
from ortune.core.backend import Backend
from ortune.core.errors import BadData, BadModel
from ortune.core.event import Progress
from ortune.core.facts import TensorSpec
from ortune.core.outputs import check_output_file, check_output_folder
from ortune.core.request import make_verb
from ortune.core.result import Result
from ortune.core.temporary_folder import open_temporary_folder
from ortune.data import feeds, stream
from ortune.data.arrays import write_npz
from ortune.graph.analysis.facts import count_weight_bytes
from ortune.graph.io import file
from ortune.graph.ir import edit
from ortune.graph.parts.extract import extract as cut
from ortune.graph.parts.extract import find_crossings, list_start_names
from ortune.graph.parts.probed import open_probe
from ortune.measurement.process import WorkerFailed, ask_once, compute_outputs, single_model_job
from ortune.search.recipe.compare import ExpectedOutputs, compute_snr_db, find_difference

AT_ONCE = 24
"""Tensors whose values are on disk at a time."""


def write_tensor_values(
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
    input_names = {tensor.name for tensor in edit.list_inputs(model)}
    computed_names = [name for name in names if name not in input_names]
    source = stream.Stream(samples)
    if not computed_names:
        stream.write_stream(out, ({n: source[i][n] for n in names} for i in indices))
        return stream.Stream(out)
    head = cut(model, (), computed_names)
    takes = [tensor.name for tensor in edit.list_inputs(head)]
    with open_temporary_folder() as folder:
        fed = folder / "fed.stream"
        stream.write_stream(fed, ({n: source[i][n] for n in takes} for i in indices))
        with open_probe(head, folder) as files:
            path, _, _ = files.write_probe([])
            job = single_model_job(path, backend, fed, folder, "values")
            rows = compute_outputs(job, range(len(indices)), folder / "found.stream")

        def iterate_samples() -> Iterator[dict[str, NDArray[Any]]]:
            for place, index in enumerate(indices):
                arrays = {**source[index], **rows[place]}
                yield {tensor: arrays[tensor] for tensor in names}

        stream.write_stream(out, iterate_samples())
    return stream.Stream(out)


def compute_tensor_snr(
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
    snr_by_tensor: dict[str, float] = {}
    for start in range(0, len(names), AT_ONCE):
        part = names[start : start + AT_ONCE]
        with open_temporary_folder() as folder:
            streams = (folder / "0.stream", folder / "1.stream")
            expected, actual = (
                write_tensor_values(model, part, samples, indices, backend, out)
                for model, backend, out in zip(models, backends, streams, strict=True)
            )
            for name in part:
                pairs = [
                    ({name: a[name]}, {name: b[name]})
                    for a, b in zip(expected, actual, strict=True)
                ]
                if all(
                    a[name].shape == b[name].shape and a[name].dtype == b[name].dtype
                    for a, b in pairs
                ):
                    snr = compute_snr_db(*zip(*pairs, strict=True))
                    snr_by_tensor[name] = float("-inf") if math.isnan(snr) else snr
    return snr_by_tensor


def write_sample_files(
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
        for name, column in beside.items():
            if column is not None and name not in arrays:
                arrays[name] = np.asarray(column[index])
        write_npz(folder / f"{index:0{digits}}.npz", arrays)


_CHECKED = 4
"""Samples on which the piece is held against the whole."""


@dataclass(frozen=True, repr=False)
class ExtractedPart(Result):
    """A piece of a model.

    Attributes:
        added: Those of its inputs that nobody named: ways round the named ones lead to them.
        ways: Tensors by which these ways join what depends on the named ones.
        samples: Folder of recorded inputs, one ``.npz`` a sample; None when none were asked for.
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


def run(request: Extract) -> ExtractedPart:
    """Write the piece to a file; see `ortune.graph.parts.extract`."""
    out = check_output_file(request.out, request.force, request.model)
    if request.data is not None:
        check_output_folder(request.samples_folder, request.force)
    loaded = file.load(request.model)
    if request.data is None:
        piece = cut(loaded, request.inputs, request.outputs)
        file.save(piece, out)
        return _describe_piece(loaded, piece, request.inputs, out)
    with open_temporary_folder() as name:
        run = _Run(loaded, request, Path(name))
        request.sink(Progress("running the whole model", 0, 2))
        try:
            piece = cut(loaded, request.inputs, request.outputs, runtime=run.read_types)
            recorded = run.record_inputs(piece)
            request.sink(Progress("comparing the piece with it", 1, 2))
            run.compare_piece(piece, recorded)
        except WorkerFailed as error:
            why = error.failure
            text = f"the model does not run: {why.reason}"
            raise BadModel(text, fix=why.fix or why.reproduce) from None
        file.save(piece, out)
        folder = request.samples_folder
        rows = stream.Stream(recorded)
        write_sample_files(rows, folder, {"label": run.feeds.labels, "group": run.feeds.groups})
    return _describe_piece(loaded, piece, request.inputs, out, folder, len(rows))


extract = make_verb(Extract, run)


class _Run:
    """Runs of the whole model, each in a worker of its own."""

    def __init__(self, model: ir.Model, request: Extract, folder: Path) -> None:
        assert request.data is not None
        self._model, self._folder = model, folder
        self._backend = Cpu(level="disabled", custom_ops=request.custom_ops)
        specs = edit.list_inputs(model)
        settings = hub.find_folder(request.model)
        self.feeds = feeds.load_feeds(request.data, specs, folder / "data", settings=settings)
        self._count = min(request.limit or self.feeds.count, self.feeds.count)
        self._input_names = [tensor_spec.name for tensor_spec in specs]

    def read_types(self, names: list[str]) -> Mapping[str, tuple[str, Sequence[int]]]:
        """Return dtype and shape of values on the first sample; the last rung of the ladder."""
        with open_probe(self._model, self._folder) as files:
            path, exposed_names, _ = files.write_probe(names)
            job = single_model_job(path, self._backend, self.feeds.stream, self._folder, "types")
            shapes = ask_once(job, ("describe", {}))[0]["shapes"]
        return {name: tuple(shapes[name]) for name in exposed_names if name in shapes}

    def record_inputs(self, piece: ir.Model) -> Path:
        """Run the model up to where the piece begins; return the stream of what it takes."""
        required_inputs = edit.list_inputs(piece)
        for tensor_spec in required_inputs:
            if "(" in tensor_spec.dtype:
                raise BadData(
                    f"'{tensor_spec.name}' is {tensor_spec.dtype}, not an array",
                    fix="cut elsewhere, or without --data",
                )
        return self._record_values(
            [tensor_spec.name for tensor_spec in required_inputs], "recorded", self._count
        )

    def compare_piece(self, piece: ir.Model, recorded: Path) -> None:
        """Hold the piece against the whole on the first samples.

        Raises:
            BadModel: It does not run, or its outputs differ.
        """
        indices = tuple(range(min(_CHECKED, self._count)))
        whole = self._record_values(
            [tensor_spec.name for tensor_spec in edit.list_outputs(piece)], "whole", len(indices)
        )
        expected_outputs = ExpectedOutputs(recorded, indices, whole, self._backend.custom_ops)
        with open_probe(piece, self._folder) as files:
            path, _, _ = files.write_probe([])
            why = find_difference(path, expected_outputs, self._folder)
        if why is not None:
            raise BadModel(
                f"the piece's outputs differ from the whole model's: {why}",
                fix="cut elsewhere; operators that draw random numbers differ in every run",
            )

    def _record_values(self, names: Sequence[str], stem: str, count: int) -> Path:
        """Run the model up to some tensors; return the stream of their values."""
        self._demand_reached([name for name in names if name not in self._input_names])
        path = (self._folder / f"{stem}.stream").resolve()
        write_tensor_values(
            self._model, names, self.feeds.stream, range(count), self._backend, path
        )
        return path

    def _demand_reached(self, names: Sequence[str]) -> None:
        """Refuse what a Loop or Scan gives its body: no run of the whole shows it."""
        computed_names = {v.name for node in self._model.graph.all_nodes() for v in node.outputs}
        for name in names:
            if name not in computed_names:
                raise BadData(
                    f"'{name}' is what a Loop or Scan gives its body: it is not in the samples",
                    fix="cut outside of the body, or without --data",
                )
        inputs = edit.list_inputs(cut(self._model, (), names)) if names else ()
        takes = [tensor_spec.name for tensor_spec in inputs]
        if lost := [name for name in takes if name not in self._input_names]:
            raise BadData(
                f"the piece depends on '{lost[0]}', which a Loop or Scan gives its body",
                fix="cut outside of the body, or without --data",
            )


def _describe_piece(
    model: ir.Model,
    piece: ir.Model,
    named: Sequence[str],
    out: Path,
    samples: Path | None = None,
    count: int = 0,
) -> ExtractedPart:
    inputs = edit.list_inputs(piece)
    begun = list_start_names(model, named)
    outputs = edit.list_outputs(piece)
    added = tuple(item.name for item in inputs if named and item.name not in begun)
    ways = tuple(find_crossings(piece, begun))
    nodes = sum(1 for _ in piece.graph.all_nodes())
    of_nodes = sum(1 for _ in model.graph.all_nodes())
    size = count_weight_bytes(piece)
    return ExtractedPart(out, inputs, outputs, added, ways, nodes, of_nodes, size, samples, count)
