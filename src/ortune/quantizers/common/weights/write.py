"""Write packed weights into a model, in onnxruntime's operators or in standard ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ortune.graph.ir import edit
from ortune.graph.ir.qdq import MICROSOFT, given
from ortune.quantizers.common.block_grid import SLAB, Packed, pack, unpack
from ortune.quantizers.common.nodes import stand_in
from ortune.quantizers.common.weights.matmuls import Product, Rows, TableLookup


class _Chain:
    """Looks packed rows up with standard operators, which every runtime has."""

    def __init__(self, editor: edit.Editor, table: TableLookup, packed: Packed) -> None:
        self._editor, self._table, self._packed = editor, table, packed
        self._dtype = table.rows.dtype

    def build(self, parts: Sequence[ir.Value]) -> ir.Value:
        """Gather packed rows, widen those found, and return them; nodes stand before the Gather.

        Constants of the table are integers of shape [rows, blocks, bytes], steps, zero points.
        """
        spec, blocks = self._packed.spec, self._packed.scale.shape[1]
        found = self._wide(parts[0], (blocks, spec.block))
        if len(parts) > 2:
            zero = self._wide(parts[2], (-1,))
            if spec.bits == 4 and blocks % 2:
                zero = self._cut(zero, blocks)
            middle = self._last(zero)
        else:
            middle = self._number("middle", spec.middle)
        scale = self._last(self._node("Gather", [parts[1], self._table.indices], {"axis": 0}))
        centred = self._node("Sub", [found, middle])
        scaled = self._node("Mul", [centred, scale])
        flat = self._reshape(scaled, (blocks * spec.block,))
        short = blocks * spec.block != self._packed.width
        return self._cut(flat, self._packed.width) if short else flat

    def _wide(self, stored: ir.Value, shape: tuple[int, ...]) -> ir.Value:
        """Gather bytes and make floats of the integers in them, indices first in the shape."""
        some = self._node("Gather", [stored, self._table.indices], {"axis": 0})
        wide = self._node("Cast", [some], {"to": int(self._dtype)})
        if self._packed.spec.bits == 8:
            return wide
        # Whole floats below 256: dividing by 16 is exact, and Floor has kernels everywhere.
        sixteenth, sixteen = self._number("sixteenth", 1 / 16), self._number("sixteen", 16)
        high = self._node("Floor", [self._node("Mul", [wide, sixteenth])])
        low = self._node("Sub", [wide, self._node("Mul", [high, sixteen])])
        both = self._node("Concat", [self._last(low), self._last(high)], {"axis": -1})
        return self._reshape(both, shape)

    def _reshape(self, value: ir.Value, tail: tuple[int, ...]) -> ir.Value:
        shape = np.array([*[0] * self._table.rank, *tail], np.int64)
        return self._node("Reshape", [value, self._editor.constant("shape", shape)])

    def _cut(self, value: ir.Value, size: int) -> ir.Value:
        ends = [self._editor.constant("cut", np.array([n], np.int64)) for n in (0, size, -1)]
        return self._node("Slice", [value, *ends])

    def _last(self, value: ir.Value) -> ir.Value:
        axis = self._editor.constant("axis", np.array([-1], np.int64))
        return self._node("Unsqueeze", [value, axis])

    def _number(self, name: str, number: float) -> ir.Value:
        return self._editor.constant(name, np.asarray(number, self._dtype.numpy()))

    def _node(
        self, op: str, inputs: Sequence[ir.Value], attributes: dict[str, Any] | None = None
    ) -> ir.Value:
        node = self._table.node
        made = self._editor.node(op, inputs, attributes, name=f"{node.name}_{op}")
        edit.insert_before(node, made)
        return made.outputs[0]


class Writer:
    """Replaces nodes by others that read packed weights, and drops what nothing reads any more.

    ``nbits``: MatMulNBits and GatherBlockQuantized. Where both read one table, their layouts
    differ (the one wants blocks on an axis of their own, the other steps of the integers' rank),
    so the look-up is made of standard operators. ``qdq``: block-wise DequantizeLinear in front
    of the product, which onnxruntime fuses only if the weight is stored as [inputs, outputs];
    look-ups are of standard operators, so a table that is also multiplied is stored twice.
    """

    def __init__(self, model: ir.Model, level: int, *, standard: bool) -> None:
        self._model, self._standard, self._level = model, standard, level
        self._editor = edit.Editor(model.graph)

    def write(
        self,
        packed: Packed,
        rows: Rows,
        products: Sequence[Product],
        tables: Sequence[TableLookup],
    ) -> None:
        """Let all readers of a weight read its packed form."""
        stem = str(rows.base.name)
        foreign = not self._standard
        if products and not foreign:
            self._dequantized(packed, stem, products)
        fused = foreign and not products and packed.width % packed.spec.block == 0
        if tables or foreign:
            parts = self._store(packed, stem, flat=fused)
        for product in products if foreign else ():
            node = product.node
            bias, rest = self._bias(product, len(packed.integers))
            inputs: list[ir.Value | None] = [product.x, *parts]
            if bias is not None:
                inputs += [None] * (5 - len(inputs)) + [bias]
            sizes = {"K": packed.width, "N": len(packed.integers), "accuracy_level": self._level}
            self._finish(node, self._kernel("MatMulNBits", node, inputs, packed, sizes), rest)
        for table in tables:
            if fused:
                self._gather(table, packed, parts)
            else:
                found = _Chain(self._editor, table, packed).build(parts)
                stand_in(table.node.outputs[0], found)
        if products and tables and not foreign:
            edit.note(self._model, f"'{stem}' is stored twice: looked up and multiplied")
        if foreign and (products or fused):
            self._model.opset_imports.setdefault(MICROSOFT, 1)

    def _store(self, packed: Packed, stem: str, *, flat: bool) -> list[ir.Value]:
        """Add integers, steps and zero points as constants; without those when symmetric."""
        integers = packed.integers
        if flat:
            integers = integers.reshape(len(integers), -1)
        parts = [
            self._editor.constant(f"{stem}_int{packed.spec.bits}", integers),
            self._editor.constant(f"{stem}_scale", packed.scale),
        ]
        if packed.zero is not None:
            parts.append(self._editor.constant(f"{stem}_zero", packed.zero))
        return parts

    def _kernel(
        self,
        op: str,
        node: ir.Node,
        inputs: Sequence[ir.Value | None],
        packed: Packed,
        attributes: Mapping[str, int],
    ) -> ir.Node:
        spec = packed.spec
        every = {**attributes, "bits": spec.bits, "block_size": spec.block}
        name = f"{node.name}_int{spec.bits}"
        return self._editor.node(op, inputs, every, name=name, domain=MICROSOFT)

    def _finish(self, node: ir.Node, made: ir.Node, rest: ir.Value | None) -> None:
        """Put a product in the place of another, adding what its kernel does not."""
        edit.insert_before(node, made)
        if rest is not None:
            made.outputs[0].type = node.outputs[0].type
            made = self._editor.node("Add", [made.outputs[0], rest], name=f"{node.name}_bias")
            edit.insert_before(node, made)
        stand_in(node.outputs[0], made.outputs[0])

    def _bias(self, product: Product, count: int) -> tuple[ir.Value | None, ir.Value | None]:
        """Return what the kernel adds, one number an output, or else what an Add must."""
        node = product.node
        bias, beta = given(node, 2), float(edit.attribute(node, "beta", 1.0))
        if bias is None or beta == 0.0:
            return None, None
        array = edit.const_array(bias)
        if (
            array is not None
            and array.size in (1, count)
            and array.shape[-1:] in ((), (1,), (count,))
        ):
            if beta == 1.0 and array.shape == (count,):
                return bias, None
            flat = np.broadcast_to(array.reshape(-1) * np.asarray(beta, array.dtype), (count,))
            name = f"{bias.name}_flat"
            return self._editor.constant(name, np.array(flat, array.dtype)), None
        if beta == 1.0:
            return None, bias
        dtype = product.rows.dtype.numpy()
        factor = self._editor.constant(f"{bias.name}_beta", np.asarray(beta, dtype))
        times = self._editor.node("Mul", [bias, factor], name=f"{node.name}_beta")
        edit.insert_before(node, times)
        times.outputs[0].type = node.outputs[0].type
        return None, times.outputs[0]

    def _gather(self, table: TableLookup, packed: Packed, parts: Sequence[ir.Value]) -> None:
        node = table.node
        inputs, axes = (
            [parts[0], table.indices, *parts[1:]],
            {"gather_axis": 0, "quantize_axis": 1},
        )
        made = self._kernel("GatherBlockQuantized", node, inputs, packed, axes)
        edit.insert_before(node, made)
        stand_in(node.outputs[0], made.outputs[0])

    def _dequantized(self, packed: Packed, stem: str, products: Sequence[Product]) -> None:
        """Put a DequantizeLinear before each product: a shared one would not be fused."""
        held = [self._tensor(f"{stem}_int{packed.spec.bits}", _columns(packed), packed)]
        held.append(self._editor.constant(f"{stem}_scale", np.ascontiguousarray(packed.scale.T)))
        if packed.zero is not None:
            zeros = np.ascontiguousarray(packed.zeros().T)
            flat = pack(zeros.reshape(-1), packed.spec.bits)
            held.append(self._tensor(f"{stem}_zero", (flat, zeros.shape), packed))
        for product in products:
            node = product.node
            self._move_beside(node, held)
            made = self._editor.node(
                "DequantizeLinear",
                held,
                {"axis": 0, "block_size": packed.spec.block},
                name=f"{node.name}_dq",
            )
            wide = made.outputs[0]
            wide.type = ir.TensorType(product.rows.dtype)
            wide.shape = ir.Shape((packed.width, len(packed.integers)))
            edit.insert_before(node, made)
            # onnxruntime fuses a Gemm only without factors and with one bias an output.
            bias, rest = self._bias(product, len(packed.integers))
            inputs = [product.x, wide] if bias is None else [product.x, wide, bias]
            plain = self._editor.node(node.op_type, inputs, name=f"{node.name}_wide")
            self._finish(node, plain, rest)

    def _move_beside(self, node: ir.Node, held: Sequence[ir.Value]) -> None:
        """Keep a body's weights in the body: onnxruntime looks for what it fuses there alone."""
        home, main = node.graph, self._model.graph
        if not isinstance(home, ir.Graph) or home is main:
            return
        for value in held:
            if value.graph is main:
                main.initializers.pop(str(value.name))
                home.register_initializer(value)

    def _tensor(
        self, stem: str, content: tuple[np.ndarray[Any, Any], tuple[int, ...]], packed: Packed
    ) -> ir.Value:
        """Add a constant of unsigned integers, or of signed ones where the grid is symmetric."""
        array, shape = content
        symmetric = packed.zero is None
        if packed.spec.bits == 8:
            whole = array.reshape(shape)
            return self._editor.constant(stem, (whole ^ 128).view(np.int8) if symmetric else whole)
        dtype = ir.DataType.INT4 if symmetric else ir.DataType.UINT4
        name = self._editor.fresh(stem)
        # The sign bit of a nibble: 0..15 around 8 becomes -8..7 around 0.
        nibbles = array ^ np.uint8(0x88) if symmetric else array
        value = ir.val(name, const_value=ir.PackedTensor(nibbles, dtype, shape=shape, name=name))
        self._model.graph.register_initializer(value)
        return value


def _columns(packed: Packed) -> tuple[np.ndarray[Any, Any], tuple[int, ...]]:
    """Return the integers as [inputs, outputs], packed along the outputs; the width is whole."""
    spec, count = packed.spec, len(packed.integers)
    shape = (packed.width, count)
    if count * spec.bits % 8:
        whole = unpack(packed.integers, spec.bits).reshape(count, -1).T
        return pack(np.ascontiguousarray(whole).reshape(-1), spec.bits), shape
    out = np.empty((packed.width, count * spec.bits // 8), np.uint8)
    step = max(1, SLAB // (count * spec.block))
    for start in range(0, packed.integers.shape[1], step):
        some = unpack(packed.integers[:, start : start + step], spec.bits).reshape(count, -1).T
        first = start * spec.block
        out[first : first + len(some)] = pack(some, spec.bits)
    return out.reshape(-1), shape
