"""The verb `export`: a PyTorch module as an ONNX file that answers like it.

Exporters are tried in turn, and the first whose file agrees with PyTorch at all sizes is kept.
"""

from __future__ import annotations

import importlib.util
import json
import math
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortune.backends.cpu import Cpu
from ortune.backends.runtimes.torch.export import Interface, list_exporters
from ortune.backends.runtimes.torch.module import SCRIPTS, ModuleSource
from ortune.core import hub, wording
from ortune.core.atomic_write import write_text
from ortune.core.errors import BackendMissing, BadModel, BadSettings, OrtuneError
from ortune.core.event import Note, Progress
from ortune.core.facts import TensorSpec
from ortune.core.outputs import check_output_file
from ortune.core.plugins import codec
from ortune.core.plugins.user_function import digest_file, find_source
from ortune.core.request import make_verb
from ortune.core.result import Result
from ortune.core.session import Tensors
from ortune.core.temporary_folder import open_temporary_folder
from ortune.data import stream, synthetic
from ortune.exporters.request import Axes, Export
from ortune.graph.io import file
from ortune.measurement.job import MAIN, WorkerJob
from ortune.measurement.process import (
    Worker,
    WorkerFailed,
    keep_outputs,
    translate_failures,
    worker_folder,
)

FLOAT32, SHORT = 1e-4, 1e-2
"""Largest error of float32 and of 16-bit outputs, as a share of an output's largest value:
float32 sums in another order differ by some 1e-6 a layer."""
ENOUGH = 3
"""Sizes at which PyTorch and the file are compared."""
_STEPS: tuple[Callable[[int], int], ...] = (
    lambda n: n,
    lambda n: n + 1,
    lambda n: 2 * n + 1,
    # For modules that take multiples of something, or no more than a table holds.
    lambda n: 2 * n,
    lambda n: 3 * n,
    lambda n: max(1, n - 1),
    lambda n: max(1, n // 2),
)
_VERIFIED = "answers like PyTorch"
_PAST = "past"
"""Dimension of a cache."""
_SYMBOL = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True)
class ExportAttempt:
    """What became of one exporter."""

    exporter: str  # its name
    kept: bool = False  # its file is the result
    sizes: int = 0  # at how many sizes it answers like PyTorch
    # The largest, as a share of an output's largest value; None where it did not run.
    error: float | None = None
    nodes: int = 0  # of its file
    seconds: float = 0.0  # that it took, without the comparison
    why: str = ""  # why it was kept or not


@dataclass(frozen=True, repr=False)
class ExportedModel(Result):
    """A verified ONNX file of a PyTorch module.

    Attributes:
        error: The largest on any input at any size, as a share of an output's largest value.
        sizes: At which it was compared; one empty mapping where nothing is dynamic.
        samples: Inputs at each size.
        refused: Sizes that PyTorch itself did not run, and why.
        state: The module's weights, where they were kept.
    """

    headline = ("path", "exporter", "error", "tolerance", "sizes", "samples")

    path: Path
    exporter: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[str, ...]
    error: float
    tolerance: float
    sizes: tuple[Mapping[str, int], ...]
    samples: int
    refused: tuple[str, ...]
    attempts: tuple[ExportAttempt, ...]
    state: Path | None = None


def run(request: Export) -> ExportedModel:
    """Export into a folder of its own and move the verified file to its place."""
    source = hub.resolve_folder(request.source)
    if (out := Path(request.out)) == Path(source) / hub.ONNX_FILES[0]:
        out.parent.mkdir(exist_ok=True)
    out, request = check_output_file(out, request.force), replace(request, source=str(source))
    with open_temporary_folder() as name:
        result = export_to_folder(request, Path(name), out.name)
        for path in result.path.parent.glob(f"{out.name}*"):
            shutil.move(path, out.absolute().parent / path.name)
    return replace(result, path=out, state=None)


def module_source(request: Export) -> ModuleSource:
    """Return where the module and its weights are."""
    weights = str(Path(request.weights).absolute()) if request.weights else ""
    return ModuleSource(
        request.source,
        weights,
        request.state_dict_key,
        request.strip_prefix,
        request.unsafe_pickle,
        request.part,
    )


