"""What `optimize` is asked, and what an experiment is prepared from."""

from __future__ import annotations

from dataclasses import KW_ONLY, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from ortune.core.backend import Backend
from ortune.core.custom_ops import BudgetRequest, CustomOpsRequest, add_custom_ops
from ortune.core.errors import BadSettings
from ortune.core.fields import (
    ByteSize,
    Counts,
    Duration,
    File,
    Models,
    Option,
    OptionalDuration,
    Source,
    make_paths,
)
from ortune.core.plugins.spelling import parse_plugin
from ortune.core.request import DataRequest, request
from ortune.core.workload import Workload
from ortune.data.sequences.request import SequenceRequest
from ortune.exporters.request import Export, ModuleRequest

if TYPE_CHECKING:
    from ortune.core.acceptance import Goal
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


@request
class Optimize(ModuleRequest, ExperimentRequest):
    """Find the fastest version of MODEL that keeps the answers, and prove it.

    Several models are searched one by one, each into a folder of its own in --out, and make one
    table; {model} in --data, --labels or --calibration is replaced by the model's name. With
    --evaluate they are one job (an encoder and its decoder), tuned together. The original is a
    valid answer: nothing slower and nothing outside the budget is ever handed back. A
    RUN/ortune.toml in place of MODEL repeats that run. A PyTorch module in its place, as `ortune
    export` takes it, is exported and verified first, and timed beside the plans.

    Example:
        ortune optimize model.onnx --data samples/ --budget "top1>=base-0.01" -o run
        ortune optimize model.onnx --data samples/ --on cpu,openvino --time 3m --json
        ortune optimize zoo/*.onnx --data "samples/{model}" -o runs

    Attributes:
        on: Where to run: backends by comma, such as "cpu(threads=2),openvino"; settings that are
            given are not tuned. auto takes every backend that runs here.
        steps: A step of your own to try too, FILE.py:NAME, or another exact step.
        budget: The worst score allowed, such as "top1>=base-0.01" or "cosine>=0.999"; derived
            from the outputs without it. Several limits, such as "cosine>=0.999|0.998", get an
            answer each; the result is that of the first.
        target_speedup: Stop at the first proved plan that is X times as fast.
        strict: Accept only plans whose accuracy is proved, not those where it is likely.
        prefer: By what the result is chosen: speed, or the least size or memory among plans that
            are not slower than the original (within noise).
        max_size: Bound on the result's model file with its external data, such as 100MB.
        max_memory: Bound on the peak memory of a process that runs the result, such as 500MB;
            --memory-limit bounds ortune's own.
        portable: Try nothing that is bound to this machine's CPU.
        batches: After the search, time the leading plans at these batches too, such as 1,4,16, and
            name the best at each.
        max_latency: Longest latency of one run, such as 20ms: among --batches, name the one with
            the highest throughput within it.
        memory_limit: Bound on what all of ortune's processes take together, such as 4G; most of
            what is free if not given. --max-memory bounds the result.
        fixed_shapes: Fix the inputs to the one shape that all samples have: the result takes no
            other. Without it the report says what would be gained.
        regions: Measure regions of plans that are fast but lose too much, and try mixtures: what
            costs most accuracy for its time is left in float. A run begun without goes on without.
        devices: After the search, time the finalists on these machines too, ssh:FILE.toml (all of
            them), ssh:FILE.toml#DEVICE or ray[://HOST:PORT][#KIND] (a node of each kind), and name
            the best plan on each.
        executor: Where plans are timed: local, ssh:FILE.toml#DEVICE, or ray[://HOST:PORT][#KIND].
        cache: Folder or s3://BUCKET/FOLDER in which a team shares builds, ranges and, between
            similar machines, measurements.
        out: The run's folder; the same command resumes it. With several models it holds a folder
            for each.
        command: The command line to repeat in reports.

    Returns:
        The `Study`: every trial, and what follows from them.

    Raises:
        OrtuneError: Model, data, budget or folder cannot be used.
    """

    formerly: ClassVar[dict[str, str]] = {
        "models": "model",
        "rules": "steps",
        "rule": "steps",
        "warm_start": "",
        "policy": "",
    }
    takes_budget_steps: ClassVar[bool] = True

    _: KW_ONLY
    on: Annotated[str, Option("BACKENDS")] = "auto"
    steps: Annotated[tuple[str, ...], Option("STEP", "--step")] = ()
    target_speedup: Annotated[float | None, Option("X", low=1)] = None
    strict: bool = False
    prefer: Literal["speed", "size", "memory"] = "speed"
    max_size: ByteSize = ByteSize(None)
    max_memory: ByteSize = ByteSize(None)
    portable: bool = False
    batches: Counts = Counts(())
    max_latency: OptionalDuration = OptionalDuration(None)
    fixed_shapes: bool = False
    regions: Annotated[bool, Option(hidden=True)] = True
    devices: Annotated[str | None, Option("WHERE")] = None
    executor: Annotated[str, Option("WHERE")] = "local"
    cache: Annotated[str | None, Option("DIR|URL")] = None
    out: Annotated[str | Path, Option("PATH", "-o --out")] = "ortune-run"
    command: Annotated[str, Option(python=True)] = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if 0 in self.batches:
            raise BadSettings("batches: 0 is too small", fix="give batches of 1 or more")
        if self.batches and self.fixed_shapes:
            raise BadSettings(
                "--fixed-shapes makes a model of one batch, and --batches asks for others",
                fix="leave one of them out",
            )
        if self.max_latency is not None and not self.batches:
            raise BadSettings(
                "--max-latency chooses among batches, and none are given",
                fix="give --batches too, such as --batches 1,4,16",
            )
        budget = self.read_budget()
        if self.target_speedup is not None and budget is not None and budget.looser:
            raise BadSettings(
                f"--target-speedup stops at one answer, and budget '{budget}' asks for several",
                fix=f'leave it out, or write --budget "{budget.steps[0]}"',
            )

    def make_export(self, out: Path) -> Export | None:
        """Return the request that exports the module to search for; None where it is a file.

        Raises:
            BadSettings: Several models are given, or a file with what is of a module.
        """
        from ortune.backends.runtimes.torch.module import is_source

        names = [str(path) for path in make_paths(self.model)]
        shared = {field.name: getattr(self, field.name) for field in fields(ModuleRequest)}
        source = next(filter(is_source, names), None)
        if source is None:
            options = {"weights": "--weights", "inputs": "--input", "dynamic": "--dynamic"}
            if module_options := [option for name, option in options.items() if shared[name]]:
                raise BadSettings(
                    f"{module_options[0]} needs a PyTorch module, and the model is a file",
                    fix="give FILE.py:NAME in place of the file, or leave it out",
                )
            return None
        if len(names) > 1:
            raise BadSettings(
                f"several models are given, and {source} is a module",
                fix="run `ortune export` on each first",
            )
        ranges, limit = self.ranges, self.memory_limit
        return Export(source, ranges=ranges, memory_limit=limit, out=out, **shared)

    @property
    def makes(self) -> tuple[Path, ...]:
        """The run's folder."""
        return (Path(self.out),)

    def keeps(self, path: Path) -> bool:
        """A run with a trial in it stays, and one that another search is at work in."""
        from ortune.search.experiment.ledger import has_trials  # a request is read without NumPy

        return any(map(has_trials, [path, *path.glob("*/")]))

    @property
    def goal(self) -> Goal:
        """By what the winner is chosen."""
        from ortune.core.acceptance import Goal  # a request is read without NumPy

        return Goal(self.prefer, self.max_size, self.max_memory, self.portable)
