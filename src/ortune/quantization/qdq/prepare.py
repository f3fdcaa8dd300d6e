"""The exact rewrites in front of static int8: what then gets pairs is what kernels take."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ortune.core import wording
from ortune.model.graph import edit
from ortune.quantization.node_filter import chosen, remember_names
from ortune.quantization.qdq.early_cuts import cut_early
from ortune.quantization.qdq.fold_scales import fold
from ortune.quantization.qdq.runtime_rules import Target
from ortune.rewrites.layers.convolutions import (
    split_transposed,
    spread_channels_last,
    widen_groups,
)

_GROUP = 32
"""Channels in a group from which the CPU provider's integer convolution is fast."""


def prepare(
    model: ir.Model, target: Target, exclude: Sequence[str], *, split: bool, spread: bool
) -> None:
    """Inline functions, fold scales into convolutions, and rewrite what has no integer kernel.

    Args:
        exclude: Patterns of nodes that stay as they are.
        split: Write ConvTranspose as Conv and DepthToSpace.
        spread: On the CPU, write DepthToSpace with channels last.
    """
    remember_names(model)
    edit.inline(model)
    fold(model)
    left = chosen(model, exclude, "exclude")
    if split:
        split_transposed(model, left)
    if target == "cpu":
        cut_early(model, left)
        if spread:
            spread_channels_last(model)


def widen(model: ir.Model, exclude: Sequence[str]) -> None:
    """Give grouped convolutions as many channels a group as the CPU's kernel is fast with."""
    count = widen_groups(model, _GROUP, chosen(model, exclude, "exclude"))
    if count:
        groups = wording.count(count, "grouped convolution")
        edit.note(model, f"{groups} made to have {_GROUP} channels a group")
