"""Does a bundle answer, and compute, here as it did where it was packed?"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortune.bundle.engine.manifest import Arithmetic, Manifest
from ortune.core import wording
from ortune.core.errors import BadModel
from ortune.core.hardware.cpus import list_native_units, native_types
from ortune.core.session import Tensors
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
    return min(
        (_compute_snr(expected[name], actual[name]) for name in expected), default=float("inf")
    )


def explain_difference(
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


def describe_drift(name: str, distance_db: float, manifest: Manifest) -> str:
    """Return what to say of a golden answer so far, in dB, from the packed one; empty if it is it.

    Raises BadModel: it is another, on the kind of machine that the bundle was packed for.
    """
    if distance_db >= TOLERANCE_DB:
        return ""
    here, now = machine.describe_machine(), machine.package_versions()
    other = explain_difference(manifest.machine, manifest.versions, here, now)
    answer = f"the golden sample's outputs differ from the packed ones: SNR {distance_db:.0f} dB"
    if not other:
        raise BadModel(
            f"{name}: {answer}, on the machine it was packed for", fix="pack the run again"
        )
    return f"{answer} ({other}); check its accuracy here with `ortune verify`, or optimize here"


def _compute_snr(expected: NDArray[Any], actual: NDArray[Any]) -> float:
    if np.shape(expected) != np.shape(actual):
        return float("-inf")
    if expected.dtype.kind in "USOT":
        same = bool((expected.astype(str) == np.asarray(actual).astype(str)).all())
        return float("inf") if same else float("-inf")
    wide_expected, wide_actual = _widen(expected), _widen(actual)
    finite = np.isfinite(wide_expected)
    odd_one, odd_two = wide_expected[~finite], wide_actual[~finite]
    if not (finite == np.isfinite(wide_actual)).all() or not _are_equal(odd_one, odd_two):
        return float("-inf")
    signal = float((np.abs(wide_expected[finite]) ** 2).sum())
    noise = float((np.abs(wide_expected[finite] - wide_actual[finite]) ** 2).sum())
    if noise == 0:
        return float("inf")
    ratio = signal / noise
    return 10 * float(np.log10(ratio)) if ratio > 0 else float("-inf")


def _widen(array: NDArray[Any]) -> NDArray[Any]:
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def _are_equal(first: NDArray[Any], second: NDArray[Any]) -> bool:
    return bool(((first == second) | (np.isnan(first) & np.isnan(second))).all())


_WIDE_SUMS = {"int8-vnni", "int8-amx"}
"""Units that add 8-bit products in 32 bits."""

_HALVES = {"bfloat16": "bf16", "float16": "f16"}
_X86 = ("x86_64", "amd64")
_UNKNOWN = ("", "unknown")


def list_cpu_differences(verified: Arithmetic, here: Mapping[str, str]) -> Iterator[str]:
    """Yield what a person must know where the CPU differs in what the plan rests on.

    Nothing for plans in float32, for what does not matter (AVX-512 against AVX2 with VNNI), or
    where one of the two CPUs, of the manifest and of `describe_machine`, is not known.
    """
    sets = here.get("instruction sets", "").split()
    if not verified.instructions or verified.instructions[0] in _UNKNOWN or not sets:
        return
    if sets[0] in _UNKNOWN:
        return
    there, now = (
        (text.split()[-1].lower() if text else "")
        for text in (verified.system, here.get("system", ""))
    )
    if verified.integers and there != now:
        yield (
            f"its {wording.format_count(verified.integers, 'integer layer')} verified on "
            f"{there}, this is {now}: "
            "kernels and rounding differ, and so may speed; verify and time it here"
        )
    elif verified.integers and now in _X86:
        had, has = (
            bool(list_native_units(instructions) & _WIDE_SUMS)
            for instructions in (verified.instructions, sets)
        )
        yield from _describe_integers(verified, had=had, has=has)
    elif verified.integers and "int8-arm" in list_native_units(
        verified.instructions
    ) - list_native_units(sets):
        yield (
            f"its {wording.format_count(verified.integers, 'integer layer')} will be slower "
            "here: this CPU has "
            "no dot product instructions (asimddp), which it was measured with"
        )
    for half in verified.halves:
        if _HALVES.get(half) in native_types(verified.instructions) - native_types(sets):
            yield (
                f"it computes in {half}, which this CPU has no instructions for: it will be "
                "slower than measured"
            )


def _describe_integers(verified: Arithmetic, *, had: bool, has: bool) -> Iterator[str]:
    layers = f"{verified.risky} of {wording.format_count(verified.integers, 'integer layer')}"
    if had and not has and verified.risky:
        yield (
            f"{layers} can saturate on this CPU, which has no VNNI, and were verified on one that "
            "has it: answers may be wrong; `ortune verify --simulate avx2` shows by how much, "
            "reduce_range avoids it"
        )
    elif had and not has:
        yield (
            f"its {wording.format_count(verified.integers, 'integer layer')} will be slower "
            "here: this CPU "
            "has no VNNI, which it was measured with; none can saturate"
        )
    elif has and not had and verified.risky:
        yield (
            f"{layers} may have saturated on the CPU they were verified on, which has no VNNI, "
            "and do not here: answers may differ from the verified ones, for the better"
        )
