"""What an experiment is prepared from: models, samples and an accuracy budget."""

from __future__ import annotations

from dataclasses import KW_ONLY
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ortune.core.backend import Backend
from ortune.core.custom_ops import BudgetRequest, CustomOpsRequest, add_custom_ops
from ortune.core.fields import Duration, File, Models, Option, Source, make_paths
from ortune.core.plugins.spelling import parse_plugin
from ortune.core.request import DataRequest, request
from ortune.core.workload import Workload
from ortune.data.sequences.request import SequenceRequest

if TYPE_CHECKING:
    from ortune.search.experiment.experiment import Experiment


@request
class ExperimentRequest(SequenceRequest, CustomOpsRequest, DataRequest, BudgetRequest):
    """Models, samples to calibrate on and to score, and how the models will be used.

    Attributes:
        model: ONNX files; several are one job with --evaluate, which runs them together.
        labels: Labels in the samples' order (.npy, .csv) or by file name (.csv, COCO .json).
        calibration: Samples to calibrate with, apart from --data.
        ranges_from: Ranges from `ortune calibrate -o`, or a TensorRT calibration cache.
        augment: Augmented copies to calibrate on too, such as "noise(db=30),flip,scale"; never
            scored.
        evaluate: Your own scoring function: NAME(run) calls run(**inputs) and returns one record
            per sample.
        budget: The worst score allowed, such as "top1>=base-0.01" or "cosine>=0.999"; derived
            from the outputs without it.
        ignore_output: Output whose values may change: the budget does not read it. Repeat it for
            several.
        baseline: Backend that runs the original file, which the plans must beat; cpu if not given.
        time: When to stop, such as 60s or 10m; it limits how many samples are scored too.
        workload: How the model will be used, such as "throughput" or "arrivals(rate=50)".
        batch: Samples stacked into one run; 0 takes them as they come.
        verbose: Let the runtime log to stderr.
    """

    model: Models
    _: KW_ONLY
    labels: File | None = None
    calibration: Source = None
    ranges_from: File | None = None
    augment: Annotated[str | None, Option("SPECS")] = None
    evaluate: Annotated[str | None, Option("FILE.py:NAME")] = None
    ignore_output: Annotated[tuple[str, ...], Option("NAME", "--ignore-output")] = ()
    baseline: Annotated[str | Backend | None, Option("BACKEND")] = None
    time: Duration = Duration("3m")
    workload: Annotated[str | Workload, Option("SPEC")] = "latency"
    batch: Annotated[int, Option(low=0)] = 0
    verbose: Annotated[bool, Option(word="--runtime-log", hidden=True)] = False

    def read_experiment(self) -> Experiment:
        """Return what is asked for, every text of it read.

        Raises:
            BadSettings: Several models without an evaluate function, two of one name, or options
                that cannot be read or do not go together.
        """
        # A request is made without NumPy.
        from ortune.core.reading import read_workload
        from ortune.data.augment import parse_augmentations
        from ortune.search.experiment.experiment import Experiment, name_models

        baseline = self.baseline
        if not isinstance(baseline, Backend):
            spelled = add_custom_ops(baseline or "cpu", self.custom_ops)
            baseline = parse_plugin(Backend, spelled)
        return Experiment(
            models=name_models(make_paths(self.model), self.evaluate or "", self.ranges_from),
            baseline=baseline,
            workload=read_workload(self.workload, self.batch).within(float(self.time)),
            budget=self.read_budget(),
            data=self.data,
            labels=self.labels,
            calibration=self.calibration,
            ranges_from=None if self.ranges_from is None else Path(self.ranges_from),
            augmentations=parse_augmentations(self.augment) if self.augment else (),
            sequence=self.sequence,
            state=tuple(self.state),
            shapes=self.shapes,
            ranges=self.ranges,
            evaluate=self.evaluate or "",
            ignored=tuple(self.ignore_output),
            time=self.time,
            memory_limit=self.memory_limit,
            verbose=self.verbose,
        )
