"""Weights that can be cut into blocks, and how packed ones are written into a model.

What is passed over is counted with its reason, so that a step with nothing to do says why.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortune.core import wording
from ortune.graph.ir import edit, qdq
from ortune.quantizers.common.grid import SLAB, PackedWeight, pack_integers, unpack_integers
from ortune.quantizers.common.layers import has_bounded_values
from ortune.quantizers.common.nodes import replace_value

UNKNOWN_RANK = "Gather with indices of unknown rank"
FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16)


@dataclass(frozen=True)
class Rows:
    """A constant seen as rows that blocks are cut along; equal for all that read it so."""

    base: ir.Value  # the constant, shape [rows, width], or the other way round where `turned`
    turned: bool  # rows are the columns of `base`
    factor: float = 1.0  # all weights are multiplied by it (Gemm's alpha)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and width."""
        tensor = edit.const_tensor(self.base)
        assert tensor is not None
        first, second = (int(size) for size in tensor.shape.numpy())
        return (second, first) if self.turned else (first, second)

    @property
    def dtype(self) -> ir.DataType:
        """Data type of the weight, float32 or float16."""
        tensor = edit.const_tensor(self.base)
        assert tensor is not None
        return tensor.dtype

    def read_slabs(self, elements: int) -> Iterator[tuple[slice, NDArray[np.float32]]]:
        """Yield float32 copies of some rows at a time."""
        whole = edit.const_array(self.base)
        assert whole is not None
        count, width = self.shape
        step = max(1, elements // width)
        for start in range(0, count, step):
            part = slice(start, min(start + step, count))
            rows = whole[:, part].T if self.turned else whole[part]
            copy = np.array(rows, np.float32, order="C")
            yield part, copy if self.factor == 1.0 else copy * np.float32(self.factor)


@dataclass(frozen=True, eq=False)
class Product:
    """A MatMul or Gemm with a constant right side: the weight has one row an output channel.

    Inputs are read off the node: what makes them may have been replaced meanwhile.
    """

    node: ir.Node
    rows: Rows

    @property
    def x(self) -> ir.Value:
        """What is multiplied."""
        x = self.node.inputs[0]
        assert x is not None
        return x


@dataclass(frozen=True, eq=False)
class TableLookup:
    """A Gather along the first axis of a constant table."""

    node: ir.Node
    rows: Rows
    rank: int

    @property
    def indices(self) -> ir.Value:
        """Indices of the entries that are read."""
        indices = self.node.inputs[1]
        assert indices is not None
        return indices


@dataclass
class BlockableWeights:
    """What a model holds, and why how many nodes were passed over."""

    products: list[Product] = field(default_factory=list)
    tables: list[TableLookup] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)

    def describe_skipped(self) -> str:
        """Return the reasons with their counts, most frequent first."""
        return ", ".join(f"{count} {reason}" for reason, count in self.skipped.most_common())


def find_blockable_weights(
    model: ir.Model,
    ops: Collection[str],
    *,
    min_size: int,
    whole: int = 1,
    among: Collection[ir.Node],
) -> BlockableWeights:
    """List the weights of the main graph and of all bodies.

    Args:
        model: Local functions are not looked into.
        min_size: Weights with fewer elements are passed over.
        whole: A product's inputs must be a multiple of it.
    """
    weights = BlockableWeights()
    for node in [n for graph in (model.graph, *model.graph.subgraphs()) for n in graph]:
        if node.domain or node.op_type not in ops:
            continue
        if node not in among:
            weights.skipped[f"{node.op_type} left out by name"] += 1
            continue
        result = _read_table(node) if node.op_type == "Gather" else _read_product(node)
        if isinstance(result, str):
            weights.skipped.update([result] if result else [])
            continue
        count, width = result.rows.shape
        if count * width < min_size:
            small = wording.format_count(min_size, "element")
            weights.skipped[f"{node.op_type} with a weight under {small}"] += 1
        elif isinstance(result, TableLookup):
            weights.tables.append(result)
        elif width % whole:
            weights.skipped[f"{node.op_type} whose input is not a multiple of block={whole}"] += 1
        else:
            weights.products.append(result)
    return weights


def _read_product(node: ir.Node) -> Product | str:
    """Read a node; a text says why it is none."""
    op = node.op_type
    x, weight = [*node.inputs, None, None][:2]
    if x is None or weight is None:
        return f"{op} without two inputs"
    base, swapped = trace_constant(weight)
    tensor = edit.const_tensor(base)
    if tensor is None:
        if edit.const_tensor(trace_constant(x)[0]) is not None:
            return f"{op} with the weight on the left"
        return f"{op} of two activations"
    if reason := _find_unfit_reason(base, tensor, op):
        return reason
    if op == "MatMul":
        if x.shape is not None and len(x.shape) < 2:
            return "MatMul of a vector"
        return Product(node, Rows(base, turned=not swapped))
    if edit.read_attribute(node, "transA", 0):
        return "Gemm with transA"
    turned = bool(edit.read_attribute(node, "transB", 0)) == swapped
    return Product(node, Rows(base, turned, float(edit.read_attribute(node, "alpha", 1.0))))


