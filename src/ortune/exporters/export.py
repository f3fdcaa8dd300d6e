"""The verb `export`: try every exporter, keep the file that answers like PyTorch."""

from __future__ import annotations

import importlib.util
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ortune.backends.cpu import Cpu
from ortune.core.errors import BackendMissing, BadModel, BadSettings, OrtuneError
from ortune.core.event import Progress
from ortune.core.facts import TensorSpec
from ortune.core.outputs import free
from ortune.core.plugins import codec
from ortune.core.plugins.user_function import here_counts
from ortune.core.request import verb
from ortune.core.result import Result
from ortune.data import stream
from ortune.exporters import compare, normalize, sizes
from ortune.exporters.attempts import Check, ExportAttempt, Exporting, best, judged, spelled
from ortune.exporters.request import Export
from ortune.exporters.sizes import ENOUGH, Inputs
from ortune.measurement.job import WorkerJob
from ortune.measurement.process import Worker, WorkerFailed, worker_folder
from ortune.runtimes.torch.export import Interface, exporters
from ortune.runtimes.torch.module import ModuleSource


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
    given = Exporting(
        asked.source,
        asked,
        asked.ranges,
        asked.exporter,
        asked.opset,
        asked.samples,
        asked.tolerance,
        asked.timeout,
        asked.memory_limit,
        asked.sink,
    )
    with TemporaryDirectory(prefix="ortune-") as name:
        found = exported(given, Path(name), out.name)
        for path in found.path.parent.glob(f"{out.name}*"):
            shutil.move(path, out.absolute().parent / path.name)
    return replace(found, path=out, state=None)


def exported(given: Exporting, work: Path, name: str) -> Exported:
    """Export a module; the file is ``NAME`` somewhere in `work`, its weights ``state.pt``.

    Raises:
        BackendMissing: PyTorch or what an exporter needs is not installed.
        BadSettings: The module's inputs are not known, or an option does not fit them.
        BadModel: It does not run, or no exporter's file answers like it.
    """
    if importlib.util.find_spec("torch") is None:
        raise BackendMissing("PyTorch is not installed", fix="pip install ortune[torch]")
    return _Run(given, work, name).exported()


class _Run:
    """One export: the module's answers first, then a file of each exporter against them."""

    def __init__(self, given: Exporting, work: Path, name: str) -> None:
        here_counts()
        self._given, self._work, self._name = given, work.resolve(), name
        known = exporters(given.source)
        if given.exporter != "all" and given.exporter not in known:
            raise BadSettings(
                f"--exporter {given.exporter} takes folders of transformers alone",
                fix=f"use one of {', '.join(known)}",
            )
        self._exporters = [given.exporter] if given.exporter != "all" else list(known)
        self._module = given.module

    def exported(self) -> Exported:
        inputs = self._inputs()
        feeds, tried = self._feeds(inputs)
        told = self._answers(inputs, feeds)
        taken: list[int] = told["taken"]
        asked = Interface(inputs.names, tuple(told["outputs"]), inputs.axes)
        state = self._work / "state.pt"
        if not self._module.source.endswith((".pt", ".pth", ".ts", ".jit", ".pt2")):
            self._module = ModuleSource(self._module.source, str(state))
        expected = [stream.Stream(self._work / f"{place}.stream") for place in taken]
        limit = self._given.tolerance
        limit = compare.tolerance(expected[0][0]) if limit is None else limit
        found = [tried[place] for place in taken]
        used = [feeds[place] for place in taken]
        check = Check(self._given, asked, found, used, expected, limit)
        attempts = [self._attempt(how, check) for how in self._exporters]
        kept = best(attempts, len(taken))
        if kept is None:
            reasons = "; ".join(f"{one.exporter}: {one.why}" for one in attempts)
            raise BadModel(
                f"no exporter's file answers like PyTorch: {reasons}",
                fix="make fewer dimensions --dynamic, give a --tolerance, or change the module",
            )
        refused = [f"{spelled(tried[int(k)])}: {why}" for k, why in told["refused"].items()]
        return Exported(
            self._folder(kept.exporter) / self._name,
            kept.exporter,
            inputs.specs,
            asked.outputs,
            kept.error or 0.0,
            limit,
            tuple(found),
            self._given.samples,
            tuple(refused),
            tuple(judged(one, kept) for one in attempts),
            state,
        )

    def _inputs(self) -> Inputs:
        """Return what the module takes: as it was asked, or as it says itself.

        Raises:
            BadSettings: Neither says.
        """
        asked = self._given.asked
        if asked.inputs:
            return sizes.given(asked.inputs, asked.dynamic)
        told = self._ask("describe_module")
        specs = [codec.decode(TensorSpec, one) for one in told["inputs"]]
        if not specs:
            names = told["parameters"]
            example = " ".join(f"--input {name}=1x..." for name in names)
            raise BadSettings(
                f"what {self._given.source} takes is not known: {', '.join(names)}",
                fix=f"give {example}, such as --input {names[0] if names else 'x'}=1x3x224x224",
            )
        if any(isinstance(dim, str) for one in specs for dim in one.shape or ()):
            named = {dim for one in specs for dim in one.shape or () if isinstance(dim, str)}
            return Inputs(tuple(specs), {dim: told["sizes"][dim] for dim in sorted(named)})
        return sizes.given(specs, asked.dynamic)

    def _feeds(self, inputs: Inputs) -> tuple[list[Path], list[dict[str, int]]]:
        tried = inputs.sizes()
        given = self._given
        return [
            inputs.write(self._work / f"feeds-{at}", one, given.ranges, given.samples, at)
            for at, one in enumerate(tried)
        ], tried

    def _answers(self, inputs: Inputs, feeds: Sequence[Path]) -> dict[str, Any]:
        return self._ask(
            "answer_module",
            names=list(inputs.names),
            feeds=[str(path) for path in feeds],
            enough=ENOUGH,
            out=str(self._work),
        )

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
                f"{self._given.source}: {failure.reason}",
                fix=failure.fix or f"to see it alone: {failure.reproduce}",
            ) from None

    def _worker(self, label: str) -> Worker:
        job = WorkerJob({}, Cpu(), {}, worker_folder(self._work / "workers", label))
        limit = self._given.memory_limit
        sink = self._given.sink
        return Worker(job, timeout_s=self._given.timeout, memory_limit=limit, sink=sink)

    def _folder(self, how: str) -> Path:
        return self._work / how

    def _attempt(self, how: str, check: Check) -> ExportAttempt:
        self._given.sink(Progress(f"exporting with {how}"))
        began = time.monotonic()
        folder = self._folder(how)
        folder.mkdir()
        draft = folder / "draft" / "model.onnx"
        draft.parent.mkdir()
        made = ExportAttempt(how)
        try:
            with self._worker(how) as worker:
                worker.ask(
                    "export_module",
                    given=codec.encode(self._module),
                    asked=codec.encode(check.asked),
                    exporter=how,
                    feeds=str(check.feeds[sizes.traced(check.sizes)]),
                    out=str(draft),
                    opset=self._given.opset,
                )
            nodes, takes = normalize.rewritten(draft, check.asked, folder / self._name)
            shutil.rmtree(draft.parent)
            made = replace(made, nodes=nodes, seconds=time.monotonic() - began)
            return check.judged(made, folder / self._name, takes)
        except WorkerFailed as error:
            return replace(made, seconds=time.monotonic() - began, why=error.failure.reason)
        except OrtuneError as error:
            return replace(made, seconds=time.monotonic() - began, why=error.what)


export = verb(Export, run)
