"""NVIDIA Triton Inference Server: a model repository for a named release."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from ortune.bundle.source import Source
from ortune.bundle.target import Replay, Target
from ortune.core.plugins.bounds import Bounds
from ortune.deployment.triton import repository
from ortune.deployment.triton.options import ServerOptions


@dataclass(frozen=True)
class Triton(Target):
    """A model repository, replayed under the runtime that the release carries.

    A plan for the CPU goes to Triton's onnxruntime backend, one for OpenVINO to its openvino
    backend. A plan with a setting that Triton cannot pass on is left to others.

    Attributes:
        replayed: Run the models under the release's runtime, in an environment of their own.
        limit: Share by which it may be slower than the bundle before packing fails.
        release: Year and month of the release, such as 26.05.
        instances: Sessions side by side, on each GPU where GPUs are given; or groups by device,
            such as "2@gpu0,2@gpu1", which nothing here has measured.
        gpus: Numbers of GPUs to serve on, which nothing here has measured; none is the CPU.
        batch: Most rows of one run; calls are stacked up to that. 0 leaves calls as they are.
        preferred: Batches that are run without waiting for more calls.
        delay_us: Microseconds that a batch waits for more calls.
        queue: Calls that may wait; 0 is no bound.
        timeout_us: Microseconds after which a waiting call is refused; 0 is never.
        accelerator: Execution accelerator on the GPUs.
        options: Its options, as ``key=value``.
        offline: Store the graph as the release's onnxruntime rewrites it for CPUs like this one,
            and have the server leave it as it is.
        warm_up: Run a golden sample when the server loads the model.
        onnxruntime: Version that the release carries, where it is not known here.
        openvino: The same of OpenVINO.
    """

    release: float = 26.05
    instances: Annotated[int | str, Bounds(low=1, high=1024)] = 1
    gpus: tuple[int, ...] = ()
    batch: int = 0
    preferred: tuple[int, ...] = ()
    delay_us: int = 0
    queue: int = 0
    timeout_us: int = 0
    accelerator: Literal["", "tensorrt", "cuda"] = ""
    options: tuple[str, ...] = ()
    offline: bool = False
    warm_up: bool = True
    onnxruntime: str = ""
    openvino: str = ""

    def __post_init__(self) -> None:
        self.server  # noqa: B018 (it checks the fields)

    @property
    def server(self) -> ServerOptions:
        """The fields, checked."""
        return ServerOptions(
            f"{self.release:.2f}",
            self.instances,
            self.gpus,
            self.batch,
            self.preferred,
            self.delay_us,
            self.queue,
            self.timeout_us,
            self.accelerator,
            self.options,
            self.offline,
            self.warm_up,
            self.onnxruntime,
            self.openvino,
        )

    def refuses(self, source: Source) -> str:
        """Settings that Triton cannot pass on, and types that it does not know."""
        return repository.refusal(source, self.server)

    def write(self, source: Source, folder: Path) -> Sequence[str]:
        """Write a folder a model: configuration, version 1, a golden sample as warm-up."""
        repository.write(source, folder, self.server, replayed=self.replayed)
        return (repository.start(self.server),)

    def replay(self, source: Source, folder: Path) -> Replay | None:
        """Run the models as their configurations say, under the release's runtime."""
        return repository.replay(source, folder, self.server)

    def unrun(self, replay: Replay | None) -> str:
        """Triton itself is not here."""
        return repository.unrun(self.server, replay)