def export_to_folder(request: Export, work: Path, name: str) -> ExportedModel:
    """Export a module; the file is ``NAME`` somewhere in `work`, its weights ``state.pt``.

    Raises:
        BackendMissing: PyTorch or what an exporter needs is not installed.
        BadSettings: The module's inputs are not known, or an option does not fit them.
        BadModel: It does not run, or no exporter's file answers like it.
    """
    if importlib.util.find_spec("torch") is None:
        raise BackendMissing("PyTorch is not installed", fix="pip install torch==2.13.0")
    names = list_exporters(request.source, request.part)
    if request.exporter not in ("all", *names):
        raise BadSettings(
            f"--exporter {request.exporter} takes folders of transformers alone",
            fix=f"use one of {', '.join(names)}",
        )
    selected = names if request.exporter == "all" else (request.exporter,)
    return _Run(request, work.resolve(), name).export_module(selected)


def export_once(request: Export) -> Path:
    """Export a module unless the same export lies there; return the file of its weights.

    The folder of `out` is the export's own: the model, the weights and what they were made of.

    Raises:
        OrtuneError: The module does not load or run, or no export answers like it.
    """
    path, module = Path(request.out), module_source(request)
    folder = path.parent
    state = path.with_name("state.pt")
    key_path = path.with_name("export.json")
    files = [find_source(name) for name in (request.source, module.weights)]
    texts = [digest_file(file) for file in files if file is not None]
    inputs = [codec.encode(spec) for spec in request.inputs]
    key = codec.digest([codec.encode(module), request.dynamic, *texts, inputs])
    if key_path.is_file() and json.loads(key_path.read_text(encoding="utf-8")).get("key") == key:
        return state
    folder.mkdir(parents=True, exist_ok=True)
    result = export_to_folder(request, folder / "work", path.name)
    for part in result.path.parent.glob(f"{path.name}*"):
        part.replace(folder / part.name)
    if result.state is not None:
        result.state.replace(state)
    shutil.rmtree(folder / "work")
    if (hub_folder := hub.find_folder(request.source)) is not None:
        hub.copy_side_files(hub_folder, folder)
    record = codec.make_jsonable(replace(result, path=path, state=state))
    write_text(key_path, json.dumps({"key": key, **record}, indent=1))
    request.sink(
        Note(
            f"exported by {result.exporter}: within {result.error:.2g} of PyTorch's answers at "
            f"{len(result.sizes)} sizes"
        )
    )
    return state


