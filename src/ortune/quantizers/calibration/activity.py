"""Inactive tensors and channels: at zero on every sample, or of a branch never taken.

Put `make_activity_probes` beside those of the calibration, then read `find_inactive` off the
answers: there is no extra run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ortune.core.observer import Probe, Ranges
from ortune.graph.ir import edit
from ortune.quantizers.observers.activity import Activity


@dataclass(frozen=True)
class Inactive:
    """A tensor that the samples left inactive, all of it or some of its channels."""

    tensor: str
    op: str  # operator that makes it; empty for an input
    # The only value it ever had, 0 for most; None when it never held a value at all (a branch that
    # was never taken) or when only `channels` of it are inactive.
    value: float | None
    # Those that were never anything but zero; empty when all of it is inactive.
    channels: tuple[int, ...] = ()
    of: int = 0  # number of its channels; 0 where they were not observed one by one
    seen: bool = True


def make_activity_probes(model: ir.Model, tensors: Sequence[str]) -> list[Probe]:
    """Return one probe a tensor; its answer's key is the tensor's name and ``|activity``.

    Channels are the second axis of what flows between convolutions, the last one of all else.
    """
    values = _index_values(model)
    return [
        Probe(name, Activity(axis=_find_channel_axis(values.get(name))), name=f"{name}{_KEY}")
        for name in dict.fromkeys(tensors)
    ]


def find_inactive(model: ir.Model, answers: Ranges, tensors: Sequence[str] = ()) -> list[Inactive]:
    """Return what is inactive by the answers to `make_activity_probes`, where it has one."""
    values = _index_values(model)
    observed = [key.removesuffix(_KEY) for key in answers if key.endswith(_KEY)]
    inactive_tensors = []
    for name in dict.fromkeys((*observed, *tensors)):
        value = values.get(name)
        node = value.producer() if value is not None else None
        op = node.op_type if node is not None else ""
        seen = answers.get(f"{name}{_KEY}")
        if seen is None:
            inactive_tensors.append(Inactive(name, op, None, seen=False))
            continue
        if seen.low == seen.high:
            inactive_tensors.append(Inactive(name, op, seen.low, of=len(seen.channels)))
            continue
        zero = tuple(i for i, ends in enumerate(seen.channels) if ends == (0.0, 0.0))
        if zero:
            inactive_tensors.append(Inactive(name, op, None, zero, len(seen.channels)))
    return inactive_tensors


_KEY = "|activity"
_THROUGH = frozenset(
    ("Add", "BatchNormalization", "Clip", "HardSwish", "LeakyRelu", "Mul", "Relu", "Sigmoid")
)


def _index_values(model: ir.Model) -> dict[str, ir.Value]:
    outputs = (value for node in edit.walk_nodes(model) for value in node.outputs)
    inputs = (value for graph in edit.walk_graphs(model) for value in graph.inputs)
    return {str(value.name): value for value in (*inputs, *outputs)}


def _find_channel_axis(value: ir.Value | None) -> int:
    """Return 1 when convolutions are near, -1 otherwise."""
    for _ in range(8):
        if value is None:
            return -1
        if any("Conv" in use.node.op_type for use in value.uses()):
            return 1
        node = value.producer()
        if node is None:
            break
        if "Conv" in node.op_type or "Pool" in node.op_type:
            return 1
        if node.op_type not in _THROUGH:
            break
        value = node.inputs[0]
    return -1
