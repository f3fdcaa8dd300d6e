"""OpenVINO Model Server: a folder a model, and config.json with the tuned properties."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ortune.bundle.source import Source
from ortune.bundle.target import Replay, Target
from ortune.core.capabilities import HERE
from ortune.deployment import openvino_ir, ovms
from ortune.deployment.replay import environment

_CONFIG = "config.json"
_MODEL = "model.xml"
_VERSION = "1"


@dataclass(frozen=True)
class Ovms(Target):
    """Models in OpenVINO's own format, served with exactly the tuned properties.

    Attributes:
        replayed: Compile the files again with these properties and run the golden samples.
        limit: Share by which it may be slower than the bundle before packing fails.
        release: Version of the server's OpenVINO, in quotes, such as "2026.4.1"; empty is the one
            that is installed here.
        nireq: Inferences at a time; 0 takes the tuned streams, and leaves it to the server where
            none were set.
        batch: Rows that every call is reshaped to; 0 leaves the model's own.
        shape: Shape of the only input, such as "(1,3,224,224)", or "auto".
    """

    release: str = ""
    nireq: int = 0
    batch: int = 0
    shape: str = ""

    def missing(self) -> str | None:
        """OpenVINO writes its own format; the version asked for must be there to replay it."""
        if self.release and self.replayed:
            return environment("openvino", self.release)[1]
        return None if importlib.util.find_spec("openvino") else "pip install 'ortune[openvino]'"

    def refuses(self, source: Source) -> str:
        """Plans of other backends were not measured on OpenVINO."""
        return openvino_ir.refusal(source)

    def write(self, source: Source, folder: Path) -> Sequence[str]:
        """Write every model as version 1 of its folder, and the configuration."""
        files = {name: folder / label / _VERSION / _MODEL for name, label in source.labels.items()}
        for file in files.values():
            file.parent.mkdir(parents=True)
        openvino_ir.write(source, files, self._place())
        properties = openvino_ir.properties(source)
        held: dict[str, Any] = {"plugin_config": properties}
        if nireq := self.nireq or int(properties.get("NUM_STREAMS", "0")):
            held["nireq"] = nireq
        if self.batch:
            held["batch_size"] = self.batch
        if self.shape:
            held["shape"] = self.shape
        text = json.dumps(
            ovms.configuration(dict.fromkeys(source.labels.values(), held)), indent=1
        )
        (folder / _CONFIG).write_text(text + "\n", encoding="utf-8")
        image = f"openvino/model_server:{self.release or 'latest'}"
        how = f"docker run --rm -p 9000:9000 -p 8000:8000 -v $PWD:/models {image}"
        return (f"{how} --config_path /models/{_CONFIG} --port 9000 --rest_port 8000",)

    def replay(self, source: Source, folder: Path) -> Replay | None:
        """Check the configuration as the server does, and compile the models as it says."""
        read = ovms.models(json.loads((folder / _CONFIG).read_text(encoding="utf-8")))
        files: dict[str, Path] = {}
        said: dict[str, str] = {}
        for name, label in source.labels.items():
            files[name] = folder / read[label]["base_path"] / _VERSION / _MODEL
            said = read[label].get("plugin_config", {})
        backend = openvino_ir.configured(said)
        openvino_ir.demand_tuned(source, backend)
        return openvino_ir.replay(source, files, backend, self._place())

    def unrun(self, replay: Replay | None) -> str:
        """The server itself is not here."""
        parts = ["OpenVINO Model Server itself"]
        if replay is None:
            parts.append("the models with their properties (not replayed)")
        if self.batch or self.shape:
            parts.append("the reshaped models")
        return "; ".join(parts)

    def _place(self) -> str:
        name, fix = environment("openvino", self.release) if self.release else (HERE, None)
        return HERE if fix else name