def _read_table(node: ir.Node) -> TableLookup | str:
    """Read a Gather; an empty text is none worth a word: shapes are looked up all the time."""
    data, indices = node.inputs[:2]
    if data is None or indices is None:
        return ""
    base, swapped = trace_constant(data)
    tensor = edit.const_tensor(base)
    if tensor is None or tensor.dtype not in FLOATS:
        return ""
    if reason := _find_unfit_reason(base, tensor, "Gather"):
        return reason
    if swapped or edit.read_attribute(node, "axis", 0) not in (0, -2):
        return "Gather of columns"
    shape = node.outputs[0].shape
    rank = None if shape is None else len(shape) - 1
    if indices.shape is not None:
        rank = len(indices.shape)
    return UNKNOWN_RANK if rank is None else TableLookup(node, Rows(base, turned=False), rank)


def _find_unfit_reason(base: ir.Value, tensor: ir.TensorProtocol, op: str) -> str:
    if tensor.dtype not in FLOATS:
        return f"{op} with {tensor.dtype.name.lower()} weights"
    if len(tensor.shape) != 2:
        return f"{op} with a constant of {wording.format_count(len(tensor.shape), 'dimension')}"
    if not has_bounded_values(base):
        return f"{op} with infinity or NaN in the weight"
    return f"{op} with an empty weight" if 0 in tensor.shape.numpy() else ""


def trace_constant(value: ir.Value) -> tuple[ir.Value, bool]:
    """Follow Identity and Transpose of two axes to a stored constant; say if it is turned."""
    swapped = False
    while (node := value.producer()) is not None and not node.domain:
        source = node.inputs[0] if node.inputs else None
        if source is None:
            break
        if node.op_type == "Transpose":
            perm: Any = edit.read_attribute(node, "perm", (1, 0))
            if tuple(perm) != (1, 0):
                break
            swapped = not swapped
        elif node.op_type != "Identity":
            break
        value = source
    return value, swapped


