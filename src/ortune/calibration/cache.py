"""The answers of earlier calibrations, in a file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ortune.core.atomic_write import write_text
from ortune.core.observer import Probe
from ortune.core.plugins import catalog, codec


class RangeCache:
    """Answers by samples, observer and tensor; read at the start, written by `store`.

    All of a folder are of one model and one stream of samples. An answer is what `packed` made,
    or None for a tensor that held no value.
    """

    def __init__(self, folder: Path, groups: Sequence[Sequence[int]]) -> None:
        self._path = folder / "ranges.json"
        known = json.loads(self._path.read_text("utf-8")) if self._path.is_file() else {}
        self._answers: dict[str, dict[str, Any]] = known.get("answers", {})
        self._hidden: dict[str, str] = known.get("hidden", {})
        keys = (codec.digest(list(group)) for group in groups)
        self._groups = [self._answers.setdefault(key, {}) for key in keys]

    def missing(self, probes: Sequence[Probe]) -> list[Probe]:
        """Return the probes, one of each observer and tensor, that a group has no answer for."""
        found = {
            _name(probe): probe
            for probe in probes
            if probe.tensor not in self._hidden
            and any(_name(probe) not in group for group in self._groups)
        }
        return list(found.values())

    def get(self, group: int, probe: Probe) -> Mapping[str, Any] | None:
        """Return the answer for a group, by its number."""
        answer: Mapping[str, Any] | None = self._groups[group].get(_name(probe))
        return answer

    def put(self, group: int, probe: Probe, data: Mapping[str, Any] | None) -> None:
        """Take an answer in."""
        self._groups[group][_name(probe)] = data

    def hide(self, reasons: Mapping[str, str]) -> None:
        """Take in why tensors cannot be watched."""
        self._hidden |= reasons

    def hidden(self, tensor: str) -> str | None:
        """Return why a tensor cannot be watched, or None."""
        return self._hidden.get(tensor)

    def store(self) -> None:
        """Write all answers."""
        write_text(
            self._path,
            json.dumps({"answers": self._answers, "hidden": self._hidden}),
            durable=False,
        )


def _name(probe: Probe) -> str:
    return f"{probe.observer}|{probe.tensor}|{catalog.source_digest(probe.observer)}"
