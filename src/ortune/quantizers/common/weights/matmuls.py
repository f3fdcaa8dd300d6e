"""Weights that can be cut into blocks: of matrix products, and tables that are looked up.

What is passed over is counted with its reason, so that a step with nothing to do says why.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortune.core import wording
from ortune.graph.ir import edit
from ortune.quantizers.common.layers import has_bounded_values

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
    rank = _find_rank(node, indices)
    return UNKNOWN_RANK if rank is None else TableLookup(node, Rows(base, turned=False), rank)


def _find_rank(node: ir.Node, indices: ir.Value) -> int | None:
    if indices.shape is not None:
        return len(indices.shape)
    shape = node.outputs[0].shape
    return None if shape is None else len(shape) - 1


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
