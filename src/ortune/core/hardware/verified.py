"""Which execution providers were run on which kind of device, with the results that show it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["cpu", "gpu", "npu"]
"""A kind of device that computes."""

VERIFIED: Mapping[tuple[str, Kind], str] = MappingProxyType({})
"""Provider and kind of device -> the committed results of `tests/gpu` there.

What runs on a CPU is not listed: every change runs it.
"""


def reason(provider: str, kind: Kind) -> str:
    """Return why a provider is unverified on a kind of device, empty where it was run."""
    if kind == "cpu" or (provider, kind) in VERIFIED:
        return ""
    return f"never run on {'a GPU' if kind == 'gpu' else 'an NPU'} here"
