"""Convolutions of one tensor that meet in one Concat become one convolution."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ortune.core.facts import Facts
from ortune.core.step import Stage, Transform
from ortune.model.graph import edit, prune
from ortune.model.graph.replace import forward, remove
from ortune.rewrites.layers.foldable import Host
from ortune.rewrites.layers.siblings import (
    Branch,
    branch,
    families,
    one_branch,
    side_by_side,
    split,
)


@dataclass(frozen=True)
class MergeConvs(Transform):
    """Make one Conv of those that read one tensor and meet in one Concat.

    ::

        Concat(f(A * x), f(B * x))  =  f([A B] * x)

    with f an activation of single values, or none. The Concat goes, or loses inputs. Exact.
    No slower in the toys that were timed on onnxruntime's CPU provider (no network here has such
    a Concat): between 1 x 1 convolutions of 64 channels, two 3 x 3 kernels of 32 channels as one
    take .98 of the time of the whole, two of 20 (no whole blocks of 16) .74; of 1 x 1, .97 and
    .85.

    Left alone: groups, kernels of different size, stride, padding or dilation, weights or results
    that something else reads, channels that are not neighbours in the Concat.

    Attributes:
        separate: Merge those that meet nowhere too, and split their channels behind. onnxruntime
            splits in another layout than it convolves in: Inception v1 takes 1.017 of its time,
            v2 1.037.
    """

    stage: ClassVar[Stage] = Stage.FINISH

    separate: bool = False

    def applies(self, facts: Facts) -> bool:
        """There are several convolutions, and where they may meet."""
        return facts.ops.get("Conv", 0) > 1 and (self.separate or facts.has("Concat"))

    def apply(self, model: ir.Model) -> int:
        """Edit the model in place and return how many convolutions went."""
        editor = edit.Editor(model.graph)
        opset = model.opset_imports.get("", 0)
        count = 0
        for graph in (model.graph, *model.graph.subgraphs()):
            for node in list(graph):
                if node.op_type == "Concat" and not node.domain:
                    count += _meet(model, editor, node)
            for family in families(list(graph), "Conv") if self.separate else ():
                count += _part(model, editor, family, opset)
        if count:
            prune.drop_dead(model)
        return count


def _meet(model: ir.Model, editor: edit.Editor, concat: ir.Node) -> int:
    if edit.attribute(concat, "axis", 1) != 1:
        return 0
    kept: list[ir.Value | None] = []
    pairs = [(branch(value, concat), value) for value in concat.inputs]
    for _, run in itertools.groupby(pairs, _key):
        part = list(run)
        found = [one for one, _ in part if one is not None]
        made = one_branch(editor, found, concat) if len(found) > 1 else None
        if isinstance(made, str):
            edit.refuse(model, found[0].at.node, made)
        kept += [made] if isinstance(made, ir.Value) else [value for _, value in part]
    count = len(concat.inputs) - len(kept)
    if count and len(kept) > 1:
        concat.resize_inputs(len(kept))
        for index, value in enumerate(kept):
            concat.replace_input_with(index, value)
    elif count and kept[0] is not None:
        name = concat.outputs[0].name
        forward(concat.outputs[0], kept[0])
        remove(concat)
        kept[0].name = name
    return count


def _key(pair: tuple[Branch | None, ir.Value | None]) -> object:
    one = pair[0]
    if one is None or one.at.group != 1:
        return object()
    return one.at.node.inputs[0], one.kind


def _part(model: ir.Model, editor: edit.Editor, family: Sequence[Host], opset: int) -> int:
    made = side_by_side(editor, family)
    if isinstance(made, str):
        edit.refuse(model, family[0].node, made)
        return 0
    ends = [at.node.outputs[0] for at in family]
    sizes = [at.outputs for at in family]
    split(editor, family[0].node, made.outputs[0], ends, sizes, axis=1, opset=opset)
    return len(family) - 1
