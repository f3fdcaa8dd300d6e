"""Takes pairs that no integer kernel takes out of models that arrive quantized."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Self

import onnx_ir as ir

from ortune.core.backend import Backend
from ortune.core.capabilities import Capabilities
from ortune.core.errors import BadSettings, Refused, suggest_names
from ortune.core.facts import Facts
from ortune.core.observer import Ranges
from ortune.core.step import Quantizer
from ortune.graph.ir import edit, qdq
from ortune.quantizers.common.qdq import dequantize, runtime_rules

AROUND = (
    "Conv MatMul Gemm Add AveragePool Concat DepthToSpace Expand Flatten GlobalAveragePool "
    "LeakyRelu MaxPool Mul Reshape Sigmoid Slice Softmax Squeeze Transpose Unsqueeze"
)
_FREE = ("MatMul", "Gemm")
"""Operators whose integer kernel also has a float output."""

_SAME_GRID = ("DepthToSpace", *runtime_rules.MOVING)
"""Operators that move integers: taken only between equal grids."""


@dataclass(frozen=True)
class DropPairs(Quantizer):
    """Rounds only what an integer kernel takes or makes.

    onnxruntime fuses the pairs around a node into an integer kernel; pairs around other operators
    stay as two nodes and a rounding each, in every inference. A pair stays if a node of `around`
    reads it that has all its inputs from pairs or integer weights, or makes it in integers; the
    rest is taken out until nothing changes. Where a tool dropped a Relu in favour of a grid that
    starts at zero, a Clip takes its place.

    OpenVINO's layers write float at no cost: there a pair stays for the nodes that compute with
    its integers, and all its other readers take the float values.

    Attributes:
        target: Runtime whose kernels count.
        around: Operators whose pairs are worth their cost. Empty: the target's.
        products: Products of two activations (attention) count as worth it.
        tensors: Names of tensors whose pairs go, and no others: where a runtime computes another
            function between them. Empty: the pairs that no kernel takes.
    """

    needs_opset: ClassVar[int] = 13

    target: runtime_rules.Target = "cpu"
    around: tuple[str, ...] = ()
    products: bool = True
    tensors: tuple[str, ...] = ()

    @classmethod
    def offers(cls, facts: Facts, backend: Backend, capabilities: Capabilities) -> Iterable[Self]:
        """Yield pairs around layers alone for transformers, and all that kernels take."""
        if not facts.has("QuantizeLinear") or "int8" not in backend.arithmetic:
            return
        target: runtime_rules.Target = "openvino" if backend.name() == "openvino" else "cpu"
        if facts.has("MatMul") and facts.has("Softmax", "LayerNormalization"):
            layers = runtime_rules.list_layer_ops(target)
            yield cls(target, around=layers, products=False)
        yield cls(target)

    def apply(self, model: ir.Model, ranges: Ranges) -> int:
        edit.inline_functions(model)
        if not any(node.op_type == "QuantizeLinear" for node in edit.walk_nodes(model)):
            raise Refused("no quantize / dequantize pair to take out", fix="leave the step out")
        if self.tensors:
            pairs = dequantize.map_activation_pairs(model)
            for name in self.tensors:
                if name not in pairs:
                    raise BadSettings(
                        f"no quantize / dequantize pair stands behind a tensor '{name}'",
                        fix=suggest_names(name, pairs),
                    )
            nodes = [node for name in dict.fromkeys(self.tensors) for node in pairs[name]]
            return sum(dequantize.drop_pair(edit.Editor(model.graph), node) for node in nodes)
        count = 0
        for graph in [model.graph, *model.graph.subgraphs()]:
            editor = edit.Editor(graph)
            while idle := [
                node
                for node in dequantize.find_activation_pairs(graph)
                if not self._is_useful(node)
            ]:
                dropped = sum(dequantize.drop_pair(editor, node) for node in idle)
                if not dropped:
                    break
                count += dropped
            if self._writes_float:
                count += sum(map(self._free_readers, dequantize.find_activation_pairs(graph)))
        count += dequantize.write_for_runtime(model, self.target)
        if not count:
            raise Refused(
                "every quantize / dequantize pair belongs to an integer kernel",
                fix="leave the step out",
            )
        return count

    @property
    def _writes_float(self) -> bool:
        return runtime_rules.writes_float(self.target)

    @property
    def _layers(self) -> tuple[str, ...]:
        return runtime_rules.list_layer_ops(self.target)

    def _list_around(self) -> tuple[str, ...]:
        if self.around or self.target == "cpu":
            return self.around or tuple(AROUND.split())
        return (*self._layers, *runtime_rules.list_following_ops(self.target))

    def _free_readers(self, node: ir.Node) -> int:
        """Let the readers of a pair that compute in float read the float values."""
        source, count = node.inputs[0], 0
        for late in qdq.list_consumers(node.outputs[0]):
            for use in late.outputs[0].uses() if source is not None else ():
                if not self._has_integer_kernel(use.node):
                    use.node.replace_input_with(use.idx, source)
                    count += 1
        return count

    def _is_useful(self, node: ir.Node) -> bool:
        source = node.inputs[0]
        maker = source.producer() if source is not None else None
        writes_integers = maker is not None and not (self._writes_float or maker.op_type in _FREE)
        if writes_integers and maker is not None and self._has_integer_kernel(maker):
            return True
        wide = [late.outputs[0] for late in qdq.list_consumers(node.outputs[0])]
        readers = (reader for value in wide for reader in qdq.list_consumers(value))
        return any(map(self._has_integer_kernel, readers))

    def _has_integer_kernel(self, node: ir.Node) -> bool:
        """Whether an integer kernel computes the node, as the pairs are now."""
        if node.domain or node.op_type not in self._list_around():
            return False
        shapes = ("Reshape", "Slice", "Squeeze", "Unsqueeze", "Expand")
        floats = [v for v in node.inputs[: 1 if node.op_type in shapes else None] if v is not None]
        if node.op_type in self._layers:
            if not all(map(qdq.is_integer, floats[:2])):
                return False
            if not self.products and not any(map(qdq.is_weight, floats[:2])):
                return False
        elif not all(map(qdq.is_rounded, floats)):
            return False
        if node.op_type in (self._layers if self._writes_float else _FREE):
            return True
        after = qdq.list_consumers(node.outputs[0])
        if len(after) != 1 or after[0].op_type != "QuantizeLinear":
            # A Relu or Clip between a layer and its pair is fused too.
            if node.op_type not in ("Conv", "Add", "Gemm") or len(after) != 1:
                return False
            behind = qdq.list_consumers(after[0].outputs[0])
            clipped = after[0].op_type in ("Relu", "Clip")
            return clipped and len(behind) == 1 and behind[0].op_type == "QuantizeLinear"
        return node.op_type not in _SAME_GRID or _has_same_grid(floats[0], after[0])


def _has_same_grid(value: ir.Value, after: ir.Node) -> bool:
    before = qdq.find_runtime_producer(value, "DequantizeLinear")
    before_grid = qdq.read_grid(before) if before is not None else None
    after_grid = qdq.read_grid(after)
    return (
        before_grid is not None and after_grid is not None and before_grid.is_same_grid(after_grid)
    )
