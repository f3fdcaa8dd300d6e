"""Golden samples: a few inputs with a plan's outputs, by which a bundle checks itself."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ortune.core.errors import BadData, BadSettings
from ortune.core.hardware.cpus import effective_cpus
from ortune.core.plugins import codec, stored
from ortune.core.study import Study
from ortune.core.trial import Trial
from ortune.data import stream
from ortune.graph.io import file
from ortune.measurement.process import WorkerFailed, compute_outputs, single_model_job
from ortune.search.experiment.experiment import worker_environment

if TYPE_CHECKING:
    from ortune.search.experiment.context import Context

COUNT = 2
_SHARE = 0.1
"""Of the model's size: what golden samples may take, unless one sample alone takes more."""


def write_inputs(context: Context) -> None:
    """Write the inputs, once: with them any trial of the run can be packed."""
    for name, path in context.feeds.items():
        inputs = inputs_path(context.root, name)
        if not inputs.is_file():
            feeds = stream.Stream(path)
            stream.write_stream(inputs, (feeds[i] for i in range(min(COUNT, len(feeds)))))


def write_golden_samples(study: Study, context: Context) -> None:
    """Write RUN/golden: inputs once, outputs of the best trial; one sample if they are large."""
    root = context.root
    write_inputs(context)
    ensure_outputs(study, study.best)
    for name, source in study.models.items():
        files = inputs_path(root, name), outputs_path(root, name, study.best)
        room = _SHARE * file.count_file_bytes(find_built_model(root, study.best, Path(source)))
        if sum(path.stat().st_size for path in files) > room:
            for path in files:
                first = {name: np.array(array) for name, array in stream.Stream(path)[0].items()}
                stream.write_stream(path, iter([first]))


def ensure_outputs(study: Study, trial: Trial, *, custom_ops: bool = True) -> None:
    """Write the golden outputs of a trial unless they are there.

    Threads above the CPUs at hand are lowered: they change no answer.

    Args:
        custom_ops: Whether code that the run names may run for it.

    Raises:
        BadData: The run's folder has no golden inputs, or the trial does not run any more.
        BadSettings: It names code that may not run.
    """
    root = Path(study.root)
    backend, _ = stored.limit_threads(trial.plan.backend, effective_cpus())
    code_names = () if custom_ops else stored.list_code_names(codec.encode(backend))
    for name, source in study.models.items():
        path = outputs_path(root, name, trial)
        if path.is_file():
            continue
        inputs = inputs_path(root, name)
        if not inputs.is_file():
            raise BadData(
                f"the run {root} has no golden samples: it did not finish",
                fix="run the same `ortune optimize` again; it resumes",
            )
        if code_names:
            raise BadSettings(
                f"trial {trial.key[:8]} runs code of its own for its golden samples: "
                f"{', '.join(code_names)}",
                fix="if you trust this run: pack(..., custom_ops=True), or --allow-custom-ops",
            )
        model = find_built_model(root, trial, Path(source))
        where = worker_environment(study.job, backend)
        job = single_model_job(model, backend, inputs, root, "golden", environment=where)
        try:
            compute_outputs(job, range(len(stream.Stream(inputs))), path)
        except WorkerFailed as error:
            error.demand_verdict()
            raise BadData(
                f"the plan does not run any more: {error.failure.reason}",
                fix=error.failure.reproduce,
            ) from None


def find_built_model(root: Path, trial: Trial, source: Path) -> Path:
    """Return the file that a trial ran for one of the job's models."""
    built = root / trial.artefact / f"{source.stem}.onnx" if trial.artefact else source
    return built if built.is_file() else source


def inputs_path(root: Path, name: str) -> Path:
    """Return where the golden inputs of a model are."""
    return root / "golden" / f"{name or 'model'}.inputs.stream"


def outputs_path(root: Path, name: str, trial: Trial) -> Path:
    """Return where the golden outputs of a trial's model are."""
    return root / "golden" / f"{name or 'model'}.{trial.key}.stream"
