"""What an experiment is prepared from: models, samples and an accuracy budget."""

from __future__ import annotations

import importlib.util
from contextlib import suppress
from dataclasses import KW_ONLY
from hashlib import file_digest
from pathlib import Path
from typing import Annotated, ClassVar

from ortune.core.backend import Backend
from ortune.core.custom_ops import BudgetRequest, CustomOpsRequest, add_custom_ops
from ortune.core.errors import BadSettings
from ortune.core.fields import Duration, File, Files, Option, Source, make_paths
from ortune.core.plugins.spelling import parse_plugin
from ortune.core.plugins.user_function import here_counts, is_function
from ortune.core.request import DataRequest, request
from ortune.core.workload import Workload
from ortune.data.sequences.request import SequenceRequest
from ortune.measurement.job import MAIN


@request
class ExperimentRequest(SequenceRequest, CustomOpsRequest, DataRequest, BudgetRequest):
    """Models, samples to calibrate on and to score, and how the models will be used.

    Attributes:
        model: ONNX files; several are run together by --evaluate.
        labels: Labels in the samples' order (.npy or .csv), or boxes by name (COCO .json).
        calibration: Samples to calibrate with, apart from --data.
        ranges_from: Ranges from `ortune calibrate -o`, or a TensorRT calibration cache.
        augment: Altered copies to calibrate on too, such as "noise(db=30),flip,scale"; never
            scored.
        evaluate: Score with fn(run), which calls run(**inputs) and returns per-sample records.
        budget: The worst score allowed, such as "top1>=base-0.01" or "cosine>=0.999"; derived
            from the outputs without it.
        ignore_output: Output that the budget does not read and that need not be watched; repeat
            it.
        baseline: What to beat: where the untouched file runs; cpu.
        time: When to stop, such as 60s or 10m; it limits how many samples are scored too.
        workload: How the model will be used, such as "throughput" or "arrivals(rate=50)".
        batch: Samples stacked into one run; 0 takes them as they come.
        verbose: Let the runtime log to stderr.
    """

    whole: ClassVar[bool] = False
    """Score all samples as one part: for comparing two given files."""

    model: Files
    _: KW_ONLY
    labels: File | None = None
    calibration: Source = None
    ranges_from: File | None = None
    augment: Annotated[str | None, Option("SPECS")] = None
    evaluate: Annotated[str | None, Option("MODULE:FN")] = None
    ignore_output: Annotated[tuple[str, ...], Option("NAME", "--ignore-output")] = ()
    baseline: Annotated[str | Backend | None, Option("BACKEND")] = None
    time: Duration = Duration("3m")
    workload: Annotated[str | Workload, Option("SPEC")] = "latency"
    batch: Annotated[int, Option(low=0)] = 0
    verbose: Annotated[bool, Option(word="--runtime-log")] = False

    @property
    def original(self) -> Backend:
        """Where the untouched models run."""
        if isinstance(self.baseline, Backend):
            return self.baseline
        return parse_plugin(Backend, add_custom_ops(self.baseline or "cpu", self.custom_ops))

    @property
    def driven(self) -> Workload:
        """The workload, with the batch in it and bursts that fit the time."""
        from ortune.core.reading import read_workload  # a request is read without NumPy

        return read_workload(self.workload, self.batch).within(float(self.time))

    @property
    def models(self) -> tuple[Path, ...]:
        """The files."""
        return make_paths(self.model)

    @property
    def names(self) -> dict[str, Path]:
        """Name -> file; the only model is named "".

        Raises:
            BadSettings: Several models without an evaluate function, two of one name, or options
                that cannot be read or do not go together.
        """
        if self.data is None and (self.calibration or self.labels):
            raise BadSettings(
                "--calibration and --labels go with --data; made-up samples have no labels, and "
                "--evaluate brings its own",
                fix="leave them out, or give --data too",
            )
        if self.data is None and self.augment:
            raise BadSettings(
                "--augment alters samples, and none are given",
                fix="give --data too; calls that --evaluate makes are not altered",
            )
        if len(self.models) == 1:
            return {MAIN: self.models[0]}
        if self.ranges_from is not None:
            raise BadSettings(
                f"--ranges-from is of one model, and {len(self.models)} are given",
                fix="leave it out: they are calibrated on the calls that --evaluate makes",
            )
        if not self.evaluate:
            raise BadSettings(
                f"models given without --evaluate: {len(self.models)}",
                fix="give --evaluate pkg.module:function, which runs them together",
            )
        by_stem = {path.stem: path for path in self.models}
        if len(by_stem) < len(self.models):
            raise BadSettings("two models have the same file name", fix="rename one of them")
        return by_stem

    def functions_digest(self) -> str:
        """Digest the user's functions and what the baseline reads: edited ones are another job."""
        here_counts()
        metric = (self.budget or "").partition(">")[0].partition("<")[0].strip()
        backend = self.original
        fields = [getattr(backend, name) for name in backend.reads]
        read = [
            text for value in fields for text in ([value] if isinstance(value, str) else value)
        ]
        names = [*filter(is_function, (self.evaluate or "", metric)), *read]
        files = [source_file(name) for name in names]
        texts = [digest_of(path) for path in files if path is not None]
        return " ".join([self.evaluate or "", *texts])


def source_file(name: str) -> Path | None:
    """Return the file so named, or that of ``pkg.module:function``; None where none is."""
    if name and Path(name).is_file():
        return Path(name)
    with suppress(ImportError, ValueError):
        spec = importlib.util.find_spec(name.partition(":")[0].replace("-", "_"))
        if spec and spec.origin:
            return Path(spec.origin)
    return None


def digest_of(path: Path) -> str:
    """Digest a file's bytes."""
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()
