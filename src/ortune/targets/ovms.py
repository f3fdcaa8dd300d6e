"""OpenVINO Model Server: a folder a model, and config.json with the tuned properties."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ortune.bundle.target import Replay, Source, Target
from ortune.core.capabilities import HERE
from ortune.core.errors import BadModel
from ortune.targets.common import replay
from ortune.targets.common.replay import find_environment

_CONFIG = "config.json"
_MODEL = "model.xml"
_VERSION = "1"
_KEYS: Mapping[str, tuple[type, ...]] = {
    "name": (str,),
    "base_path": (str,),
    "target_device": (str,),
    "plugin_config": (dict,),
    "nireq": (int,),
    "batch_size": (int, str),
    "shape": (dict, str),
    "layout": (dict, str),
    "model_version_policy": (dict,),
}
"""Keys of a model that are written or may be added by hand, and their types, as in the server's
schema (``src/schema.cpp``); the server refuses any other."""


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

    backend: ClassVar[str] = "openvino"

    release: str = ""
    nireq: int = 0
    batch: int = 0
    shape: str = ""

    def missing(self) -> str | None:
        """OpenVINO writes its own format; the version asked for must be there to replay it."""
        if self.release and self.replayed:
            return find_environment("openvino", self.release)[1]
        return replay.find_missing()

    def refuses(self, source: Source) -> str:
        """Plans of other backends were not measured on OpenVINO."""
        return replay.explain_openvino_refusal(source)

    def write(self, source: Source, folder: Path) -> Sequence[str]:
        """Write every model as version 1 of its folder, and the configuration."""
        files = {name: folder / label / _VERSION / _MODEL for name, label in source.labels.items()}
        for file in files.values():
            file.parent.mkdir(parents=True)
        replay.write_models(source, files, self._find_environment())
        properties = replay.read_openvino_backend(source).build_properties()
        more = {
            "nireq": self.nireq or int(properties.get("NUM_STREAMS", "0")),
            "batch_size": self.batch,
            "shape": self.shape,
        }
        models = [
            {"name": label, "base_path": label, "target_device": "CPU"}
            | {"plugin_config": properties}
            | {key: value for key, value in more.items() if value}
            for label in source.labels.values()
        ]
        config = {"model_config_list": [{"config": model} for model in models]}
        text = json.dumps(config, indent=1)
        (folder / _CONFIG).write_text(text + "\n", encoding="utf-8")
        image = f"openvino/model_server:{self.release or 'latest'}"
        how = f"docker run --rm -p 9000:9000 -p 8000:8000 -v $PWD:/models {image}"
        return (f"{how} --config_path /models/{_CONFIG} --port 9000 --rest_port 8000",)

    def replay(self, source: Source, folder: Path) -> Replay | None:
        """Check the configuration as the server does, and compile the models as it says."""
        configured = read_models(json.loads((folder / _CONFIG).read_text(encoding="utf-8")))
        models = {name: configured[label] for name, label in source.labels.items()}
        files = {
            name: folder / model["base_path"] / _VERSION / _MODEL for name, model in models.items()
        }
        properties = next(iter(models.values())).get("plugin_config", {})
        return replay.replay_models(source, files, properties, self._find_environment())

    def unrun(self, replay: Replay | None) -> str:
        """The server itself is not here."""
        parts = ["OpenVINO Model Server itself"]
        if replay is None:
            parts.append("the models with their properties (not replayed)")
        if self.batch or self.shape:
            parts.append("the reshaped models")
        return "; ".join(parts)

    def _find_environment(self) -> str:
        name, fix = find_environment("openvino", self.release) if self.release else (HERE, None)
        return HERE if fix else name


def read_models(config: Any) -> dict[str, dict[str, Any]]:
    """Return the models of a configuration by name; BadModel where the server would refuse it."""
    if not isinstance(config, dict) or config.keys() != {"model_config_list"}:
        raise _make_error("it must have model_config_list and nothing else")
    models = {}
    for entry in config["model_config_list"]:
        if not isinstance(entry, dict) or entry.keys() != {"config"}:
            raise _make_error("an entry must have config and nothing else")
        model = entry["config"]
        if missing := {"name", "base_path"} - model.keys():
            raise _make_error(f"a model lacks {', '.join(sorted(missing))}")
        for key, value in model.items():
            if not isinstance(value, _KEYS.get(key, ())) or isinstance(value, bool):
                raise _make_error(f"'{key}' is no key of a model, or of another type")
        if model.get("nireq", 0) < 0:
            raise _make_error("nireq is negative")
        models[model["name"]] = model
    return models


def _make_error(why: str) -> BadModel:
    return BadModel(f"OpenVINO Model Server would reject config.json: {why}", fix="pack again")