class _Run:
    """One export: the module's answers first, then files of exporters against them."""

    def __init__(self, request: Export, work: Path, name: str) -> None:
        self._request, self._work, self._name = request, work, name
        self._module = module_source(request)

    def export_module(self, names: Sequence[str]) -> ExportedModel:
        request, inputs = self._request, self._read_inputs()
        tried = inputs.list_sizes()
        feeds = [
            inputs.write_samples(
                self._work / f"feeds-{at}", size, request.ranges, request.samples, at
            )
            for at, size in enumerate(tried)
        ]
        answers = self._ask_worker(
            "answer_module",
            names=list(inputs.names),
            feeds=[str(path) for path in feeds],
            enough=ENOUGH,
            out=str(self._work),
        )
        accepted: list[int] = answers["taken"]
        state = self._work / "state.pt"
        if not self._module.source.endswith((*SCRIPTS, ".pt2")):
            part = self._module.part
            self._module = ModuleSource(self._module.source, str(state), part=part)
        self._interface = Interface(inputs.names, tuple(answers["outputs"]), inputs.axes)
        self._sizes, self._feeds = [tried[k] for k in accepted], [feeds[k] for k in accepted]
        self._expected = [stream.Stream(self._work / f"{place}.stream") for place in accepted]
        first = self._expected[0][0]
        self._limit = choose_tolerance(first) if request.tolerance is None else request.tolerance
        attempts: list[ExportAttempt] = []
        for exporter in names:
            attempts.append(self._try_exporter(exporter))
            if attempts[-1].sizes == len(accepted):
                break
        else:
            reasons = "; ".join(f"{attempt.exporter}: {attempt.why}" for attempt in attempts)
            raise BadModel(
                f"no exporter's file answers like PyTorch: {reasons}",
                fix="make fewer dimensions --dynamic, give a --tolerance, or change the module",
            )
        kept = attempts[-1] = replace(attempts[-1], kept=True)
        refused = [
            f"{_format_sizes(tried[int(k)])}: {why}" for k, why in answers["refused"].items()
        ]
        return ExportedModel(
            path=self._work / kept.exporter / self._name,
            exporter=kept.exporter,
            inputs=inputs.specs,
            outputs=self._interface.outputs,
            error=kept.error or 0.0,
            tolerance=self._limit,
            sizes=tuple(self._sizes),
            samples=request.samples,
            refused=tuple(refused),
            attempts=tuple(attempts),
            state=state,
        )

    def _read_inputs(self) -> Inputs:
        """Return what the module takes: as it was asked, or as it says itself, else an error."""
        request = self._request
        if request.inputs:
            return name_dimensions(request.inputs, request.dynamic)
        description = self._ask_worker("describe_module")
        specs = [codec.decode(TensorSpec, spec) for spec in description["inputs"]]
        if not specs:
            names = description["parameters"]
            example = " ".join(f"--input {name}=1x..." for name in names)
            raise BadSettings(
                f"what {self._request.source} takes is not known: {', '.join(names)}",
                fix=f"give {example}, such as --input {names[0] if names else 'x'}=1x3x224x224",
            )
        dynamic = [dim for spec in specs for dim in spec.shape or () if isinstance(dim, str)]
        if dynamic:
            named = {part for dim in dynamic for part in dim.split(synthetic.PLUS)}
            return Inputs(tuple(specs), {dim: description["sizes"][dim] for dim in sorted(named)})
        return name_dimensions(specs, request.dynamic)

    def _ask_worker(self, do: str, **more: Any) -> dict[str, Any]:
        """Have a worker load the module; `BadModel` where it does not, or the worker ended."""
        with translate_failures(str(self._request.source), ""), self._open_worker(do) as worker:
            return worker.ask(do, module_source=codec.encode(self._module), **more)

    def _open_worker(self, label: str) -> Worker:
        job = WorkerJob({}, Cpu(), {}, worker_folder(self._work / "workers", label))
        limit = self._request.memory_limit
        sink = self._request.sink
        return Worker(job, timeout_s=self._request.timeout, memory_limit=limit, sink=sink)

    def _try_exporter(self, how: str) -> ExportAttempt:
        self._request.sink(Progress(f"exporting with {how}"))
        began = time.monotonic()
        folder = self._work / how
        folder.mkdir()
        draft = folder / "draft" / "model.onnx"
        draft.parent.mkdir()
        attempt = ExportAttempt(how)
        try:
            with self._open_worker(how) as worker:
                worker.ask(
                    "export_module",
                    module_source=codec.encode(self._module),
                    interface=codec.encode(self._interface),
                    exporter=how,
                    feeds=str(self._feeds[size_to_trace(self._sizes)]),
                    out=str(draft),
                    opset=self._request.opset,
                )
            nodes, takes = _rewrite_draft(draft, self._interface, folder / self._name)
            shutil.rmtree(draft.parent)
            attempt = replace(attempt, nodes=nodes, seconds=time.monotonic() - began)
            return self._verify_file(attempt, folder / self._name, takes)
        except WorkerFailed as error:
            return replace(attempt, seconds=time.monotonic() - began, why=error.failure.reason)
        except OrtuneError as error:
            return replace(attempt, seconds=time.monotonic() - began, why=error.what)

    def _verify_file(
        self, attempt: ExportAttempt, path: Path, takes: Sequence[str]
    ) -> ExportAttempt:
        """Run a file on every input and compare; inputs that it dropped are left out."""
        fed = path.parent / "fed.stream"
        rows = [dict(row) for reference in self._feeds for row in stream.Stream(reference)]
        stream.write_stream(fed, ({name: row[name] for name in takes} for row in rows))
        out = worker_folder(path.parent / "workers", "check")
        job = WorkerJob({MAIN: path}, Cpu(), {MAIN: fed}, out)
        limit = self._request.memory_limit
        worst, good, why, at = 0.0, 0, "", 0
        with Worker(job, timeout_s=self._request.timeout, memory_limit=limit) as worker:
            worker.ask("load")
            for size, expected in zip(self._sizes, self._expected, strict=True):
                indices = range(at, at + len(expected))
                at = indices.stop
                try:
                    outputs = keep_outputs(worker, indices, out / f"{indices.start}.stream")
                    pairs = zip(expected, outputs, strict=True)
                    error, problem = max(compare_outputs(r, candidate) for r, candidate in pairs)
                    problem = (
                        f"{problem}; {self._limit:.2g} is allowed" if error > self._limit else ""
                    )
                except WorkerFailed as failed:
                    if not worker.alive:
                        raise
                    error, problem = math.inf, failed.failure.reason
                worst, good = max(worst, error), good + (not problem)
                why = why or (problem and f"{_format_sizes(size)}: {problem}")
        finite_error = None if math.isinf(worst) else worst
        return replace(attempt, sizes=good, error=finite_error, why=why or _VERIFIED)


