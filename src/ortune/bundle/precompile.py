"""What the providers of a bundle's plans compile of its models ahead of time."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from ortune.core.backend import Backend
from ortune.core.errors import BadModel, BadSettings
from ortune.core.plugins import codec
from ortune.core.study import Study
from ortune.core.trial import Trial
from ortune.data.stream import Stream
from ortune.engine.golden import TOLERANCE_DB, snr_db
from ortune.engine.manifest import COMPILED, own
from ortune.engine.plans.compiled import HOME, CompiledPlan
from ortune.experiment import golden
from ortune.measurement.job import WorkerJob
from ortune.measurement.outputs import keep_outputs
from ortune.measurement.process import Worker, WorkerFailed, lone
from ortune.runtimes.onnxruntime.compiled import Compiling

_LIMIT_S = 3600.0
"""For one model: engines of large models take a quarter of an hour."""


@dataclass(frozen=True)
class Precompiled:
    """Members of a bundle beside the plain models.

    Attributes:
        files: Member -> compiled model.
        texts: The member that says what they are and what for.
    """

    files: Mapping[str, Path] = field(default_factory=dict)
    texts: Mapping[str, bytes] = field(default_factory=dict)


@contextmanager
def precompiled(
    study: Study, trials: Sequence[Trial], *, asked: bool = True
) -> Iterator[Precompiled]:
    """Compile the models of every plan whose provider can, each in a process of its own.

    Each compiled model is opened again and must answer the golden samples as the plan did. The
    files are there within the block.

    Args:
        trials: The plans of the bundle, in its order.
        asked: Nothing is compiled without.

    Raises:
        BadModel: A provider does not compile a model, or what it made does not open or answers
            otherwise.
        BadSettings: No plan's provider compiles.
    """
    if not asked:
        yield Precompiled()
        return
    with TemporaryDirectory(prefix="ortune-", ignore_cleanup_errors=True) as folder:
        yield _all(study, trials, Path(folder))


def _all(study: Study, trials: Sequence[Trial], folder: Path) -> Precompiled:
    plans, files = [], {}
    for place, trial in enumerate(trials):
        backend = trial.plan.backend
        if not isinstance(backend, Compiling):
            continue
        members, targets = {}, []
        for name, source in study.models.items():
            model = golden.built_model(Path(study.root), trial, Path(source))
            out = folder / f"{place}" / (f"{name}.onnx" if name else model.name)
            out.parent.mkdir(parents=True, exist_ok=True)
            targets.append(_compiled(study, trial, name, model, out))
            members[name] = own(place, f"{HOME}/{out.name}")
            files[members[name]] = out
        plans.append(CompiledPlan(place, members, targets[0]))
    if not plans:
        named = ", ".join(sorted({one.plan.backend.name() for one in trials}))
        raise BadSettings(f"{named} compiles no model ahead of time", fix="leave --compiled out")
    return Precompiled(files, {COMPILED: json.dumps(codec.encode(plans), indent=1).encode()})


def _compiled(study: Study, trial: Trial, name: str, model: Path, out: Path) -> Mapping[str, str]:
    """Compile one model and check it; return what it is for."""
    root, backend = Path(study.root), trial.plan.backend
    golden.ensure(study, trial)
    inputs = golden.inputs_path(root, name)
    expected = Stream(golden.outputs_path(root, name, trial))
    answers = out.with_suffix(".stream")
    try:
        with Worker(_job(study, model, backend, inputs), timeout_s=_LIMIT_S) as worker:
            made_for: Mapping[str, str] = worker.ask("precompile", out=str(out))["made_for"]
        with Worker(_job(study, out, backend, inputs), timeout_s=_LIMIT_S) as worker:
            worker.ask("load")
            found = keep_outputs(worker, range(len(expected)), answers)
    except WorkerFailed as error:
        raise BadModel(
            f"{model.name} is not compiled for '{backend}': {error.failure.reason}",
            fix=error.failure.fix or "leave --compiled out",
        ) from None
    worst = min(map(snr_db, expected, found), default=TOLERANCE_DB)
    if worst < TOLERANCE_DB:
        raise BadModel(
            f"{model.name} compiled for '{backend}' answers {worst:.0f} dB from the plan",
            fix="leave --compiled out",
        )
    return made_for


def _job(study: Study, model: Path, backend: Backend, inputs: Path) -> WorkerJob:
    place = study.job.environment
    return lone(model, backend, inputs, Path(study.root), "compiled", environment=place)
