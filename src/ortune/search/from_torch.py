"""A search that begins at a PyTorch module: its export first, its own speed at the end."""

from __future__ import annotations

import json
import shutil
from contextlib import ExitStack
from dataclasses import fields, replace
from pathlib import Path

from ortune.backends.runtimes.torch.module import is_source
from ortune.backends.torch import Torch
from ortune.core.atomic_write import write_text
from ortune.core.backend import Backend
from ortune.core.errors import BadSettings, summarize_error
from ortune.core.event import Note, Sink
from ortune.core.plugins import codec
from ortune.core.plugins.user_function import here_counts, is_function
from ortune.core.step import Recipe
from ortune.core.trial import BESIDE, Plan, Proposal
from ortune.exporters.request import Export, ModuleRequest
from ortune.measurement.process import WorkerFailed
from ortune.search.experiment.context import Context
from ortune.search.experiment.evaluate import Attempts
from ortune.search.experiment.request import digest_of, source_file
from ortune.search.request import Optimize

FOLDER = "export"
"""Of a run: the exported model, the module's weights and what they were made of."""
_MODEL, _STATE, _KEY = "model.onnx", "state.pt", "export.json"
_PATIENCE_S = 300.0
"""That a request to a module may take: the first run compiles."""
_SECONDS = 4.0
"""Of timing that a row gets."""


def make_repeatable(request: Optimize) -> Optimize:
    """Return a request whose settings file names a function as it was: it is no path."""
    return replace(
        request,
        model=[name if is_function(name) else Path(name) for name in _model_names(request)],
    )


def _model_names(request: Optimize) -> list[str]:
    return [str(path) for path in request.models]


def export_model(request: Optimize, root: Path) -> tuple[Optimize, tuple[Backend, ...]]:
    """Export the module that a search is asked for, once a run.

    Returns:
        The request with the exported file as its model, and the module as backends, eager and
        compiled; the request as it is and none where it names a model file.

    Raises:
        OrtuneError: The module does not load or run, or no export answers like it.
    """
    names = _model_names(request)
    modules = [text for text in names if is_source(text)]
    if not modules:
        options = {
            "--weights": request.weights,
            "--input": request.inputs,
            "--dynamic": request.dynamic,
        }
        if used := [word for word, value in options.items() if value]:
            raise BadSettings(
                f"{used[0]} is of a PyTorch module, and the model is a file",
                fix="give pkg.module:factory in place of the file, or leave it out",
            )
        return request, ()
    if len(names) > 1:
        raise BadSettings(
            f"several models are given, and {modules[0]} is a module",
            fix="run `ortune export` on each first",
        )
    source, folder = modules[0], root.absolute() / FOLDER
    shared = {field.name: getattr(request, field.name) for field in fields(ModuleRequest)}
    export_request = Export(
        source,
        ranges=request.ranges,
        memory_limit=request.memory_limit,
        out=folder / _MODEL,
        **shared,
    )
    _export_module(export_request, folder)
    is_saved = Path(source).suffix in (".pt", ".pth", ".ts", ".jit", ".pt2")
    plain = Torch(
        threads=request.original.threads,
        source=str(Path(source).absolute()) if Path(source).exists() else source,
        weights="" if is_saved else str(folder / _STATE),
    )
    return replace(request, model=folder / _MODEL), (plain, replace(plain, compile=True))


def _export_module(export_request: Export, folder: Path) -> None:
    """Export into a folder that then holds the model, the weights and their key."""
    from ortune.exporters.export import export_module, module_source

    here_counts()
    module = module_source(export_request)
    files = [source_file(name) for name in (export_request.source, module.weights)]
    texts = [digest_of(path) for path in files if path is not None]
    key = codec.digest(
        [
            codec.encode(module),
            export_request.dynamic,
            *texts,
            [codec.encode(spec) for spec in export_request.inputs],
        ]
    )
    key_path = folder / _KEY
    if key_path.is_file() and json.loads(key_path.read_text(encoding="utf-8")).get("key") == key:
        return
    folder.mkdir(parents=True, exist_ok=True)
    result = export_module(export_request, folder / "work", _MODEL)
    for path in result.path.parent.glob(f"{_MODEL}*"):
        path.replace(folder / path.name)
    if result.state is not None:
        result.state.replace(folder / _STATE)
    shutil.rmtree(folder / "work")
    record = codec.make_jsonable(replace(result, path=folder / _MODEL, state=folder / _STATE))
    write_text(key_path, json.dumps({"key": key, **record}, indent=1))
    export_request.sink(
        Note(
            f"exported by {result.exporter}: within {result.error:.2g} of PyTorch's answers at "
            f"{len(result.sizes)} sizes"
        )
    )


def compare_module(context: Context, rows: tuple[Backend, ...], sink: Sink) -> None:
    """Time the module beside the original and score it: rows of the table, and no more.

    Whatever goes wrong with a row is what the row says.
    """
    patient = replace(
        context, deadlines=replace(context.deadlines, seconds={}), timeout_s=_PATIENCE_S
    )
    with ExitStack() as stack:
        attempts = Attempts(patient, _SECONDS, sink, stack)
        for backend in rows:
            proposal = Proposal(
                Plan(Recipe("PyTorch"), backend), BESIDE, "what the model was exported from"
            )
            try:
                attempts.try_plan(proposal, always_score=True)
            except WorkerFailed as error:
                sink(
                    Note(
                        f"PyTorch was not timed: {summarize_error(error.failure.reason)}",
                        warning=True,
                    )
                )
                return
            except KeyboardInterrupt:
                sink(Note("interrupted: PyTorch was not timed", warning=True))
                return
