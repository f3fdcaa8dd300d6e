"""OpenVINO's own format (IR), with the tuned properties beside it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from ortune.bundle.target import Replay, Source, Target
from ortune.targets.common import replay

_PROPERTIES = "properties.json"


@dataclass(frozen=True)
class OpenvinoIr(Target):
    """Each model as ``NAME.xml`` and ``NAME.bin``; weights keep their types.

    Attributes:
        replayed: Open the files again with OpenVINO and run the golden samples.
        limit: Share by which it may be slower than the bundle before packing fails.
    """

    backend: ClassVar[str] = "openvino"

    def missing(self) -> str | None:
        """OpenVINO writes its own format."""
        return replay.find_missing()

    def refuses(self, source: Source) -> str:
        """Plans of other backends were not measured on OpenVINO."""
        return replay.explain_openvino_refusal(source)

    def write(self, source: Source, folder: Path) -> Sequence[str]:
        """Write the IR of every model, and the properties that they are compiled with."""
        models = _list_models(source, folder)
        replay.write_models(source, models)
        text = json.dumps(
            replay.read_openvino_backend(source).build_properties(), indent=1, sort_keys=True
        )
        (folder / _PROPERTIES).write_text(f"{text}\n", encoding="utf-8")
        file = next(iter(models.values())).name
        read = f"json.loads(Path('{_PROPERTIES}').read_text())"
        return (f"openvino.Core().compile_model('{file}', 'CPU', {read})",)

    def replay(self, source: Source, folder: Path) -> Replay | None:
        properties = json.loads((folder / _PROPERTIES).read_text(encoding="utf-8"))
        return replay.replay_models(source, _list_models(source, folder), properties)


def _list_models(source: Source, folder: Path) -> Mapping[str, Path]:
    return {name: folder / f"{label}.xml" for name, label in source.labels.items()}
