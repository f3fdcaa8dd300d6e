"""What `tune` is asked."""

from dataclasses import KW_ONLY
from typing import Annotated, ClassVar

from ortune.core.custom_ops import BackendRequest, BudgetRequest
from ortune.core.fields import Duration, File, Model, Option, Out
from ortune.core.request import DataRequest, request
from ortune.core.workload import Workload


@request
class Tune(BackendRequest, DataRequest, BudgetRequest):
    """Find the runtime settings that MODEL runs fastest with on one backend.

    Settings are tried one by one, each in a paired test against the best so far, and kept when
    the 99 % interval of the ratio excludes 1. Fields given in --on stay as they are. Settings
    that change numbers must keep the budget. Without --data the inputs are made up.

    Example:
        ortune tune model.onnx --data samples/
        ortune tune model.onnx --on "cpu(threads=2)" --time 2m --beside-load -o settings.json

    Attributes:
        model: The model file.
        labels: Labels in the samples' order (.npy, .csv) or by file name (.csv, COCO .json).
        budget: The worst score allowed, such as "top1>=base-0.01" or "cosine>=0.999"; for
            settings that change numbers.
        workload: How it will be used, such as "throughput(sessions=2)".
        batch: Samples stacked into one run; 0 takes them as they come.
        time: Time for the search, including process starts.
        beside_load: Keep one core busy during the measurements, or N.
        out: Write the settings and all that was measured to this JSON file.
        force: Overwrite an existing output.

    Raises:
        OrtuneError: The model, the backend, the data or the budget cannot be used.
    """

    formerly: ClassVar[dict[str, str]] = {"seconds": "time"}

    model: Model
    _: KW_ONLY
    labels: File | None = None
    workload: Annotated[str | Workload, Option("SPEC")] = "latency"
    batch: Annotated[int, Option(low=0)] = 0
    time: Duration = Duration("60s")
    beside_load: Annotated[bool | int, Option(per_cpu=2)] = False
    out: Out = None
    force: bool = False
