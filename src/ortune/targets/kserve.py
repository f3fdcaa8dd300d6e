"""KServe: an InferenceService and the Triton model repository that it serves."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from ortune.bundle.target import Replay, Source, Target
from ortune.core.errors import BadModel, BadSettings
from ortune.core.plugins.bounds import Bounds
from ortune.targets.common.replay import count_threads
from ortune.targets.triton import Triton

_SERVICE = "inferenceservice.yaml"
_MODELS = "models"
_URI = re.compile(r"[a-z][a-z0-9+.-]*://[!-~]+")
_MEMORY = re.compile(r"[1-9]\d{0,15}(k|M|G|T|Ki|Mi|Gi|Ti)?")
_LONGEST = 53
"""Characters of a service's name: KServe adds words of its own to it, and 63 are allowed."""


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
        if _URI.fullmatch(self.storage) is None:
            raise BadSettings(
                f"'{self.storage}' is not a storage URI",
                fix="give one such as pvc://models or s3://bucket/path",
            )
        if self.memory and _MEMORY.fullmatch(self.memory) is None:
            raise BadSettings(
                f"'{self.memory}' is not an amount of memory", fix="give one such as 2Gi"
            )

    @property
    def server(self) -> Triton:
        """The Triton that it starts, checked."""
        return Triton(
            replayed=self.replayed,
            release=self.release,
            instances=self.instances,
            batch=self.batch,
            onnxruntime=self.onnxruntime,
            openvino=self.openvino,
        )

    def refuses(self, source: Source) -> str:
        """What Triton cannot run, KServe's Triton cannot."""
        return self.server.refuses(source)

    def write(self, source: Source, folder: Path) -> Sequence[str]:
        self.server.write(source, folder / _MODELS)
        (folder / _SERVICE).write_text(self._build_service(source), encoding="utf-8")
        return (f"copy what is in {_MODELS} to {self.storage}", f"kubectl apply -f {_SERVICE}")

    def replay(self, source: Source, folder: Path) -> Replay | None:
        """Run the models as Triton would.

        Raises BadModel: the service is not the one that the plan needs. With fewer CPUs, for
        instance, its threads would wait for each other.
        """
        if (folder / _SERVICE).read_text(encoding="utf-8") != self._build_service(source):
            raise BadModel(f"{_SERVICE} is not what the plan was tuned for", fix="pack again")
        return self.server.replay(source, folder / _MODELS)

    def unrun(self, replay: Replay | None) -> str:
        """There is no cluster here."""
        return f"KServe; {self.server.unrun(replay)}"

    def _build_service(self, source: Source) -> str:
        """Return the service; its CPUs are those that the tuned threads of all instances need."""
        cpus = count_threads(source) * self.instances * len(source.models)
        resources = {"cpu": str(cpus)} | ({"memory": self.memory} if self.memory else {})
        model = {
            "modelFormat": {"name": "onnx"},
            "protocolVersion": "v2",
            "runtime": "kserve-tritonserver",
            "runtimeVersion": f"{self.server.release_name}-py3",
            "storageUri": self.storage,
            "resources": {"requests": resources, "limits": resources},
        }
        return spell_yaml(
            {
                "apiVersion": "serving.kserve.io/v1beta1",
                "kind": "InferenceService",
                "metadata": {"name": service_name(source.name)},
                "spec": {"predictor": {"model": model}},
            }
        )


def service_name(label: str) -> str:
    """Return a word as Kubernetes takes it for a name: lower case, digits, ``-``."""
    text = label.lower().replace("_", "-").strip("-")
    return (text if text[:1].isalpha() else f"m-{text}")[:_LONGEST].strip("-")


def spell_yaml(value: Mapping[str, Any], indent: str = "") -> str:
    """Return mappings of plain words and texts as YAML, with the texts quoted as in JSON."""
    return "".join(
        f"{indent}{key}:\n{spell_yaml(item, indent + '  ')}"
        if isinstance(item, Mapping)
        else f"{indent}{key}: {json.dumps(item)}\n"
        for key, item in value.items()
    )
