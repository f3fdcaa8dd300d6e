"""KServe: an InferenceService and the Triton model repository that it serves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from ortune.bundle.source import Source
from ortune.bundle.target import Replay, Target
from ortune.core.plugins.bounds import Bounds
from ortune.deployment import kserve, yaml
from ortune.deployment.triton import repository
from ortune.deployment.triton.options import ServerOptions

_SERVICE = "inferenceservice.yaml"
_MODELS = "models"


@dataclass(frozen=True)
class Kserve(Target):
    """``inferenceservice.yaml`` and the folder that belongs where its storageUri points.

    Attributes:
        replayed: Run the models under the release's runtime, in an environment of their own.
        limit: Share by which it may be slower than the bundle before packing fails.
        release: Triton release of the runtime ``kserve-tritonserver``, such as 26.05.
        storage: Where ``models`` will lie, such as s3://bucket/path.
        memory: Of the server, such as 2Gi; left to the cluster when empty.
        instances: Sessions of a model side by side; each has its threads' CPUs.
        batch: Most rows of one run; calls are stacked up to that. 0 leaves calls as they are.
        onnxruntime: Version that the release carries, where it is not known here.
        openvino: The same of OpenVINO.
    """

    release: float = 26.05
    storage: str = "pvc://models"
    memory: str = ""
    instances: Annotated[int, Bounds(low=1, high=1024)] = 1
    batch: int = 0
    onnxruntime: str = ""
    openvino: str = ""

    def __post_init__(self) -> None:
        self.server  # noqa: B018 (it checks the fields)
        kserve.demand(self.storage, self.memory)

    @property
    def server(self) -> ServerOptions:
        """What Triton is told, checked."""
        return ServerOptions(
            f"{self.release:.2f}",
            instances=self.instances,
            batch=self.batch,
            onnxruntime=self.onnxruntime,
            openvino=self.openvino,
        )

    def refuses(self, source: Source) -> str:
        """What Triton cannot run, KServe's Triton cannot."""
        return repository.refusal(source, self.server)

    def write(self, source: Source, folder: Path) -> Sequence[str]:
        """Write the service and the repository."""
        repository.write(source, folder / _MODELS, self.server, replayed=self.replayed)
        held = kserve.service(
            source, self.server.release, self.instances, self.storage, self.memory
        )
        (folder / _SERVICE).write_text(yaml.write(held), encoding="utf-8")
        return (
            f"copy what is in {_MODELS} to {self.storage}",
            f"kubectl apply -f {_SERVICE}",
        )

    def replay(self, source: Source, folder: Path) -> Replay | None:
        """Read the service back, and run the models as Triton would."""
        read = yaml.read((folder / _SERVICE).read_text(encoding="utf-8"))
        kserve.demand_whole(read, source, self.instances)
        return repository.replay(source, folder / _MODELS, self.server)

    def unrun(self, replay: Replay | None) -> str:
        """There is no cluster here."""
        return f"KServe; {repository.unrun(self.server, replay)}"
