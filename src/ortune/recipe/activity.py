"""What never woke up on the samples: tensors and channels that stayed at zero, branches unseen.

Put `watching`'s probes beside those of the calibration, then read `idle` off the answers: there
is no extra run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ortune.core.observer import Probe, Ranges


@dataclass(frozen=True)
class Idle:
    """A tensor that the samples never exercised, all of it or some of its channels.

    Attributes:
        tensor: Its name.
        op: Operator that makes it; empty for an input.
        value: The only value it ever had, 0 for most; None when it never held a value at all
            (a branch that was never taken) or when only `channels` of it are idle.
        channels: Those that were never anything but zero; empty when all of it is idle.
        of: Number of its channels; 0 when they were not told apart.
        seen: Whether it held any value.
    """

    tensor: str
    op: str
    value: float | None
    channels: tuple[int, ...] = ()
    of: int = 0
    seen: bool = True


def watching(model: ir.Model, tensors: Sequence[str]) -> list[Probe]:
    """Return one probe a tensor; its answer's key is the tensor's name and ``|activity``."""
    raise NotImplementedError


def idle(model: ir.Model, answers: Ranges) -> list[Idle]:
    """Return what never woke up, by the answers to `watching`'s probes; others are passed over."""
    raise NotImplementedError
