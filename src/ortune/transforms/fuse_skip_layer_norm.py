"""A residual sum and the normalization of it become one operator of onnxruntime's own."""

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ortune.core.backend import Backend
from ortune.core.capabilities import Capabilities
from ortune.core.step import Stage, Transform
from ortune.graph.ir import edit, match
from ortune.transforms.common.formulas.formula import at_each_foreign, beyond_cpu

_SUM = 3
"""Place of the sum among the operator's outputs."""


@dataclass(frozen=True)
class FuseSkipLayerNorm(Transform):
    """Join a residual sum and its norm: com.microsoft Skip(Simplified)LayerNormalization.

    ::

        LayerNormalization(x + skip)               =  Skip...(x, skip)
        LayerNormalization((x + bias) + skip)      =  Skip...(x, skip, bias)

    The sum may be read elsewhere too: it is an output. Exact up to the order of the additions.
    Left alone: norms of other axes than the last, sums that broadcast or of unknown shape.

    Not for onnxruntime's CPU provider: its own fusion of this kind costs time there. Kernels
    of other providers read the sum once instead of twice; that was not measured here, results
    were compared on the CPU provider.
    """

    stage: ClassVar[Stage] = Stage.FINISH
    automatic: ClassVar[bool] = False
    consumes = (("LayerNormalization", "RMSNormalization"), ("Add",))

    def suits(self, backend: Backend, capabilities: Capabilities) -> bool:
        """Those with onnxruntime's own operators, but for the CPU provider, which loses."""
        return beyond_cpu(backend)

    def apply(self, model: ir.Model) -> int:
        return at_each_foreign(model, _fuse_skip, "LayerNormalization", "RMSNormalization")


def _fuse_skip(model: ir.Model, norm: ir.Node, editor: edit.Editor) -> int | str:
    add = match.find_producer(norm.inputs[0], "Add")
    if add is None or add.graph is not norm.graph or norm.graph is None:
        return 0
    if why := _explain_misfit(norm, add):
        return why
    x, skip, bias = _split_addends(add)
    if norm.op_type == "LayerNormalization":
        op, inputs = "SkipLayerNormalization", [x, skip, *norm.inputs[1:3]]
        inputs += [None] * (4 - len(inputs))
    else:
        op, inputs = "SkipSimplifiedLayerNormalization", [x, skip, norm.inputs[1]]
    settings = {"epsilon": edit.read_attribute(norm, "epsilon", 1e-5)}
    while inputs[-1] is None and bias is None:
        inputs.pop()
    if bias is not None:
        inputs.append(bias)
    name, domain = f"{norm.name}_skip", "com.microsoft"
    fused = editor.make_node(op, inputs, settings, name=name, domain=domain, outputs=_SUM + 1)
    for value in fused.outputs[1:_SUM]:
        value.name = ""
    for value, old in ((fused.outputs[0], norm.outputs[0]), (fused.outputs[_SUM], add.outputs[0])):
        value.type, value.shape = old.type, old.shape
    elsewhere = len(add.outputs[0].uses()) > 1 or add.outputs[0].is_graph_output()
    norm.graph.insert_before(add if elsewhere else norm, fused)
    edit.redirect_uses(norm.outputs[0], fused.outputs[0])
    norm.graph.remove(norm, safe=True)
    if elsewhere:
        edit.redirect_uses(add.outputs[0], fused.outputs[_SUM])
    else:
        fused.resize_outputs(1)
    return 1


def _explain_misfit(norm: ir.Node, add: ir.Node) -> str | None:
    """Return why the kernel can not take this norm and sum."""
    shape = edit.shape_of(add.outputs[0])
    if shape is None or len(shape) not in (2, 3):
        return "the sum is not known to be of rank 2 or 3"
    if edit.read_attribute(norm, "axis", -1) % len(shape) != len(shape) - 1:
        return "the norm goes over more axes than the last"
    if any(
        addend is None or edit.shape_of(addend) != shape or None in shape for addend in add.inputs
    ):
        return "the summands are not known to have the same shape"
    if norm.inputs[0] is None or norm.inputs[0].dtype not in _TYPES:
        return "the type has no kernel"
    if any(edit.is_read(value) for value in norm.outputs[1:]):
        return "its statistics are read"
    weights = [edit.const_tensor(w) for w in norm.inputs[1:] if w is not None]
    if any(tensor is None or len(tensor.shape) != 1 for tensor in weights):
        return "scale and shift are not constant vectors"
    return None


_TYPES = (ir.DataType.FLOAT, ir.DataType.FLOAT16)


def _split_addends(add: ir.Node) -> tuple[ir.Value | None, ir.Value | None, ir.Value | None]:
    """Return x, skip, and a bias that was added to x alone."""
    for biased, skip in (add.inputs, tuple(reversed(add.inputs))):
        inner = match.find_producer(biased, "Add")
        if inner is None or biased is None or not edit.has_single_use(biased):
            continue
        for x, bias in (inner.inputs, tuple(reversed(inner.inputs))):
            tensor = None if edit.is_overridable(bias) else edit.const_tensor(bias)
            if x is None or tensor is None or len(tensor.shape) != 1 or x.shape != biased.shape:
                continue
            if x.shape is not None and tensor.shape[0] == x.shape[-1]:
                return x, skip, bias
    return add.inputs[0], add.inputs[1], None
