"""Integer layers in x86's fastest pair of dtypes: U8 activations, S8 weights."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir

from ortune.core.backend import Backend
from ortune.core.capabilities import Capabilities
from ortune.core.facts import Facts
from ortune.core.hardware.cpus import list_native_units
from ortune.core.step import Stage, Transform
from ortune.graph.ir import edit, qdq
from ortune.graph.ir.edit import is_overridable

_LAYERS = ("Conv", "ConvTranspose", "MatMul", "Gemm")
_X86 = ("x86_64", "amd64")


@dataclass(frozen=True)
class U8s8(Transform):
    """S8 activations and U8 weights moved by 128 together with their zero points: exact.

    ``(q + 128) - (z + 128) = q - z``, so every product stays what it was. onnxruntime's x86
    kernels are fast for U8 times S8 alone: S8S8 and U8U8 take 2 to 3 times as long. Pairs,
    QOperator layers, integer products and what only moves integers between them (MaxPool,
    Reshape, Concat, Pad and so on) are followed; a tensor that ends in an operator not known here,
    or in the model's inputs or outputs, is left with all that must have its dtype. The second
    factor of a product of two activations stays S8.

    The search applies it on x86 CPUs with VNNI. Without VNNI U8S8 products saturate where U8U8 and
    S8S8 do not, so there it is no longer the same arithmetic.
    """

    stage: ClassVar[Stage] = Stage.FINISH
    portable: ClassVar[bool] = False
    """It makes exact integer layers such that saturate without VNNI."""

    def applies(self, facts: Facts) -> bool:
        return facts.quantized

    def suits(self, backend: Backend, capabilities: Capabilities) -> bool:
        """Only onnxruntime's own kernels on x86 with VNNI gain by it."""
        x86 = capabilities.machine.get("system", "").lower().endswith(_X86)
        vnni = "int8-vnni" in list_native_units(capabilities.instruction_sets)
        return backend.name() == "cpu" and x86 and vnni

    def apply(self, model: ir.Model) -> int:
        mover = _Mover(edit.Editor(model.graph))
        count = 0
        for component in _find_components(model):
            count += mover.make_unsigned(component)
        for ports in _find_unsigned_weights(model):
            mover.make_signed(ports)
            count += 1
        return count


@dataclass(frozen=True)
class _Component:
    """Integer tensors that must have one dtype, and the ports that hold them to it."""

    values: tuple[ir.Value, ...]
    ports: tuple[tuple[ir.Node, qdq.Port], ...]


def _find_components(model: ir.Model) -> Iterator[_Component]:
    seen: set[ir.Value] = set()
    for node in edit.walk_nodes(model):
        start = node.outputs[0]
        if node.op_type != "QuantizeLinear" or start in seen or not qdq.has_runtime_domain(node):
            continue
        grid = qdq.read_grid(node)
        if grid is None or grid.zero.dtype != np.int8 or edit.const_tensor(node.inputs[0]):
            continue
        component = _collect_component(start)
        if component is not None and not _second_factor(component):
            seen.update(component.values)
            yield component


def _collect_component(start: ir.Value) -> _Component | None:
    """Collect what must move with a tensor; None when something of it cannot."""
    values: dict[ir.Value, None] = {start: None}
    ports: dict[tuple[ir.Node, qdq.Port], None] = {}
    ahead = [start]
    while ahead:
        value = ahead.pop()
        maker = value.producer()
        constant = edit.const_tensor(value) is not None
        if value.is_graph_output() or is_overridable(value) or (maker is None and not constant):
            return None
        touched: list[tuple[ir.Node, qdq.Port | None]] = [
            (node, next((p for p in qdq.list_ports(node) if index in p.ins), None))
            for node, index in value.uses()
        ]
        if maker is not None and not constant:
            index = value.index() or 0
            behind = next((p for p in qdq.list_ports(maker) if index in p.outs), None)
            touched.append((maker, behind))
        for node, port in touched:
            if port is None or not _can_shift(node, port):
                return None
            ports[node, port] = None
            ends = [qdq.find_input(node, i) for i in port.ins]
            ends += [node.outputs[i] for i in port.outs if i < len(node.outputs)]
            for end in ends:
                if end is not None and end not in values:
                    values[end] = None
                    ahead.append(end)
    return _Component(tuple(values), tuple(ports))


