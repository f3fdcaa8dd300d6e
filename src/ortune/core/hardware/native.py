"""Which arithmetic narrower than float32 a CPU has instructions for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

_FLAGS: Mapping[str, tuple[str, ...]] = {
    "int8-vnni": ("avx512_vnni", "avx_vnni"),
    "int8-amx": ("amx_int8",),
    "int8-arm": ("asimddp", "i8mm"),
    "bf16-avx512": ("avx512_bf16",),
    "bf16-amx": ("amx_bf16",),
    "bf16-arm": ("bf16",),
    "f16-avx512": ("avx512_fp16",),
    "f16-amx": ("amx_fp16",),
    "f16-arm": ("asimdhp",),
}
"""Type and unit -> the CPU's flags, of which one is enough."""


def native(flags: Iterable[str]) -> frozenset[str]:
    """Return type and unit of what is computed natively, such as ``int8-vnni`` or ``bf16-amx``.

    Args:
        flags: The CPU's, in Linux' spelling; of none nothing is known.
    """
    held = frozenset(flags)
    return frozenset(name for name, some in _FLAGS.items() if held.intersection(some))


def native_types(flags: Iterable[str]) -> frozenset[str]:
    """Return the types alone: of ``int8``, ``bf16`` and ``f16`` those with a unit of their own."""
    return frozenset(name.partition("-")[0] for name in native(flags))
