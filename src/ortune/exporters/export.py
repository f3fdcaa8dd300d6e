"""The verb `export`: a PyTorch module as an ONNX file that answers like it.

Exporters are tried in turn, and the first whose file agrees with PyTorch at all sizes is kept.
"""

from __future__ import annotations

import importlib.util
import math
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortune.backends.cpu import Cpu
from ortune.backends.runtimes.torch.export import Interface, exporters
from ortune.backends.runtimes.torch.module import SCRIPTS, ModuleSource
from ortune.core import wording
from ortune.core.errors import BackendMissing, BadModel, BadSettings, OrtuneError
from ortune.core.event import Progress
from ortune.core.facts import TensorSpec
from ortune.core.outputs import free
from ortune.core.plugins import codec
from ortune.core.plugins.user_function import here_counts
from ortune.core.request import verb
from ortune.core.result import Result
from ortune.core.session import Tensors
from ortune.data import stream, synthetic
from ortune.exporters.request import Axes, Export
from ortune.graph.io import file
from ortune.measurement.job import MAIN, WorkerJob
from ortune.measurement.process import Worker, WorkerFailed, keep_outputs, worker_folder

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
_SYMBOL = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True)
class ExportAttempt:
    """What became of one exporter.

    Attributes:
        exporter: Its name.
        kept: Its file is the result.
        sizes: At how many sizes it answers like PyTorch.
        error: The largest, as a share of an output's largest value; None where it did not run.
        nodes: Of its file.
        seconds: That it took, without the comparison.
        why: Why it was kept or not.
    """

    exporter: str
    kept: bool = False
    sizes: int = 0
    error: float | None = None
    nodes: int = 0
    seconds: float = 0.0
    why: str = ""


