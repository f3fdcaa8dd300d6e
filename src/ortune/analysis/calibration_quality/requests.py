"""What `calibrate` and `compare_observers` are asked."""

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY
from pathlib import Path
from typing import Annotated, Any, ClassVar

from ortune.core.custom_ops import BackendRequest, BudgetRequest, CustomOpsRequest
from ortune.core.errors import BadSettings
from ortune.core.fields import File, InputShapes, Model, Option, Out, Source
from ortune.core.request import UnpackRequest, request
from ortune.data.sequences.request import SequenceRequest

OBSERVERS = (
    *("min-max", "min-max(average=0.05)"),
    *("percentile(p=99.9)", "percentile(p=99.99)", "percentile(p=99.999)"),
    *("entropy", "mse"),
)
"""What is compared if nothing else is asked for."""


@request
class CalibrationRequest(SequenceRequest, CustomOpsRequest, UnpackRequest):
    """What both have in common.

    Attributes:
        model: The model file.
        data: Samples: a folder of .npz, .npy per input or images, a .jsonl file, or
            FILE.py:NAME.
        step: Quantizer whose tensors are calibrated.
        samples: Number of samples to calibrate on, spread over the data; all if not given.
        shapes: Shape of a state at the first step of a sequence, such as h:2x1x128.
        augment: Augmented copies to calibrate on too, such as "noise(db=30),flip,scale"; never
            scored.
    """

    formerly: ClassVar[dict[str, str]] = {"quantizer": "step"}

    model: Model
    _: KW_ONLY
    data: Source = None
    step: Annotated[str, Option("SPEC")] = "int8-static(head=true)"
    samples: Annotated[int | None, Option(low=1)] = None
    shapes: InputShapes = InputShapes(None, Option("INPUT:DIMS", "--shape"))
    augment: Annotated[str, Option("SPECS")] = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shapes and not self.sequence:
            raise BadSettings(
                f"--shape {next(iter(self.shapes))} is the shape of a state, and without "
                "--sequence there is no state",
                fix="leave it out, or give --sequence too",
            )

    @property
    def source(self) -> str | Path | Callable[[], Any]:
        """The samples.

        Raises:
            BadSettings: There are none.
        """
        if self.data is None:
            raise BadSettings(
                "--data is missing: made-up samples have made-up ranges", fix="give --data SOURCE"
            )
        return self.data


@request
class Calibrate(CalibrationRequest):
    """Find the ranges that static quantization needs, and whether the data is enough.

    The tensors that a quantizer asks for are observed over all samples and over parts of them.

    Attributes:
        observer: In place of the quantizer's own, such as ``percentile(p=99.99)``.
        every: Observe every float tensor of the file's own graph too, which a TensorRT cache
            needs.
        out: Write the ranges to this JSON file, for --ranges-from.
        tensorrt_cache: Write a TensorRT calibration cache of every float tensor.
        tensorrt_version: TensorRT version that will read the cache; it refuses a cache of another
            version.
        force: Overwrite an existing output.

    Raises:
        OrtuneError: The model, the data or a spelling cannot be used, or nothing is to be asked.
    """

    _: KW_ONLY
    observer: str | None = None
    every: bool = False
    out: Out = None
    tensorrt_cache: File | None = None
    tensorrt_version: Annotated[str, Option("X.Y.Z")] = "8.6.1"
    force: bool = False


@request
class CompareObservers(CalibrationRequest, BackendRequest, BudgetRequest):
    """Calibrate and quantize with each observer, and score all on samples that were not observed.

    Attributes:
        labels: Labels in the samples' order (.npy, .csv) or by file name (.csv, COCO .json).
        calibration: Samples to calibrate with, apart from --data; otherwise a part of them is
            calibrated on and the rest is scored.
        budget: Budget whose metric ranks the observers, such as "top1>=base-0.01" or
            "cosine>=0.999".
        observers: How ranges are read off the data, such as "percentile(p=99.99)".

    Raises:
        OrtuneError: The model, the data or a spelling cannot be used.
    """

    _: KW_ONLY
    labels: File | None = None
    calibration: Source = None
    observers: Annotated[Sequence[str], Option("SPEC", "--observer")] = OBSERVERS
    step: Annotated[str, Option("SPEC")] = "int8-static"
