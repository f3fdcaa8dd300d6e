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
from ortune.core.errors import BadSettings, gist
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


def repeatable(asked: Optimize) -> Optimize:
    """Return a request whose settings file names a function as it was: it is no path."""
    return replace(
        asked, model=[name if is_function(name) else Path(name) for name in _named(asked)]
    )


def _named(asked: Optimize) -> list[str]:
    return [str(path) for path in asked.models]


def exported(asked: Optimize, root: Path) -> tuple[Optimize, tuple[Backend, ...]]:
    """Export the module that a search is asked for, once a run.

    Returns:
        The request with the exported file as its model, and the module as backends, eager and
        compiled; the request as it is and none where it names a model file.

    Raises:
        OrtuneError: The module does not load or run, or no export answers like it.
    """
    named = _named(asked)
    modules = [text for text in named if is_source(text)]
    if not modules:
        options = {"--weights": asked.weights, "--input": asked.inputs, "--dynamic": asked.dynamic}
        if used := [word for word, value in options.items() if value]:
            raise BadSettings(
                f"{used[0]} is of a PyTorch module, and the model is a file",
                fix="give pkg.module:factory in place of the file, or leave it out",
            )
        return asked, ()
    if len(named) > 1:
        raise BadSettings(
            f"several models are given, and {modules[0]} is a module",
            fix="run `ortune export` on each first",
        )
    source, folder = modules[0], root.absolute() / FOLDER
    shared = {one.name: getattr(asked, one.name) for one in fields(ModuleRequest)}
    given = Export(
        source, ranges=asked.ranges, memory_limit=asked.memory_limit, out=folder / _MODEL, **shared
    )
    _export(given, folder)
    own = Path(source).suffix in (".pt", ".pth", ".ts", ".jit", ".pt2")
    plain = Torch(
        threads=asked.original.threads,
        source=str(Path(source).absolute()) if Path(source).exists() else source,
        weights="" if own else str(folder / _STATE),
    )
    return replace(asked, model=folder / _MODEL), (plain, replace(plain, compile=True))


def _export(given: Export, folder: Path) -> None:
    """Export into a folder that then holds the model, the weights and their key."""
    from ortune.exporters.export import export_module, module_source

    here_counts()
    module = module_source(given)
    files = [source_file(name) for name in (given.source, module.weights)]
    texts = [digest_of(path) for path in files if path is not None]
    key = codec.digest(
        [codec.encode(module), given.dynamic, *texts, [codec.encode(one) for one in given.inputs]]
    )
    known = folder / _KEY
    if known.is_file() and json.loads(known.read_text(encoding="utf-8")).get("key") == key:
        return
    folder.mkdir(parents=True, exist_ok=True)
    found = export_module(given, folder / "work", _MODEL)
    for path in found.path.parent.glob(f"{_MODEL}*"):
        path.replace(folder / path.name)
    if found.state is not None:
        found.state.replace(folder / _STATE)
    shutil.rmtree(folder / "work")
    told = codec.jsonable(replace(found, path=folder / _MODEL, state=folder / _STATE))
    write_text(known, json.dumps({"key": key, **told}, indent=1))
    given.sink(
        Note(
            f"exported by {found.exporter}: within {found.error:.2g} of PyTorch's answers at "
            f"{len(found.sizes)} sizes"
        )
    )


def compare(context: Context, rows: tuple[Backend, ...], sink: Sink) -> None:
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
                attempts.one(proposal, always_score=True)
            except WorkerFailed as error:
                sink(Note(f"PyTorch was not timed: {gist(error.failure.reason)}", warning=True))
                return
            except KeyboardInterrupt:
                sink(Note("interrupted: PyTorch was not timed", warning=True))
                return