@dataclass(frozen=True, repr=False)
class Exported(Result):
    """A verified ONNX file of a PyTorch module.

    Attributes:
        path: The file.
        exporter: That wrote it.
        inputs: What it takes.
        outputs: Names of what it gives.
        error: The largest on any input at any size, as a share of an output's largest value.
        tolerance: What it had to keep.
        sizes: At which it was compared; one empty mapping where nothing is dynamic.
        samples: Inputs at each size.
        refused: Sizes that PyTorch itself did not run, and why.
        attempts: What became of every exporter.
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


def run(asked: Export) -> Exported:
    """Export into a folder of its own and move the verified file to its place."""
    out = free(asked.out, asked.force)
    with TemporaryDirectory(prefix="ortune-") as name:
        found = export_module(asked, Path(name), out.name)
        for path in found.path.parent.glob(f"{out.name}*"):
            shutil.move(path, out.absolute().parent / path.name)
    return replace(found, path=out, state=None)


def module_source(asked: Export) -> ModuleSource:
    """Return where the module and its weights are."""
    weights = str(Path(asked.weights).absolute()) if asked.weights else ""
    return ModuleSource(
        asked.source, weights, asked.state_dict_key, asked.strip_prefix, asked.unsafe_pickle
    )


def export_module(asked: Export, work: Path, name: str) -> Exported:
    """Export a module; the file is ``NAME`` somewhere in `work`, its weights ``state.pt``.

    Raises:
        BackendMissing: PyTorch or what an exporter needs is not installed.
        BadSettings: The module's inputs are not known, or an option does not fit them.
        BadModel: It does not run, or no exporter's file answers like it.
    """
    if importlib.util.find_spec("torch") is None:
        raise BackendMissing("PyTorch is not installed", fix="pip install ortune[torch]")
    here_counts()
    names = exporters(asked.source)
    if asked.exporter not in ("all", *names):
        raise BadSettings(
            f"--exporter {asked.exporter} takes folders of transformers alone",
            fix=f"use one of {', '.join(names)}",
        )
    return _Run(asked, work.resolve(), name).exported(
        names if asked.exporter == "all" else (asked.exporter,)
    )


class _Run:
    """One export: the module's answers first, then files of exporters against them."""

    def __init__(self, asked: Export, work: Path, name: str) -> None:
        self._asked, self._work, self._name = asked, work, name
        self._module = module_source(asked)

    def exported(self, names: Sequence[str]) -> Exported:
        asked, inputs = self._asked, self._inputs()
        tried = inputs.sizes()
        feeds = [
            inputs.write(self._work / f"feeds-{at}", size, asked.ranges, asked.samples, at)
            for at, size in enumerate(tried)
        ]
        told = self._ask(
            "answer_module",
            names=list(inputs.names),
            feeds=[str(path) for path in feeds],
            enough=ENOUGH,
            out=str(self._work),
        )
        taken: list[int] = told["taken"]
        state = self._work / "state.pt"
        if not self._module.source.endswith((*SCRIPTS, ".pt2")):
            self._module = ModuleSource(self._module.source, str(state))
        self._interface = Interface(inputs.names, tuple(told["outputs"]), inputs.axes)
        self._sizes, self._feeds = [tried[k] for k in taken], [feeds[k] for k in taken]
        self._expected = [stream.Stream(self._work / f"{place}.stream") for place in taken]
        first = self._expected[0][0]
        self._limit = tolerance(first) if asked.tolerance is None else asked.tolerance
        attempts: list[ExportAttempt] = []
        for exporter in names:
            attempts.append(self._attempt(exporter))
            if attempts[-1].sizes == len(taken):
                break
        else:
            reasons = "; ".join(f"{one.exporter}: {one.why}" for one in attempts)
            raise BadModel(
                f"no exporter's file answers like PyTorch: {reasons}",
                fix="make fewer dimensions --dynamic, give a --tolerance, or change the module",
            )
        kept = attempts[-1] = replace(attempts[-1], kept=True)
        refused = [f"{_spelled(tried[int(k)])}: {why}" for k, why in told["refused"].items()]
        return Exported(
            path=self._work / kept.exporter / self._name,
            exporter=kept.exporter,
            inputs=inputs.specs,
            outputs=self._interface.outputs,
            error=kept.error or 0.0,
            tolerance=self._limit,
            sizes=tuple(self._sizes),
            samples=asked.samples,
            refused=tuple(refused),
            attempts=tuple(attempts),
            state=state,
        )

    def _inputs(self) -> Inputs:
        """Return what the module takes: as it was asked, or as it says itself.

        Raises:
            BadSettings: Neither says.
        """
        asked = self._asked
        if asked.inputs:
            return name_dimensions(asked.inputs, asked.dynamic)
        told = self._ask("describe_module")
        specs = [codec.decode(TensorSpec, one) for one in told["inputs"]]
        if not specs:
            names = told["parameters"]
            example = " ".join(f"--input {name}=1x..." for name in names)
            raise BadSettings(
                f"what {self._asked.source} takes is not known: {', '.join(names)}",
                fix=f"give {example}, such as --input {names[0] if names else 'x'}=1x3x224x224",
            )
        if any(isinstance(dim, str) for one in specs for dim in one.shape or ()):
            named = {dim for one in specs for dim in one.shape or () if isinstance(dim, str)}
            return Inputs(tuple(specs), {dim: told["sizes"][dim] for dim in sorted(named)})
        return name_dimensions(specs, asked.dynamic)

    def _ask(self, do: str, **more: Any) -> dict[str, Any]:
        """Have a worker load the module.

        Raises:
            BadModel: It does not, or the worker ended.
        """
        try:
            with self._worker(do) as worker:
                return worker.ask(do, given=codec.encode(self._module), **more)
        except WorkerFailed as error:
            failure = error.failure
            raise BadModel(
                f"{self._asked.source}: {failure.reason}",
                fix=failure.fix or f"to see it alone: {failure.reproduce}",
            ) from None

    def _worker(self, label: str) -> Worker:
        job = WorkerJob({}, Cpu(), {}, worker_folder(self._work / "workers", label))
        limit = self._asked.memory_limit
        sink = self._asked.sink
        return Worker(job, timeout_s=self._asked.timeout, memory_limit=limit, sink=sink)

    def _attempt(self, how: str) -> ExportAttempt:
        self._asked.sink(Progress(f"exporting with {how}"))
        began = time.monotonic()
        folder = self._work / how
        folder.mkdir()
        draft = folder / "draft" / "model.onnx"
        draft.parent.mkdir()
        made = ExportAttempt(how)
        try:
            with self._worker(how) as worker:
                worker.ask(
                    "export_module",
                    given=codec.encode(self._module),
                    asked=codec.encode(self._interface),
                    exporter=how,
                    feeds=str(self._feeds[size_to_trace(self._sizes)]),
                    out=str(draft),
                    opset=self._asked.opset,
                )
            nodes, takes = _rewrite(draft, self._interface, folder / self._name)
            shutil.rmtree(draft.parent)
            made = replace(made, nodes=nodes, seconds=time.monotonic() - began)
            return self._judged(made, folder / self._name, takes)
        except WorkerFailed as error:
            return replace(made, seconds=time.monotonic() - began, why=error.failure.reason)
        except OrtuneError as error:
            return replace(made, seconds=time.monotonic() - began, why=error.what)

    def _judged(self, made: ExportAttempt, path: Path, takes: Sequence[str]) -> ExportAttempt:
        """Run a file on every input and compare; inputs that it dropped are left out."""
        fed = path.parent / "fed.stream"
        rows = [dict(row) for one in self._feeds for row in stream.Stream(one)]
        stream.write(fed, ({name: row[name] for name in takes} for row in rows))
        out = worker_folder(path.parent / "workers", "check")
        job = WorkerJob({MAIN: path}, Cpu(), {MAIN: fed}, out)
        limit = self._asked.memory_limit
        worst, good, why, at = 0.0, 0, "", 0
        with Worker(job, timeout_s=self._asked.timeout, memory_limit=limit) as worker:
            worker.ask("load")
            for size, expected in zip(self._sizes, self._expected, strict=True):
                indices = range(at, at + len(expected))
                at = indices.stop
                try:
                    found = keep_outputs(worker, indices, out / f"{indices.start}.stream")
                    pairs = zip(expected, found, strict=True)
                    error, said = max(difference(one, two) for one, two in pairs)
                    said = f"{said}; {self._limit:.2g} is allowed" if error > self._limit else ""
                except WorkerFailed as failed:
                    if not worker.alive:
                        raise
                    error, said = math.inf, failed.failure.reason
                worst, good = max(worst, error), good + (not said)
                why = why or (said and f"{_spelled(size)}: {said}")
        known = None if math.isinf(worst) else worst
        return replace(made, sizes=good, error=known, why=why or _VERIFIED)


