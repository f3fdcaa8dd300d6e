"""Does this CPU compute a bundle's plan as the one did that its answers were verified on?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ortune.core import wording
from ortune.core.hardware.cpus import native, native_types
from ortune.engine.manifest import Arithmetic

_WIDE_SUMS = {"int8-vnni", "int8-amx"}
"""Units that add 8-bit products in 32 bits."""

_HALVES = {"bfloat16": "bf16", "float16": "f16"}
_X86 = ("x86_64", "amd64")
_UNKNOWN = ("", "unknown")


def foreign(verified: Arithmetic, here: Mapping[str, str]) -> Iterator[str]:
    """Yield what a person must know where the CPU differs in what the plan rests on.

    Nothing for plans in float32, for what does not matter (AVX-512 against AVX2 with VNNI), or
    where one of the two CPUs is not known.

    Args:
        verified: From the manifest.
        here: This machine, as `ortune.measurement.machine.machine.machine` describes it.
    """
    sets = here.get("instruction sets", "").split()
    if not verified.instructions or verified.instructions[0] in _UNKNOWN or not sets:
        return
    if sets[0] in _UNKNOWN:
        return
    there, now = (_architecture(text) for text in (verified.system, here.get("system", "")))
    if verified.integers and there != now:
        yield (
            f"its {wording.count(verified.integers, 'integer layer')} verified on "
            f"{there}, this is {now}: "
            "kernels and rounding differ, and so may speed; verify and time it here"
        )
    elif verified.integers and now in _X86:
        had, has = (bool(native(one) & _WIDE_SUMS) for one in (verified.instructions, sets))
        yield from _integers(verified, had=had, has=has)
    elif verified.integers and "int8-arm" in native(verified.instructions) - native(sets):
        yield (
            f"its {wording.count(verified.integers, 'integer layer')} will be slower "
            "here: this CPU has "
            "no dot product instructions (asimddp), which it was measured with"
        )
    for half in verified.halves:
        if _HALVES.get(half) in native_types(verified.instructions) - native_types(sets):
            yield (
                f"it computes in {half}, which this CPU has no instructions for: it will be "
                "slower than measured"
            )


def _integers(verified: Arithmetic, *, had: bool, has: bool) -> Iterator[str]:
    layers = f"{verified.risky} of {wording.count(verified.integers, 'integer layer')}"
    if had and not has and verified.risky:
        yield (
            f"{layers} can saturate on this CPU, which has no VNNI, and were verified on one that "
            "has it: answers may be wrong; `ortune verify --simulate avx2` shows by how much, "
            "reduce_range avoids it"
        )
    elif had and not has:
        yield (
            f"its {wording.count(verified.integers, 'integer layer')} will be slower "
            "here: this CPU "
            "has no VNNI, which it was measured with; none can saturate"
        )
    elif has and not had and verified.risky:
        yield (
            f"{layers} may have saturated on the CPU they were verified on, which has no VNNI, "
            "and do not here: answers may differ from the verified ones, for the better"
        )


def _architecture(system: str) -> str:
    return system.split()[-1].lower() if system else ""
