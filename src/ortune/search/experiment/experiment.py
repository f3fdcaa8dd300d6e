"""What an experiment is prepared from, as it was read, and when two are the same search."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from ortune.backends.bucketed import Bucketed
from ortune.core.acceptance import FASTEST
from ortune.core.augmentation import Augmentation
from ortune.core.backend import Backend
from ortune.core.budget import Budget
from ortune.core.capabilities import HERE
from ortune.core.errors import BadSettings
from ortune.core.plugins import catalog, codec
from ortune.core.plugins.spelling import read_environments
from ortune.core.plugins.user_function import digest_file, find_source, is_function
from ortune.core.self_agreement import SelfAgreement
from ortune.core.study import Job
from ortune.core.workload import Workload
from ortune.graph.io import file
from ortune.measurement.job import MAIN
from ortune.measurement.workloads.latency import Latency


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Models, samples to calibrate on and to score, and how the models will be used.

    Attributes:
        models: Name -> file; the only model is named "".
        workload: With the batch in it, and bursts that fit the time.
        budget: None derives one from the outputs.
        data: Samples to score; None makes some up.
        labels: Labels in the samples' order (.npy or .csv), or boxes by name (COCO .json).
        calibration: Samples to calibrate with, apart from `data`.
        ranges_from: Ranges of an earlier calibration, or a TensorRT calibration cache.
        augmentations: How samples are altered for copies to calibrate on too.
        sequence: What makes a sequence of samples: file, group or a number; empty without order.
        state: Outputs that are fed to inputs at the next step; found by their names if empty.
        shapes: Input -> shape of what is made up.
        ranges: Input -> lowest and highest value of what is made up.
        ignored: Outputs that the budget does not read and that need not be watched.
        time: Seconds; it limits how many samples are scored too.
        memory_limit: Bytes that each process may take.
        agreement: Whether the originals agree with themselves; None to find out.

    Raises:
        BadSettings: What is of samples is given without any, or samples for several models.
    """

    models: Mapping[str, Path]
    baseline: Backend
    workload: Workload = field(default_factory=Latency)
    budget: Budget | None = None
    data: str | Path | Callable[[], Any] | None = None
    labels: str | Path | None = None
    calibration: str | Path | Callable[[], Any] | None = None
    ranges_from: Path | None = None
    augmentations: tuple[Augmentation, ...] = ()
    sequence: str = ""
    state: tuple[str, ...] = ()
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    evaluate: str = ""
    ignored: tuple[str, ...] = ()
    time: float
    memory_limit: int | None = None
    verbose: bool = False
    environment: str = HERE
    agreement: SelfAgreement | None = None

    def __post_init__(self) -> None:
        if self.data is None and (self.calibration or self.labels):
            raise BadSettings(
                "--calibration and --labels go with --data; made-up samples have no labels, and "
                "--evaluate brings its own",
                fix="leave them out, or give --data too",
            )
        if self.data is None and self.augmentations:
            raise BadSettings(
                "--augment alters samples, and none are given",
                fix="give --data too; calls that --evaluate makes are not altered",
            )

        if self.data is not None and len(self.models) > 1:
            raise BadSettings(
                "--data cannot feed several models", fix="leave it out; --evaluate feeds them"
            )

    def leave_out(self, agreement: SelfAgreement) -> Self:
        """Return the same experiment without the optimizers that make its original wrong."""
        baseline = self.baseline.leave_out(agreement.disable, agreement.level)
        return replace(self, baseline=baseline, agreement=agreement)

    def digest_code(self) -> str:
        """Digest the user's functions and what the baseline reads: edited ones are another job."""
        metric = "" if self.budget is None else getattr(self.budget.metric, "path", "")
        fields = [getattr(self.baseline, name) for name in self.baseline.reads]
        read = [
            text for value in fields for text in ([value] if isinstance(value, str) else value)
        ]
        files = map(find_source, [*filter(is_function, (self.evaluate, metric)), *read])
        return " ".join(
            [self.evaluate, *(digest_file(path) for path in files if path is not None)]
        )


def name_models(
    paths: Sequence[Path], evaluate: str, ranges_from: str | Path | None
) -> dict[str, Path]:
    """Name model files by their stems; the only model is named "".

    Raises:
        BadSettings: Several without an evaluate function, or with one model's ranges, or two of
            one name.
    """
    if len(paths) == 1:
        return {MAIN: paths[0]}
    if ranges_from is not None:
        raise BadSettings(
            f"--ranges-from fits a single model, and {len(paths)} are given",
            fix="leave it out: they are calibrated on the calls that --evaluate makes",
        )
    if not evaluate:
        raise BadSettings(
            f"models given without --evaluate: {len(paths)}",
            fix="give --evaluate FILE.py:NAME, which runs them together, or one model at a time",
        )
    by_stem = {path.stem: path for path in paths}
    if len(by_stem) < len(paths):
        raise BadSettings("two models have the same file name", fix="rename one of them")
    return by_stem


def model_digest(models: Mapping[str, Path]) -> str:
    """Digest the files of a job's models, external data included."""
    return codec.digest([[name, file.compute_digest(path)] for name, path in models.items()])


def job_key(job: Job) -> str:
    """Digest everything a trial depends on beside its plan.

    The model's path does not count, nor by what the winner is chosen.
    """
    source = catalog.source_digest(job.workload)
    return codec.digest([replace(job, model="", budget_rule="", wanted=FASTEST), source])


def worker_environment(job: Job, backend: Backend) -> str:
    """Return the environment that a backend's workers run in; behind buckets, the inner one's."""
    inner = backend.inner if isinstance(backend, Bucketed) else backend
    return (
        read_environments(job.on).get(inner.name(), job.environment) if job.on else job.environment
    )


def describe_difference(first: Job, second: Job) -> str:
    """Return what differs between two jobs in a few words, or an empty text."""
    differences = [
        f"its {name} is {a}, not {b}"
        for name, a, b in (
            ("budget", str(first.budget), str(second.budget)),
            ("baseline", str(first.baseline), str(second.baseline)),
            ("--on", first.on, second.on),
            ("environment", first.environment, second.environment),
            ("--ignore-output", ", ".join(first.ignored), ", ".join(second.ignored)),
            ("workload", str(first.workload), str(second.workload)),
            ("winner", str(first.wanted), str(second.wanted)),
        )
        if a != b
    ]
    digests = {
        "model": first.model_digest != second.model_digest,
        "data": first.data_digest != second.data_digest,
        "versions": dict(first.versions) != dict(second.versions),
        "machine": dict(first.machine) != dict(second.machine),
    }
    changed = [name for name, differs in digests.items() if differs]
    return ", ".join([*differences, *([f"other {' and '.join(changed)}"] if changed else [])])