class _LookupChain:
    """Looks packed rows up with standard operators, which every runtime has."""

    def __init__(self, editor: edit.Editor, table: TableLookup, packed: PackedWeight) -> None:
        self._editor, self._table, self._packed = editor, table, packed
        self._dtype = table.rows.dtype

    def build_lookup(self, parts: Sequence[ir.Value]) -> ir.Value:
        """Gather packed rows, widen those found, and return them; nodes stand before the Gather.

        Constants of the table are integers of shape [rows, blocks, bytes], steps, zero points.
        """
        spec, blocks = self._packed.spec, self._packed.scale.shape[1]
        values = self._gather_floats(parts[0], (blocks, spec.block))
        if len(parts) > 2:
            zero = self._gather_floats(parts[2], (-1,))
            if spec.bits == 4 and blocks % 2:
                zero = self._add_slice(zero, blocks)
            middle = self._add_last_axis(zero)
        else:
            middle = self._add_number("middle", spec.middle)
        steps = self._insert_node("Gather", [parts[1], self._table.indices], {"axis": 0})
        scale = self._add_last_axis(steps)
        centred = self._insert_node("Sub", [values, middle])
        scaled = self._insert_node("Mul", [centred, scale])
        flat = self._add_reshape(scaled, (blocks * spec.block,))
        short = blocks * spec.block != self._packed.width
        return self._add_slice(flat, self._packed.width) if short else flat

    def _gather_floats(self, stored: ir.Value, shape: tuple[int, ...]) -> ir.Value:
        """Gather bytes and make floats of the integers in them, indices first in the shape."""
        row_bytes = self._insert_node("Gather", [stored, self._table.indices], {"axis": 0})
        wide = self._insert_node("Cast", [row_bytes], {"to": int(self._dtype)})
        if self._packed.spec.bits == 8:
            return wide
        # Whole floats below 256: dividing by 16 is exact, and Floor has kernels everywhere.
        sixteenth, sixteen = self._add_number("sixteenth", 1 / 16), self._add_number("sixteen", 16)
        high = self._insert_node("Floor", [self._insert_node("Mul", [wide, sixteenth])])
        low = self._insert_node("Sub", [wide, self._insert_node("Mul", [high, sixteen])])
        halves = [self._add_last_axis(low), self._add_last_axis(high)]
        both = self._insert_node("Concat", halves, {"axis": -1})
        return self._add_reshape(both, shape)

    def _add_reshape(self, value: ir.Value, tail: tuple[int, ...]) -> ir.Value:
        shape = np.array([*[0] * self._table.rank, *tail], np.int64)
        return self._insert_node("Reshape", [value, self._editor.add_constant("shape", shape)])

    def _add_slice(self, value: ir.Value, size: int) -> ir.Value:
        ends = [self._editor.add_constant("cut", np.array([n], np.int64)) for n in (0, size, -1)]
        return self._insert_node("Slice", [value, *ends])

    def _add_last_axis(self, value: ir.Value) -> ir.Value:
        axis = self._editor.add_constant("axis", np.array([-1], np.int64))
        return self._insert_node("Unsqueeze", [value, axis])

    def _add_number(self, name: str, number: float) -> ir.Value:
        return self._editor.add_constant(name, np.asarray(number, self._dtype.numpy()))

    def _insert_node(
        self, op: str, inputs: Sequence[ir.Value], attributes: dict[str, Any] | None = None
    ) -> ir.Value:
        node = self._table.node
        return self._editor.add_node(node, op, inputs, attributes, name=f"{node.name}_{op}")


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

    def write_weight(
        self,
        packed: PackedWeight,
        rows: Rows,
        products: Sequence[Product],
        tables: Sequence[TableLookup],
    ) -> None:
        """Let all readers of a weight read its packed form."""
        stem = str(rows.base.name)
        foreign = not self._standard
        if products and not foreign:
            self._write_dequantize(packed, stem, products)
        fused = foreign and not products and packed.width % packed.spec.block == 0
        if tables or foreign:
            integers = packed.integers
            if fused:
                integers = integers.reshape(len(integers), -1)
            parts = [
                self._editor.add_constant(f"{stem}_int{packed.spec.bits}", integers),
                self._editor.add_constant(f"{stem}_scale", packed.scale),
            ]
            if packed.zero is not None:
                parts.append(self._editor.add_constant(f"{stem}_zero", packed.zero))
        for product in products if foreign else ():
            node = product.node
            bias, remaining_bias = self._split_bias(product, len(packed.integers))
            inputs: list[ir.Value | None] = [product.x, *parts]
            if bias is not None:
                inputs += [None] * (5 - len(inputs)) + [bias]
            sizes = {"K": packed.width, "N": len(packed.integers), "accuracy_level": self._level}
            self._replace_product(
                node, self._make_kernel("MatMulNBits", node, inputs, packed, sizes), remaining_bias
            )
        for table in tables:
            if fused:
                node = table.node
                inputs = [parts[0], table.indices, *parts[1:]]
                axes = {"gather_axis": 0, "quantize_axis": 1}
                kernel = self._make_kernel("GatherBlockQuantized", node, inputs, packed, axes)
                edit.insert_before(node, kernel)
                replace_value(node.outputs[0], kernel.outputs[0])
            else:
                lookup = _LookupChain(self._editor, table, packed).build_lookup(parts)
                replace_value(table.node.outputs[0], lookup)
        if products and tables and not foreign:
            edit.add_note(self._model, f"'{stem}' is stored twice: looked up and multiplied")
        if foreign and (products or fused):
            self._model.opset_imports.setdefault(qdq.MICROSOFT, 1)

    def _make_kernel(
        self,
        op: str,
        node: ir.Node,
        inputs: Sequence[ir.Value | None],
        packed: PackedWeight,
        attributes: Mapping[str, int],
    ) -> ir.Node:
        spec = packed.spec
        all_attributes = {**attributes, "bits": spec.bits, "block_size": spec.block}
        name = f"{node.name}_int{spec.bits}"
        return self._editor.make_node(op, inputs, all_attributes, name=name, domain=qdq.MICROSOFT)

    def _replace_product(
        self, node: ir.Node, replacement: ir.Node, remaining_bias: ir.Value | None
    ) -> None:
        """Put a product in the place of another, adding what its kernel does not."""
        edit.insert_before(node, replacement)
        result = replacement.outputs[0]
        if remaining_bias is not None:
            result.type = node.outputs[0].type
            inputs = [result, remaining_bias]
            result = self._editor.add_node(node, "Add", inputs, name=f"{node.name}_bias")
        replace_value(node.outputs[0], result)

    def _split_bias(self, product: Product, count: int) -> tuple[ir.Value | None, ir.Value | None]:
        """Return what the kernel adds, one number an output, or else what an Add must."""
        node = product.node
        bias, beta = qdq.find_input(node, 2), float(edit.read_attribute(node, "beta", 1.0))
        if bias is None or beta == 0.0:
            return None, None
        array = edit.const_array(bias)
        fits = array is not None and array.size in (1, count)
        if array is not None and fits and array.shape[-1:] in ((), (1,), (count,)):
            if beta == 1.0 and array.shape == (count,):
                return bias, None
            flat = np.broadcast_to(array.reshape(-1) * np.asarray(beta, array.dtype), (count,))
            name = f"{bias.name}_flat"
            return self._editor.add_constant(name, np.array(flat, array.dtype)), None
        if beta == 1.0:
            return None, bias
        dtype = product.rows.dtype.numpy()
        factor = self._editor.add_constant(f"{bias.name}_beta", np.asarray(beta, dtype))
        name, out = f"{node.name}_beta", node.outputs[0].dtype
        return None, self._editor.add_node(node, "Mul", [bias, factor], name=name, dtype=out)

    def _write_dequantize(
        self, packed: PackedWeight, stem: str, products: Sequence[Product]
    ) -> None:
        """Put a DequantizeLinear before each product: a shared one would not be fused."""
        steps = np.ascontiguousarray(packed.scale.T)
        constants = [
            self._add_integers(f"{stem}_int{packed.spec.bits}", _pack_columns(packed), packed),
            self._editor.add_constant(f"{stem}_scale", steps),
        ]
        if packed.zero is not None:
            zeros = np.ascontiguousarray(packed.unpack_zero_points().T)
            flat = pack_integers(zeros.reshape(-1), packed.spec.bits)
            constants.append(self._add_integers(f"{stem}_zero", (flat, zeros.shape), packed))
        main = self._model.graph
        for product in products:
            node, home = product.node, product.node.graph
            if isinstance(home, ir.Graph) and home is not main:
                # onnxruntime looks for what it fuses in the body of the product alone.
                for value in [value for value in constants if value.graph is main]:
                    main.initializers.pop(str(value.name))
                    home.register_initializer(value)
            attributes = {"axis": 0, "block_size": packed.spec.block}
            name, dtype = f"{node.name}_dq", product.rows.dtype
            wide = self._editor.add_node(
                node, "DequantizeLinear", constants, attributes, name=name, dtype=dtype
            )
            wide.shape = ir.Shape((packed.width, len(packed.integers)))
            # onnxruntime fuses a Gemm only without factors and with one bias an output.
            bias, remaining_bias = self._split_bias(product, len(packed.integers))
            inputs = [product.x, wide] if bias is None else [product.x, wide, bias]
            plain = self._editor.make_node(node.op_type, inputs, name=f"{node.name}_wide")
            self._replace_product(node, plain, remaining_bias)

    def _add_integers(
        self,
        stem: str,
        content: tuple[np.ndarray[Any, Any], tuple[int, ...]],
        packed: PackedWeight,
    ) -> ir.Value:
        """Add a constant of unsigned integers, or of signed ones where the grid is symmetric."""
        array, shape = content
        symmetric = packed.zero is None
        if packed.spec.bits == 8:
            whole = array.reshape(shape)
            whole = (whole ^ 128).view(np.int8) if symmetric else whole
            return self._editor.add_constant(stem, whole)
        dtype = ir.DataType.INT4 if symmetric else ir.DataType.UINT4
        name = self._editor.reserve_name(stem)
        # The sign bit of a nibble: 0..15 around 8 becomes -8..7 around 0.
        nibbles = array ^ np.uint8(0x88) if symmetric else array
        value = ir.val(name, const_value=ir.PackedTensor(nibbles, dtype, shape=shape, name=name))
        self._model.graph.register_initializer(value)
        return value


def _pack_columns(packed: PackedWeight) -> tuple[np.ndarray[Any, Any], tuple[int, ...]]:
    """Return the integers as [inputs, outputs], packed along the outputs; the width is whole."""
    spec, count = packed.spec, len(packed.integers)
    shape = (packed.width, count)
    if count * spec.bits % 8:
        whole = unpack_integers(packed.integers, spec.bits).reshape(count, -1).T
        return pack_integers(np.ascontiguousarray(whole).reshape(-1), spec.bits), shape
    out = np.empty((packed.width, count * spec.bits // 8), np.uint8)
    step = max(1, SLAB // (count * spec.block))
    for start in range(0, packed.integers.shape[1], step):
        blocks = packed.integers[:, start : start + step]
        slab = unpack_integers(blocks, spec.bits).reshape(count, -1).T
        first = start * spec.block
        out[first : first + len(slab)] = pack_integers(slab, spec.bits)
    return out.reshape(-1), shape
