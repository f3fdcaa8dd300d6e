"""Does a bundle still answer as it did when it was packed?"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortune.core.errors import BadData, BadModel, gist
from ortune.core.session import Tensors
from ortune.data.stream import Stream
from ortune.engine.call import Call
from ortune.engine.manifest import Manifest
from ortune.measurement.machine import machine

TOLERANCE_DB = 40.0
"""The same settings on the same kind of machine repeat themselves far better than this; what
differs by more is another model."""

_KIND = ("cpu", "instruction sets", "system")
_RUNTIMES = ("onnxruntime", "onnxruntime-ep-openvino")


def snr_db(expected: Tensors, actual: Tensors) -> float:
    """Return the worst output's signal-to-noise ratio in dB; -inf where they cannot be compared.

    10 log10(sum expected^2 / sum (expected - actual)^2); inf for equal outputs. Values that are
    not finite must be the same in both. Text is equal or not.
    """
    if expected.keys() != actual.keys():
        return float("-inf")
    return min((_snr(expected[name], actual[name]) for name in expected), default=float("inf"))


def first_sample(call: Call, inputs: Path, outputs: Path) -> float:
    """Run the first golden sample and return the `snr_db` of the answer.

    Raises:
        BadModel: The samples cannot be read, or are none of this model.
    """
    try:
        feeds = {name: np.array(array) for name, array in Stream(inputs)[0].items()}
        return snr_db(Stream(outputs)[0], call(**feeds))
    except (BadData, IndexError) as error:
        raise BadModel(
            f"its golden samples cannot be used: {gist(error)}", fix="pack the run again"
        ) from error


def difference(
    machine_then: Mapping[str, str],
    versions: Mapping[str, str],
    machine_now: Mapping[str, str],
    versions_now: Mapping[str, str],
) -> str:
    """Name what differs between then and now and may change numbers; empty when nothing does."""
    then = {key: machine_then[key] for key in _KIND if key in machine_then}
    then |= {key: versions[key] for key in _RUNTIMES if key in versions}
    now = {**versions_now, **machine_now}
    return "; ".join(
        f"{key}: {value} then, {now.get(key, 'none')} now"
        for key, value in then.items()
        if value != now.get(key, "none")
    )


def drift(name: str, found: float, manifest: Manifest) -> str:
    """Return what to say of a golden answer; empty where it is the packed one.

    Args:
        name: The bundle's.
        found: Its distance from the packed answer, in dB.

    Raises:
        BadModel: It is another, on the kind of machine that the bundle was packed for.
    """
    if found >= TOLERANCE_DB:
        return ""
    here, now = machine.machine(), machine.versions()
    other = difference(manifest.machine, manifest.versions, here, now)
    answer = f"the golden sample's answer is {found:.0f} dB from the packed one"
    if not other:
        raise BadModel(
            f"{name}: {answer}, on the machine it was packed for", fix="pack the run again"
        )
    return f"{answer} ({other}); check its accuracy here with `ortune verify`, or optimize here"


def _snr(expected: NDArray[Any], actual: NDArray[Any]) -> float:
    if np.shape(expected) != np.shape(actual):
        return float("-inf")
    if expected.dtype.kind in "USOT":
        same = bool((expected.astype(str) == np.asarray(actual).astype(str)).all())
        return float("inf") if same else float("-inf")
    one, two = _wide(expected), _wide(actual)
    finite = np.isfinite(one)
    odd_one, odd_two = one[~finite], two[~finite]
    if not (finite == np.isfinite(two)).all() or not _same(odd_one, odd_two):
        return float("-inf")
    signal = float((np.abs(one[finite]) ** 2).sum())
    noise = float((np.abs(one[finite] - two[finite]) ** 2).sum())
    if noise == 0:
        return float("inf")
    ratio = signal / noise
    return 10 * float(np.log10(ratio)) if ratio > 0 else float("-inf")


def _wide(array: NDArray[Any]) -> NDArray[Any]:
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def _same(one: NDArray[Any], two: NDArray[Any]) -> bool:
    return bool(((one == two) | (np.isnan(one) & np.isnan(two))).all())
