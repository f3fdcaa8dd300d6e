"""What a person may choose of a Triton server beyond what was tuned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from ortune.core.errors import BadSettings
from ortune.core.hardware.instances import InstanceGroup, read_instances, total
from ortune.deployment.triton.accelerators import options
from ortune.deployment.triton.releases import Carried, carried


@dataclass(frozen=True)
class ServerOptions:
    """A release and how it serves; all are checked when this is made.

    Attributes:
        release: Such as ``26.05``.
        instances: Sessions side by side, on each GPU where GPUs are given; or groups by device,
            such as ``2@gpu0,2@gpu1``.
        gpus: Their numbers; none serves on the CPU.
        batch: Rows that one run may hold; 0 leaves calls as they are.
        preferred: Batches that are run without waiting for more.
        delay_us: How long a batch waits for more calls.
        queue: Calls that may wait; 0 is no bound.
        timeout_us: A call that waits longer is refused; 0 never is.
        accelerator: Of GPUs.
        accelerator_options: ``key=value`` texts.
        offline: Store the graph as the release's onnxruntime rewrites it.
        warm_up: Run a golden sample when the server loads the model.
        onnxruntime: What the release carries, where the table does not say.
        openvino: The same.
    """

    release: str
    instances: int | str = 1
    gpus: tuple[int, ...] = ()
    batch: int = 0
    preferred: tuple[int, ...] = ()
    delay_us: int = 0
    queue: int = 0
    timeout_us: int = 0
    accelerator: str = ""
    accelerator_options: tuple[str, ...] = ()
    offline: bool = False
    warm_up: bool = True
    onnxruntime: str = ""
    openvino: str = ""

    def __post_init__(self) -> None:
        carried(self.release, self.onnxruntime, self.openvino)
        options(self.accelerator, self.accelerator_options)
        if self.instances in (0, "0"):
            raise BadSettings("a server needs an instance", fix="give instances=1 or more")
        if self.gpus and any(one.kind for one in read_instances(self.instances)):
            raise BadSettings(
                f"instances='{self.instances}' names devices, and so does gpus",
                fix="leave gpus out",
            )
        if other := [one.device for one in self.groups if one.kind == "npu"]:
            raise BadSettings(f"Triton has no '{other[0]}'", fix="name cpu, gpu0, gpu1, ...")
        if self.accelerator and not self.numbers:
            raise BadSettings(
                f"accelerator '{self.accelerator}' is for GPUs, and none is given",
                fix="add gpus=[0]",
            )
        waits = self.preferred or self.delay_us or self.queue or self.timeout_us
        if waits and not self.batch:
            raise BadSettings(
                "preferred, delay_us, queue and timeout_us are about batches, and calls are left "
                "as they are",
                fix="add batch=N, the most rows of a run",
            )
        if over := [size for size in self.preferred if not 1 <= size <= self.batch]:
            raise BadSettings(
                f"a preferred batch of {over[0]} is not between 1 and batch={self.batch}",
                fix="give smaller ones, or a larger batch",
            )

    @property
    def groups(self) -> tuple[InstanceGroup, ...]:
        """The instances by device: those given, on each of `gpus` where these are."""
        given = read_instances(self.instances)
        if not self.gpus:
            return given
        return tuple(InstanceGroup(total(given), "gpu", index) for index in self.gpus)

    @property
    def numbers(self) -> tuple[int, ...]:
        """Of the GPUs that it serves on; none where it serves on the CPU."""
        return tuple(dict.fromkeys(one.index for one in self.groups if one.kind == "gpu"))

    @property
    def carried(self) -> Carried:
        """Versions inside the release."""
        return carried(self.release, self.onnxruntime, self.openvino)

    @cached_property
    def accelerated(self) -> Mapping[str, str]:
        """The accelerator's options by name."""
        return options(self.accelerator, self.accelerator_options)

    @property
    def unmeasured(self) -> str:
        """What of these the bundle's evidence says nothing about; empty when there is none."""
        if not self.numbers:
            return ""
        on = f"GPU {', '.join(map(str, self.numbers))}"
        return f"{on} with {self.accelerator}" if self.accelerator else on
