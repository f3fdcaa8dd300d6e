"""What `profile` is asked."""

from dataclasses import KW_ONLY
from typing import Annotated, ClassVar

from ortune.core.backend import Backend
from ortune.core.custom_ops import CustomOpsRequest, add_custom_ops
from ortune.core.fields import Duration, Model, Option
from ortune.core.request import DataRequest, request


@request
class ProfileRequest(CustomOpsRequest, DataRequest):
    """Show where the time of a run of MODEL goes: by operator, by node and by region.

    Kernels are mapped back through fusions to the nodes of the file. Profiled and plain runs take
    turns, so that the profiler's overhead is measured and subtracted.

    Example:
        ortune profile model.onnx --on "cpu(threads=2)" --data samples/
        ortune profile model.onnx --shape x:1x3x224x224 -o profile/

    Attributes:
        model: The model file.
        on: Where to run, such as "cpu(threads=2)".
        batch: Samples stacked into one run; 0 takes them as they come.
        time: Time for counted runs.
        runs: Profiled runs; 0 takes what fits the time.
        ceilings: Measure peak arithmetic rate and bandwidth, for the roofline model.
        allow_fallback: Go on with the CPU provider when the one asked for takes no node.

    Raises:
        BackendMissing: The backend cannot run here, records no profile, or took no node.
        OrtuneError: The model or the data cannot be used.
    """

    formerly: ClassVar[dict[str, str]] = {"seconds": "time"}

    model: Model
    _: KW_ONLY
    on: Annotated[str | Backend, Option("BACKENDS")] = "cpu"
    batch: Annotated[int, Option(low=0)] = 0
    time: Duration = Duration("5s", Option("DURATION", low=0.1))
    runs: Annotated[int, Option(low=0, hidden=True)] = 0
    ceilings: bool = True
    allow_fallback: bool = False

    @property
    def backend(self) -> str:
        """`on`, spelled, with the custom operators given to it."""
        return add_custom_ops(str(self.on), self.custom_ops)