def _format_sizes(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{dim}={size}" for dim, size in sizes.items()) or "the given shapes"


def choose_tolerance(expected: Tensors) -> float:
    """Return the largest error that rounding alone may make."""
    kinds = {array.dtype for array in expected.values()}
    return SHORT if np.dtype(np.float16) in kinds else FLOAT32


def compare_outputs(expected: Tensors, actual: Tensors) -> tuple[float, str]:
    """Return the largest error of any output, and what is wrong with that output.

    The error is a share of the output's largest value; infinite where shapes or types differ,
    where one side is not finite alone, or where whole numbers are not equal.
    """
    errors = (_compare_output(n, reference, actual.get(n)) for n, reference in expected.items())
    return max(errors, default=(0.0, ""))


def _compare_output(
    name: str, expected: NDArray[np.generic], actual: NDArray[np.generic] | None
) -> tuple[float, str]:
    if actual is None:
        return np.inf, f"'{name}' is missing"
    if expected.shape != actual.shape:
        return np.inf, f"'{name}' has the shape {actual.shape}, not {expected.shape}"
    if expected.dtype != actual.dtype:
        return np.inf, f"'{name}' is {actual.dtype}, not {expected.dtype}"
    if expected.dtype.kind != "f":
        other = int((expected != actual).sum())
        values = wording.format_count(expected.size, "value")
        return (np.inf if other else 0.0), f"'{name}' differs in {other} of {values}"
    reference, candidate = expected.astype(np.float64), actual.astype(np.float64)
    finite = np.isfinite(reference)
    same = np.array_equal(reference[~finite], candidate[~finite], equal_nan=True)
    if not same or not np.isfinite(candidate[finite]).all():
        return np.inf, f"'{name}' is not finite where PyTorch is, or the other way round"
    off = float(np.abs(reference[finite] - candidate[finite]).max(initial=0))
    peak = float(np.abs(reference[finite]).max(initial=0))
    error = off / peak if peak else off
    return error, f"'{name}' is off by {error:.2g} of its largest value"


def _rewrite_draft(draft: Path, interface: Interface, out: Path) -> tuple[int, tuple[str, ...]]:
    """Write a draft with the names asked for; return its nodes and the inputs that it takes."""
    model = file.load(draft)
    outputs = model.graph.outputs
    if len(outputs) != len(interface.outputs):
        raise BadModel(
            f"it gives {wording.format_count(len(outputs), 'output')}, PyTorch "
            f"{len(interface.outputs)}",
            fix="return each tensor once",
        )
    for value, name in zip(outputs, interface.outputs, strict=True):
        if value.name != name:
            value.name = name
    _rename_dims(model, interface)
    file.save(model, out)
    nodes = sum(1 for _ in model.graph.all_nodes())
    return nodes, tuple(str(value.name) for value in model.graph.inputs)


def _rename_dims(model: ir.Model, interface: Interface) -> None:
    """Give dynamic dimensions their names, also in the expressions that are made of them."""
    new_names: dict[str, str] = {}
    for value in model.graph.inputs:
        for axis, dim in interface.list_dynamic_axes(str(value.name)).items():
            dimension = value.shape[axis] if value.shape is not None else None
            old = dimension.value if isinstance(dimension, ir.SymbolicDim) else None
            if old and old != dim:
                new_names[old] = dim
    if not new_names:
        return

    def rename_dim(dim: int | str | None) -> int | str | None:
        if not isinstance(dim, str):
            return dim
        return _SYMBOL.sub(lambda match: new_names.get(match[0], match[0]), dim)

    values = [*model.graph.inputs, *model.graph.outputs]
    values += [value for node in model.graph.all_nodes() for value in node.outputs]
    for value in values:
        if value.shape is not None and any(isinstance(s, ir.SymbolicDim) for s in value.shape):
            dims = (size if isinstance(size, int) else size.value for size in value.shape)
            value.shape = ir.Shape(map(rename_dim, dims))


@dataclass(frozen=True)
class Inputs:
    """What a module takes."""

    # Named, with dynamic dimensions by name; ``past + sequence`` is the sum of two.
    specs: tuple[TensorSpec, ...]
    example: Mapping[str, int]  # dynamic dimension -> its size in the example

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the inputs, in order."""
        return tuple(spec.name for spec in self.specs)

    @property
    def axes(self) -> Axes:
        """The dynamic dimensions."""
        return tuple(
            (spec.name, axis, dim)
            for spec in self.specs
            for axis, dim in enumerate(spec.shape or ())
            if isinstance(dim, str)
        )

    def list_sizes(self) -> list[dict[str, int]]:
        """Return the sizes to try, the example first; the later ones stand in for refused ones.

        The second has nothing in the cache, where there is one.
        """
        candidates = [dict(self.example)]
        if _PAST in self.example:
            candidates.append({**self.example, _PAST: 0})
        for step in _STEPS:
            candidate = {dim: step(size) for dim, size in self.example.items()}
            if candidate not in candidates:
                candidates.append(candidate)
        return candidates

    def write_samples(
        self,
        out: Path,
        sizes: Mapping[str, int],
        ranges: Mapping[str, tuple[float, float]],
        count: int,
        seed: int,
    ) -> Path:
        """Make inputs of these sizes up; return the stream that holds them."""
        ranges = {name: ends for name, ends in ranges.items() if name in self.names}
        shapes = {
            spec.name: tuple(
                dim
                if isinstance(dim, int)
                else sum(sizes[part] for part in str(dim).split(synthetic.PLUS))
                for dim in spec.shape or ()
            )
            for spec in self.specs
        }
        samples = synthetic.generate_feeds(
            self.specs, out, shapes=shapes, ranges=ranges, count=count, seed=seed
        )
        return samples.stream


def name_dimensions(specs: Sequence[TensorSpec], axes: Axes) -> Inputs:
    """Name the dynamic dimensions of inputs whose shapes are an example's.

    Raises:
        BadSettings: An axis is of no input, beyond its rank, or one name has two sizes.
    """
    specs_by_name = {spec.name: spec for spec in specs}
    example: dict[str, int] = {}
    for name, axis, dim in axes:
        shape = specs_by_name[name].shape or () if name in specs_by_name else None
        if shape is None or axis >= len(shape):
            rank = wording.format_count(len(shape or ()), "axis", "axes")
            lack = "no input of the module" if shape is None else f"of {rank}"
            raise BadSettings(
                f"--dynamic {name}:{axis}={dim}: {name} is {lack}",
                fix=f"the inputs are: {', '.join(specs_by_name)}",
            )
        size = shape[axis]
        if not isinstance(size, int):
            continue
        if example.setdefault(dim, size) != size:
            raise BadSettings(
                f"'{dim}' is {example[dim]} and {size} in one example",
                fix="give the inputs one size there, or two names",
            )
        named = (*shape[:axis], dim, *shape[axis + 1 :])
        specs_by_name[name] = replace(specs_by_name[name], shape=named)
    return Inputs(tuple(specs_by_name.values()), example)


def size_to_trace(sizes: Sequence[Mapping[str, int]]) -> int:
    """Return the place of the sizes to trace with: none is 1, which tracing takes as fixed."""
    fit = [at for at, by_dim in enumerate(sizes) if all(s > 1 for s in by_dim.values())]
    return min(fit, key=lambda place: sum(sizes[place].values()), default=0)


export = make_verb(Export, run)