def _can_shift(node: ir.Node, port: qdq.Port) -> bool:
    for index in port.zeros:
        zero = qdq.find_input(node, index)
        array = edit.const_array(zero)
        if is_overridable(zero) or (
            zero is not None and (array is None or array.dtype != np.int8)
        ):
            return False
    return True


def _second_factor(component: _Component) -> bool:
    """Whether it is only read as the right side of products: U8 times S8 is the fast pair."""
    products = 0
    for node, port in component.ports:
        if node.op_type == "QLinearMatMul":
            if port.ins != (3,):
                return False
            products += 1
        elif node.op_type == "DequantizeLinear":
            for reader, index in node.outputs[0].uses():
                if reader.op_type != "MatMul" or index != 1:
                    return False
                products += 1
        elif node.op_type != "QuantizeLinear":
            return False
    return products > 0


def _find_unsigned_weights(model: ir.Model) -> Iterator[list[tuple[ir.Node, int, int]]]:
    """Yield the readers of each constant U8 weight: node, input of weight and of zero point."""
    seen: set[ir.Value] = set()
    for node in edit.walk_nodes(model):
        for value in node.inputs:
            tensor = edit.const_tensor(value)
            if value is None or value in seen or tensor is None or len(tensor.shape) < 2:
                continue
            if tensor.dtype != ir.DataType.UINT8 or is_overridable(value):
                continue
            seen.add(value)
            ports = [_weight_port(reader, index) for reader, index in value.uses()]
            if all(ports) and not value.is_graph_output():
                yield [port for port in ports if port is not None]


def _weight_port(node: ir.Node, index: int) -> tuple[ir.Node, int, int] | None:
    zero = _zero_index(node, index)
    if zero is None:
        return None
    zero_point = qdq.find_input(node, zero)
    array = edit.const_array(zero_point)
    fits = zero_point is None or (array is not None and array.dtype == np.uint8)
    return (node, index, zero) if fits and not is_overridable(zero_point) else None


def _zero_index(node: ir.Node, index: int) -> int | None:
    if not qdq.has_runtime_domain(node):
        return None
    for weight, zero in qdq.WEIGHTS.get(node.op_type, ()):
        if index == weight:
            return zero
    if node.op_type != "DequantizeLinear" or index != 0:
        return None
    uses = tuple(node.outputs[0].uses())
    layers = all(n.op_type in _LAYERS and i == 1 and not n.domain for n, i in uses)
    return 2 if uses and layers and qdq.read_grid(node) is not None else None


class _Mover:
    """Moves constants by 128; a constant that several readers share is stored once."""

    def __init__(self, editor: edit.Editor) -> None:
        self._editor = editor
        self._moved: dict[ir.Value, ir.Value] = {}

    def make_unsigned(self, component: _Component) -> int:
        """Make a component's tensors U8."""
        for node, port in component.ports:
            for index in port.zeros:
                self._set_zero_point(node, index, np.dtype(np.uint8))
            for index in port.ins:
                if edit.const_tensor(qdq.find_input(node, index)) is not None:
                    self._set_zero_point(node, index, np.dtype(np.uint8))
            if node.op_type == "QuantizeLinear":
                node.attributes.pop("output_dtype", None)
        activations = [value for value in component.values if edit.const_tensor(value) is None]
        for value in activations:
            value.dtype = ir.DataType.UINT8
        return len(activations)

    def make_signed(self, ports: list[tuple[ir.Node, int, int]]) -> None:
        """Make a constant weight S8 for all its readers."""
        for node, index, zero in ports:
            self._set_zero_point(node, zero, np.dtype(np.int8))
            self._set_zero_point(node, index, np.dtype(np.int8))

    def _set_zero_point(self, node: ir.Node, index: int, dtype: np.dtype[Any]) -> None:
        old = qdq.find_input(node, index)
        step = 128 if dtype == np.uint8 else -128
        if old is None:
            scale = edit.const_array(qdq.find_input(node, 1))
            pair = node.op_type in ("QuantizeLinear", "DequantizeLinear")
            shape = scale.shape if pair and scale is not None else ()
            new = self._editor.add_constant(f"{node.name}_zero", np.full(shape, step, dtype))
            qdq.set_input(node, index, new)
            return
        if old not in self._moved:
            array = edit.const_array(old)
            assert array is not None
            wide = (array.astype(np.int16) + step).astype(dtype)
            self._moved[old] = self._editor.add_constant(f"{old.name}_{dtype.name}", wide)
        node.replace_input_with(index, self._moved[old])
        edit.discard_constant(old)
