"""Bounds written as Max and Min, and several bounds in a row, become one Clip or Relu."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from ortune.core.facts import Facts
from ortune.core.step import Stage, Transform
from ortune.graph.ir.edit import Editor
from ortune.transforms.common.formulas.formula import Site, at_each, replace_formula
from ortune.transforms.common.simplify.clamps import read_clamp, trace_clamps

_OLDEST = 6
"""Before this opset Clip and Relu took what is an attribute of no use since."""


@dataclass(frozen=True)
class FuseClip(Transform):
    """Join bounds in a row, Max and Min among them, into one Relu or Clip.

    ::

        max(x, 0)  =  Relu(x)    min(max(x, a), b)  =  Clip(x, a, b)
        Clip(Clip(x, a, b), c, d)  =  Clip(x, min(max(a, c), d), max(min(b, d), c))

    Exact; of NaN runtimes make what they like in either form. Float tensors only, constants of one
    element only. One bound alone, if it is not 0, is left alone: Clip makes infinities finite on
    the other side, Max and Min do not. Today's PyTorch exporter writes clamp(min=0) as Max.

    onnxruntime's CPU provider takes Relu and Clip, but neither Max nor Min, into the convolution
    before.
    """

    stage: ClassVar[Stage] = Stage.FUSE

    def applies(self, facts: Facts) -> bool:
        bounds = ("Max", "Min")
        return facts.has(*bounds) or facts.ops.get("Clip", 0) + facts.ops.get("Relu", 0) > 1

    def apply(self, model: ir.Model) -> int:
        return at_each(model, _fuse_limits, "Max", "Min", "Clip", "Relu", since=_OLDEST)


def _fuse_limits(model: ir.Model, last: ir.Node, editor: Editor) -> int | str:
    opset = model.opset_imports.get("", 0)
    value = last.outputs[0]
    users = {node for node, _ in value.uses()}
    if len(users) == 1 and not value.is_graph_output():
        after = read_clamp(users.pop().outputs[0], opset)
        if after is not None and after.source is value:
            return 0  # its turn comes with the last of the row
    clamps = trace_clamps(value, opset)
    if clamps is None:
        return 0
    plain = [node for node in clamps.nodes if node.op_type in ("Max", "Min")]
    if len(clamps.nodes) == 1 and not plain:
        return 0
    if not math.isfinite(clamps.low) or (clamps.high == math.inf and clamps.low != 0.0):
        return 0
    dtype = value.dtype
    if dtype not in _TYPES:
        floats = dtype is not None and dtype.is_floating_point()
        return "this float type has no Clip everywhere" if floats else 0
    nodes = frozenset(clamps.nodes)
    site = Site((clamps.source,), nodes, last)
    if clamps.low == 0.0 and clamps.high == math.inf:
        return replace_formula(model, editor, site, "Relu")
    if opset < 11:
        attributes = {"min": clamps.low, "max": clamps.high}
        return replace_formula(model, editor, site, "Clip", attributes)
    bounds = [
        editor.add_constant(f"{last.name}_{name}", np.array(bound, dtype.numpy()))
        for name, bound in (("min", clamps.low), ("max", clamps.high))
    ]
    return replace_formula(model, editor, Site((clamps.source, *bounds), nodes, last), "Clip")


_TYPES = (ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16)
