"""TensorRT's calibration cache: text, one line a tensor, as its int8 calibrators write it.

The first line is ``TRT-<version>-EntropyCalibration2``; after it stands ``name: hex``, the bits of
a float32 in big-endian order, without leading zeros. The number is the step of a symmetric grid,
``max(|low|, |high|) / 127``: onnxruntime's TensorRT provider multiplies it by 127 for the dynamic
range (``ReadDynamicRange`` in tensorrt_execution_provider.cc). The table that onnxruntime's own
``write_calibration_table`` writes is another format, a FlatBuffer of largest magnitudes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from ortune.core.errors import BadData, BadSettings
from ortune.core.observer import Range, Ranges

_HEADER = re.compile(r"TRT-(\d+)-(\w+)")
_LINE = re.compile(r"(.+?)\s*:\s*([0-9a-fA-F]{1,8})")
_STEPS = 127
_WITHOUT = 11
"""The first version without int8 calibrators (NVIDIA, migrating from TensorRT 10.x to 11.x)."""


def format_cache(ranges: Ranges, version: str) -> str:
    """Return the text of a cache of this version of TensorRT, which takes no other's."""
    steps = {n: np.float32(max(abs(r.low), abs(r.high)) / _STEPS) for n, r in ranges.items()}
    lines = [f"{name}: {int(step.view(np.uint32)):x}" for name, step in steps.items()]
    return "\n".join([f"TRT-{encode_version(version)}-EntropyCalibration2", *lines]) + "\n"


def parse_cache(text: str, where: str) -> Mapping[str, Range]:
    """Return tensor name -> symmetric range. Raises BadData: it is no such cache."""
    first, *lines = text.splitlines() or [""]
    if _HEADER.match(first) is None:
        raise BadData(
            f"{where} does not begin with TRT-<version>-<algorithm>",
            fix="give a calibration cache of TensorRT, or a file of `ortune calibrate -o`",
        )
    ranges = {}
    for number, line in enumerate(lines, start=2):
        if not line.strip():
            continue
        match = _LINE.fullmatch(line.strip())
        step = float(np.uint32(int(match[2], 16)).view(np.float32)) if match else float("nan")
        if match is None or not np.isfinite(step) or step < 0:
            raise BadData(
                f"{where}, line {number}: '{line[:80]}' is not 'tensor: hex of a float32 step'",
                fix="write the cache again: `ortune calibrate M --data D --tensorrt-cache FILE`",
            )
        ranges[match[1]] = Range(-_STEPS * step, _STEPS * step)
    return ranges


def encode_version(version: str) -> int:
    """Return NV_TENSORRT_VERSION: 8.6.1 is 8601, 10.14.1 is 101401.

    Raises:
        BadSettings: It is no version, or one without calibration caches.
    """
    if re.fullmatch(r"\d+\.\d+(\.\d+)*", version) is None:
        raise BadSettings(f"'{version}' is not a version of TensorRT", fix="write 8.6.1 or 10.3.0")
    major, minor, *patch_parts = (int(part) for part in version.split("."))
    if major >= _WITHOUT:
        raise BadSettings(
            f"TensorRT {version} reads no calibration cache",
            fix="give it pairs: `ortune convert M OUT --precision int8 --target gpu --data D`",
        )
    patch = patch_parts[0] if patch_parts else 0
    return major * (10_000 if major >= 10 else 1_000) + minor * 100 + patch
