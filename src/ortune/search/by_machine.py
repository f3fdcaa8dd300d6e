"""After a search: its finalists on other machines, built and scored once, timed on each."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from ortune.core.errors import BadSettings, OrtuneError
from ortune.core.event import Note, Sink
from ortune.core.study import Ending, Study
from ortune.core.trial import Trial
from ortune.data import stream
from ortune.measurement.devices import Device, LinkLost, open_device
from ortune.measurement.executors import open_devices
from ortune.measurement.process import (
    WorkerFailed,
    compute_outputs,
    require_backend,
    single_model_job,
)
from ortune.measurement.timing import stats
from ortune.measurement.timing.deadlines import Deadlines
from ortune.search.by_batch import PlacedTrials
from ortune.search.experiment import golden
from ortune.search.experiment.context import Context
from ortune.search.experiment.keys import describe_difference
from ortune.search.experiment.ledger import Ledger, read_header, write_ending, write_header
from ortune.search.recipe.compare import compute_snr_db

SHARE = 0.3
"""Of the time: what the other machines get; the search has the rest."""
_PATIENCE_S = 300.0
"""That a request to another machine may take: how fast it is nobody knows."""
_ALIKE_DB = 40.0
"""Answers this near to those that were scored have their scores (as golden samples have)."""


@dataclass
class Visit:
    """Times finalists on machines in turns with the original, each machine by itself.

    Attributes:
        seconds: For all machines together.
        notes: What went wrong, a line a machine.
    """

    context: Context
    study: Study
    seconds: float
    sink: Sink
    notes: list[str] = field(default_factory=list)

    def run(self, executor: str) -> None:
        """Time what was accepted here; a machine that is not reached is a note."""
        plans = [trial for trial in self.study.final if self.study.accepts(trial)]
        golden.write_inputs(self.context)
        for trial in plans:
            golden.ensure_outputs(self.study, trial)
        with open_devices(executor) as devices:
            turns = len(devices) * max(1, len(plans)) * stats.PAIRS
            pair_seconds = min(4.0, max(0.5, self.seconds / turns))
            for device in devices:
                if device.name == self.context.job.environment:
                    continue  # the search was made there
                try:
                    with open_device(device) as environment:
                        self._visit(device, environment, plans, pair_seconds)
                except (LinkLost, WorkerFailed, OrtuneError) as error:
                    self.notes.append(f"on {device.name}: {str(error).splitlines()[0]}")
                    self.sink(Note(self.notes[-1], warning=True))

    def _visit(
        self, device: Device, environment: str, plans: list[Trial], pair_seconds: float
    ) -> None:
        context, root = self.context, self.context.root / "machines" / device.name
        offer = require_backend(context.job.baseline, environment)
        job = replace(
            context.job,
            environment=environment,
            on="",
            machine=offer.machine,
            versions=offer.versions,
        )
        former = read_header(root)
        if former is not None and (changed := describe_difference(former.job, job)):
            raise BadSettings(
                f"{root} holds times of another machine: {changed}", fix="remove that folder"
            )
        root.mkdir(parents=True, exist_ok=True)
        write_header(root, replace(self.study.header, job=job))
        ledger = Ledger(root)
        ledger.set_aside(lambda trial: trial.interruption is not None)
        there = replace(
            context, job=job, deadlines=Deadlines(), timeout_s=_PATIENCE_S, shared=None, ahead=None
        )
        name = f"on {device.name}"
        placed = PlacedTrials(name, there, ledger, pair_seconds, self.sink, self.study.trials)
        if not ledger.trials:
            with placed.start_original() as (live, _):
                placed.time_original(self.study.baseline, live)
        for trial in plans:
            if ledger.find(trial.key, "final") is None:
                alike = self._answers_alike(trial, environment, root)
                placed.confirm_plan(trial if alike else replace(trial, scores=()))
        write_ending(root, Ending(finished="done", strict=self.study.strict))

    def _answers_alike(self, trial: Trial, environment: str, folder: Path) -> bool:
        """Whether a plan answers there as where it was scored; where not, it is scored there."""
        root = self.context.root
        for name, source in self.study.models.items():
            inputs = golden.inputs_path(root, name)
            expected = stream.Stream(golden.outputs_path(root, name, trial))
            model = golden.find_built_model(root, trial, Path(source))
            backend = trial.plan.backend
            job = single_model_job(
                model, backend, inputs, folder, "golden", environment=environment
            )
            path = folder / f"{name or 'model'}.{trial.key}.stream"
            actual = compute_outputs(job, range(len(expected)), path)
            if compute_snr_db(list(expected), list(actual)) < _ALIKE_DB:
                self.sink(Note(f"{trial.key[:8]} answers otherwise there: it is scored there"))
                return False
        return True