def _spelled(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{dim}={size}" for dim, size in sizes.items()) or "the given shapes"


def tolerance(expected: Tensors) -> float:
    """Return the largest error that rounding alone may make."""
    kinds = {array.dtype for array in expected.values()}
    return SHORT if np.dtype(np.float16) in kinds else FLOAT32


def difference(expected: Tensors, found: Tensors) -> tuple[float, str]:
    """Return the largest error of any output, and what is wrong with that output.

    The error is a share of the output's largest value; infinite where shapes or types differ,
    where one side is not finite alone, or where whole numbers are not equal.
    """
    errors = (_difference(name, wanted, found.get(name)) for name, wanted in expected.items())
    return max(errors, default=(0.0, ""))


def _difference(
    name: str, wanted: NDArray[np.generic], found: NDArray[np.generic] | None
) -> tuple[float, str]:
    if found is None:
        return np.inf, f"'{name}' is missing"
    if wanted.shape != found.shape:
        return np.inf, f"'{name}' has the shape {found.shape}, not {wanted.shape}"
    if wanted.dtype != found.dtype:
        return np.inf, f"'{name}' is {found.dtype}, not {wanted.dtype}"
    if wanted.dtype.kind != "f":
        other = int((wanted != found).sum())
        values = wording.count(wanted.size, "value")
        return (np.inf if other else 0.0), f"'{name}' differs in {other} of {values}"
    one, two = wanted.astype(np.float64), found.astype(np.float64)
    finite = np.isfinite(one)
    same = np.array_equal(one[~finite], two[~finite], equal_nan=True)
    if not same or not np.isfinite(two[finite]).all():
        return np.inf, f"'{name}' is not finite where PyTorch is, or the other way round"
    off = float(np.abs(one[finite] - two[finite]).max(initial=0))
    peak = float(np.abs(one[finite]).max(initial=0))
    error = off / peak if peak else off
    return error, f"'{name}' is off by {error:.2g} of its largest value"


def _rewrite(draft: Path, asked: Interface, out: Path) -> tuple[int, tuple[str, ...]]:
    """Write a draft with the names asked for; return its nodes and the inputs that it takes.

    Raises:
        BadModel: It cannot be read, or has another number of outputs.
    """
    model = file.load(draft)
    outputs = model.graph.outputs
    if len(outputs) != len(asked.outputs):
        raise BadModel(
            f"it gives {wording.count(len(outputs), 'output')}, PyTorch {len(asked.outputs)}",
            fix="return each tensor once",
        )
    for value, name in zip(outputs, asked.outputs, strict=True):
        if value.name != name:
            value.name = name
    _rename_dims(model, asked)
    file.save(model, out)
    nodes = sum(1 for _ in model.graph.all_nodes())
    return nodes, tuple(str(value.name) for value in model.graph.inputs)


def _rename_dims(model: ir.Model, asked: Interface) -> None:
    """Give dynamic dimensions their names, also in the expressions that are made of them."""
    wanted: dict[str, str] = {}
    for value in model.graph.inputs:
        for axis, dim in asked.axes(str(value.name)).items():
            held = value.shape[axis] if value.shape is not None else None
            if isinstance(held, ir.SymbolicDim) and held.value and held.value != dim:
                wanted[held.value] = dim
    if not wanted:
        return

    def renamed(dim: int | str | None) -> int | str | None:
        if not isinstance(dim, str):
            return dim
        return _SYMBOL.sub(lambda found: wanted.get(found[0], found[0]), dim)

    values = [*model.graph.inputs, *model.graph.outputs]
    values += [value for node in model.graph.all_nodes() for value in node.outputs]
    for value in values:
        if value.shape is not None and any(isinstance(one, ir.SymbolicDim) for one in value.shape):
            dims = (one if isinstance(one, int) else one.value for one in value.shape)
            value.shape = ir.Shape(map(renamed, dims))


@dataclass(frozen=True)
class Inputs:
    """What a module takes.

    Attributes:
        specs: Named, with dynamic dimensions by name.
        example: Dynamic dimension -> its size in the example.
    """

    specs: tuple[TensorSpec, ...]
    example: Mapping[str, int]

    @property
    def names(self) -> tuple[str, ...]:
        """Of the inputs, in order."""
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

    def sizes(self) -> list[dict[str, int]]:
        """Return the sizes to try, the example first; the later ones stand in for refused ones."""
        found: list[dict[str, int]] = []
        for step in _STEPS:
            one = {dim: step(size) for dim, size in self.example.items()}
            if one not in found:
                found.append(one)
        return found

    def shapes(self, sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
        """Return input -> shape at these sizes."""
        return {
            spec.name: tuple(
                dim if isinstance(dim, int) else sizes[str(dim)] for dim in spec.shape or ()
            )
            for spec in self.specs
        }

    def write(
        self,
        out: Path,
        sizes: Mapping[str, int],
        ranges: Mapping[str, tuple[float, float]],
        count: int,
        seed: int,
    ) -> Path:
        """Make inputs of these sizes up; return the stream that holds them."""
        ranges = {name: ends for name, ends in ranges.items() if name in self.names}
        shapes = self.shapes(sizes)
        made = synthetic.make(
            self.specs, out, shapes=shapes, ranges=ranges, count=count, seed=seed
        )
        return made.stream


def name_dimensions(specs: Sequence[TensorSpec], axes: Axes) -> Inputs:
    """Name the dynamic dimensions of inputs whose shapes are an example's.

    Raises:
        BadSettings: An axis is of no input, beyond its rank, or one name has two sizes.
    """
    known = {spec.name: spec for spec in specs}
    example: dict[str, int] = {}
    for name, axis, dim in axes:
        shape = known[name].shape or () if name in known else None
        if shape is None or axis >= len(shape):
            lack = (
                "no input of the module"
                if shape is None
                else f"of {wording.count(len(shape), 'axis', 'axes')}"
            )
            raise BadSettings(
                f"--dynamic {name}:{axis}={dim}: {name} is {lack}",
                fix=f"the inputs are: {', '.join(known)}",
            )
        size = shape[axis]
        if not isinstance(size, int):
            continue
        if example.setdefault(dim, size) != size:
            raise BadSettings(
                f"'{dim}' is {example[dim]} and {size} in one example",
                fix="give the inputs one size there, or two names",
            )
        known[name] = replace(
            known[name], shape=(*shape[:axis], dim, *(known[name].shape or ())[axis + 1 :])
        )
    return Inputs(tuple(known.values()), example)


def size_to_trace(sizes: Sequence[Mapping[str, int]]) -> int:
    """Return the place of the sizes to trace with: none is 1, which tracing takes as fixed."""
    fit = [place for place, one in enumerate(sizes) if all(size > 1 for size in one.values())]
    return min(fit, key=lambda place: sum(sizes[place].values()), default=0)


export = verb(Export, run)
