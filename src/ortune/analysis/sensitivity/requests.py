"""What `sensitivity` is asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from ortune.core.custom_ops import BackendRequest, BudgetRequest
from ortune.core.errors import BadSettings
from ortune.core.fields import Duration, File, Model, Option, Source
from ortune.core.request import request
from ortune.data.sequences.request import SequenceRequest

if TYPE_CHECKING:
    from ortune.core.budget import Budget


@request
class SensitivityRequest(SequenceRequest, BackendRequest, BudgetRequest):
    """Measure what each region of MODEL costs in accuracy and saves in time, one by one.

    A region is a layer with what runtimes fuse with it; --step sets its lower precision. Its
    accuracy cost is what the metric loses with this region alone at that precision; the time that
    it saves is its share of the profile, scaled by the plan's speed-up. Both have intervals. The
    regions most worth keeping in float come first. Results are cached; --fresh measures again.

    Example:
        ortune sensitivity model.onnx --data samples/ --budget "top1>=base-0.01"
        ortune sensitivity model.onnx --data samples/ --by op --time 5m --plot regions.svg

    Attributes:
        model: The model file.
        data: Samples: a folder of .npz, .npy per input or images, a .jsonl file, or
            FILE.py:NAME.
        by: What is quantized at a time: a region, a single node, or all layers of an operator.
        steps: The steps, the last of which decides the precision; repeat it. The automatic
            rewrites go before them, as in a search.
        labels: Labels in the samples' order (.npy, .csv) or by file name (.csv).
        calibration: Samples to calibrate with, apart from --data.
        metric: What is lost, such as top1, cosine or snr; by default that of the budget.
        budget: The worst score allowed, such as "top1>=base-0.01"; derived from the outputs
            without it. Accuracy costs are losses of its metric.
        time: When to stop; what was not reached is named.
        plot: Draw cost against time saved: a file that ends in .svg, .png or .html.
        fresh: Measure again instead of using cached results.
        force: Overwrite an existing plot.

    Raises:
        BadSettings: There are no samples, or a spelling cannot be read.
        OrtuneError: The model, the data or the backend cannot be used.
    """

    formerly: ClassVar[dict[str, str]] = {"seconds": "time", "recipe": "steps"}

    model: Model
    _: KW_ONLY
    data: Source = None
    by: Literal["region", "node", "op"] = "region"
    steps: Annotated[Sequence[str], Option("STEP", "--step")] = ("int8-static",)
    labels: File | None = None
    calibration: Source = None
    metric: Annotated[str | None, Option("METRIC", hidden=True)] = None
    time: Duration = Duration("2m")
    plot: File | None = None
    fresh: bool = False
    force: bool = False

    @property
    def makes(self) -> tuple[Path, ...]:
        return () if self.plot is None else (Path(self.plot),)

    @property
    def source(self) -> str | Path | Callable[[], Any]:
        """The samples.

        Raises:
            BadSettings: There are none.
        """
        if self.data is None:
            raise BadSettings(
                "--data is missing: accuracy on made-up samples says nothing",
                fix="give --data SOURCE",
            )
        return self.data

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.metric is not None and self.budget is not None:
            raise BadSettings(
                f"--metric {self.metric} and --budget {self.budget} both set the metric",
                fix="give one of them",
            )

    def read_budget(self) -> Budget | None:
        """Return the budget, or one that reads the metric; its limit decides nothing then.

        Raises:
            BadSettings: It cannot be read.
            UnknownPlugin: There is no such metric.
        """
        if self.metric is None:
            return super().read_budget()
        from ortune.core.budget import Budget  # a request is made without NumPy
        from ortune.core.metric import Metric
        from ortune.core.plugins.spelling import parse_plugin

        is_user_file = ":" in self.metric
        higher = is_user_file or parse_plugin(Metric, self.metric).higher_is_better
        return Budget.parse(f"{self.metric}{'>=' if higher else '<='}base")
