"""What calibrating costs while plans are built."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import onnx_ir as ir

from ortune.calibration.cache import RangeCache
from ortune.calibration.calibrate import calibrate
from ortune.core.observer import Probe
from ortune.recipe import editing


@contextmanager
def calibrations(asked: dict[str, float], ranges: list[str]) -> Iterator[None]:
    """Note the seconds of every pass over the samples, and what it was asked.

    Args:
        asked: Gets what was not known -> seconds of the pass that found it out.
        ranges: Gets all that was asked.
    """
    real = calibrate

    def noting(
        model: ir.Model,
        probes: Sequence[Probe],
        stream: Path,
        indices: Sequence[int],
        folder: Path,
        **others: Any,
    ) -> Any:
        missing = RangeCache(folder, [list(indices)]).missing(probes)
        began = time.perf_counter()
        found = real(model, probes, stream, indices, folder, **others)
        seconds = time.perf_counter() - began
        ranges.extend(dict.fromkeys(f"{folder.name} {probe.observer}" for probe in probes))
        asked.update({f"{folder.name} {probe.observer}": seconds for probe in missing})
        return found

    with patch.object(editing, "calibrate", noting):
        yield
