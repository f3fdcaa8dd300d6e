"""What calibrating costs while plans are built."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import onnx_ir as ir

from ortune.core.observer import Probe
from ortune.quantizers.calibration import calibrate
from ortune.quantizers.calibration.calibrate import RangeCache, calibrate_groups


@contextmanager
def calibrations(asked: dict[str, float], ranges: list[str]) -> Iterator[None]:
    """Note the seconds of every pass over the samples, and what it was asked.

    Args:
        asked: Gets what was not known -> seconds of the pass that found it out.
        ranges: Gets all that was asked.
    """

    def noting(
        model: ir.Model,
        probes: Sequence[Probe],
        stream: Path,
        groups: Sequence[Sequence[int]],
        folder: Path,
        **others: Any,
    ) -> Any:
        missing = RangeCache(folder, groups).list_missing(probes)
        began = time.perf_counter()
        try:
            return calibrate_groups(model, probes, stream, groups, folder, **others)
        finally:
            seconds = time.perf_counter() - began
            ranges.extend(f"{folder.name} {probe.observer}" for probe in probes)
            asked.update({f"{folder.name} {probe.observer}": seconds for probe in missing})

    with patch.object(calibrate, "calibrate_groups", noting):
        yield
