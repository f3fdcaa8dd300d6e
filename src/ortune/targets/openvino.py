"""OpenVINO's own format (IR), with the tuned properties beside it."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ortune.bundle.source import Source
from ortune.bundle.target import Replay, Target
from ortune.deployment import openvino_ir

_PROPERTIES = "properties.json"


@dataclass(frozen=True)
class OpenvinoIr(Target):
    """Each model as ``NAME.xml`` and ``NAME.bin``; weights keep their types.

    Attributes:
        replayed: Open the files again with OpenVINO and run the golden samples.
        limit: Share by which it may be slower than the bundle before packing fails.
    """

    def missing(self) -> str | None:
        """OpenVINO writes its own format."""
        return None if importlib.util.find_spec("openvino") else "pip install 'ortune[openvino]'"

    def refuses(self, source: Source) -> str:
        """Plans of other backends were not measured on OpenVINO."""
        return openvino_ir.refusal(source)

    def write(self, source: Source, folder: Path) -> Sequence[str]:
        """Write the IR of every model, and the properties that they are compiled with."""
        openvino_ir.write(source, {name: folder / f"{label}.xml" for name, label in _all(source)})
        properties = openvino_ir.properties(source)
        (folder / _PROPERTIES).write_text(
            json.dumps(properties, indent=1, sort_keys=True) + "\n", encoding="utf-8"
        )
        label = next(label for _, label in _all(source))
        read = f"json.loads(Path('{_PROPERTIES}').read_text())"
        return (f"openvino.Core().compile_model('{label}.xml', 'CPU', {read})",)

    def replay(self, source: Source, folder: Path) -> Replay | None:
        """Compile the files with the properties beside them."""
        text = (folder / _PROPERTIES).read_text(encoding="utf-8")
        read: dict[str, Any] = json.loads(text)
        files = {name: folder / f"{label}.xml" for name, label in _all(source)}
        backend = openvino_ir.configured(read)
        openvino_ir.demand_tuned(source, backend)
        return openvino_ir.replay(source, files, backend)


def _all(source: Source) -> Sequence[tuple[str, str]]:
    return tuple(source.labels.items())
