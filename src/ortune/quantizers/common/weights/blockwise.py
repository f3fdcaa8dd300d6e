"""Weight-only quantization in blocks: from settings to packed tensors.

Rounding: GPTQ, which needs data, and HQQ, which does not.

GPTQ (Frantar et al., 2022): columns are rounded one after the other, and the error of each is
spread over those still to come by the inverse of the inputs' second moment, in its Cholesky form.
Grids are found beforehand, so that columns may come in any order while blocks stay where they are.

HQQ (Badri & Shaji, 2023): the rounding error is split into a sparse part, found by shrinking with
an l_p norm (p < 1), and a rest that a better grid removes. The zero point is solved as in the
paper, rounded because kernels store integers; the step, which the paper keeps, has the same kind
of solution. Either only finds the nearest optimum, so blocks start from several steps, and of
every block the grid of least squared error is kept: none gets worse than by rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
import onnx_ir as ir

from ortune.core import wording
from ortune.core.errors import BadData, BadSettings
from ortune.core.observer import Observer, Probe, Ranges
from ortune.core.plugins import catalog
from ortune.core.step import Quantizer
from ortune.graph.ir import edit
from ortune.graph.shapes.infer import infer_shapes
from ortune.quantizers.common.grid import (
    SLAB,
    Array,
    Bits,
    BlockSpec,
    BlockSteps,
    PackedWeight,
    compute_block_steps,
    pack_integers,
    round_steps,
    split_into_blocks,
)
from ortune.quantizers.common.layers import flatten_model, is_last, refuse_without_layers
from ortune.quantizers.common.nodes import select_nodes
from ortune.quantizers.common.weights import write
from ortune.transforms.common.raise_version import raise_to

Method: TypeAlias = Literal["rtn", "hqq", "gptq"]

BLOCK_OPSET = 21
"""DequantizeLinear has blocks and 4-bit types from here on."""

PACKED = ("com.microsoft::MatMulNBits", "com.microsoft::MatMulBnb4")
"""In a model that arrived with weights in blocks."""


@dataclass(frozen=True)
class BlockWeights(Quantizer):
    """Weights of few bits, one step for every block of a row; activations stay float.

    Attributes:
        ops: Operators whose weights are stored.
        min_size: Weights with fewer elements stay in float.
        form: ``nbits``: MatMulNBits and GatherBlockQuantized, onnxruntime's operators; OpenVINO
            reads them too. ``qdq``: block-wise DequantizeLinear of opset 21, standard, which
            onnxruntime turns into MatMulNBits when it loads the file.
        block: Weights that share a step: 16, 32, 64, 128 or 256. Smaller is more exact and
            larger: with 4 bits, 5 bits a weight at 32 and 4.25 at 128.
        symmetric: Zero points in the middle, not stored.
        method: How weights are rounded. ``rtn``: each to the nearest. ``hqq``: on grids that are
            refined first, without data. ``gptq``: on these grids, later weights making up for the
            errors of earlier ones; needs calibration data.
        accuracy_level: What onnxruntime may round activations to inside a MatMulNBits: 0 and 1
            float32, 4 int8, which is faster. For ``qdq`` the session key
            ``session.qdq_matmulnbits_accuracy_level`` says it, 4 unless set.
        head: Store the last product too. Off leaves it to a step behind, such as int8-dynamic: the
            product that names the next token is large, and costs most accuracy.
        include: Names of nodes to look at; * and ? match, re: begins a regular expression. Empty
            looks at all.
        exclude: Names of nodes to leave in float.
        damping: For ``gptq``: share of the mean second moment that is added to all inputs'.
        act_order: For ``gptq``: the weights of large inputs are rounded first.
    """

    needs_opset: ClassVar[int] = 13
    bits: ClassVar[Bits]

    ops: tuple[str, ...] = ("MatMul", "Gemm", "Gather")
    min_size: int = 1024
    form: str = "nbits"
    block: int = 32
    symmetric: bool = True
    method: Method = "hqq"
    accuracy_level: int = 4
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    damping: float = 0.01
    act_order: bool = True
    head: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.accuracy_level <= 4:
            raise BadSettings(
                f"accuracy_level={self.accuracy_level} is not 0 to 4",
                fix="use 0 for float32 products or 4 for int8 ones",
            )
        if self.damping <= 0:
            raise BadSettings(f"damping={self.damping} is not positive", fix="0.01 is usual")
        _ = self.spec

    @property
    def spec(self) -> BlockSpec:
        """The kind of grid."""
        return BlockSpec(self.bits, self.block, self.symmetric)

    @property
    def calibrates(self) -> bool:
        return self.method == "gptq"

    def probes(self, model: ir.Model) -> Sequence[Probe]:
        """Return the inputs of the products, for ``gptq``."""
        if not self.calibrates:
            return []
        flatten_model(model)
        observer = catalog.load_plugin(Observer, "moments")()
        products = self._find_weights(model).products
        names = dict.fromkeys(str(product.x.name) for product in products)
        return [Probe(name, observer) for name in names]

    def apply(self, model: ir.Model, ranges: Ranges) -> int:
        flatten_model(model)
        weights = self._find_weights(model)
        if write.UNKNOWN_RANK in weights.skipped and infer_shapes(model):
            weights = self._find_weights(model)
        if not weights.products and not weights.tables:
            reason = weights.describe_skipped()
            reason = reason or f"no {', '.join(self.blockable_ops or self.ops)} reads one"
            convolutions = sum("Conv" in node.op_type for node in edit.walk_nodes(model))
            if convolutions:
                counted = wording.format_count(convolutions, "convolution")
                reason += f"; no kernel for weights in blocks: {counted}"
            refuse_without_layers(
                model,
                f"no weight to store in {wording.format_count(self.spec.bits, 'bit')}: {reason}",
            )
        standard = self.form == "qdq"
        if standard and model.opset_imports.get("", 0) < BLOCK_OPSET:
            raise_to(model, BLOCK_OPSET)
            weights = self._find_weights(model)
        writer = write.Writer(model, self.accuracy_level, standard=standard)
        groups = _group_by_weight(weights)
        if standard:  # a weight of its own for every product: onnxruntime 1.31.1 fuses one reader
            groups = [
                (rows, products[at : at + 1], [] if at else tables)
                for rows, products, tables in groups
                for at in range(max(1, len(products)))
            ]
        orders = _Orders(ranges, self.damping, self.act_order)
        for rows, products, tables in groups:
            order = orders.find_order(products) if self.method == "gptq" else None
            if order is None and products and self.method == "gptq":
                edit.add_note(
                    model, f"no sample reaches '{products[0].node.name}': rounded by hqq"
                )
            packed = pack_rows(rows, self.spec, self.method, order)
            writer.write_weight(packed, rows, products, tables)
        if weights.skipped:
            edit.add_note(model, f"left in float: {weights.describe_skipped()}")
        return len(groups)

    @property
    def blockable_ops(self) -> tuple[str, ...]:
        """Those of `ops` whose weights may be stored in blocks."""
        return tuple(op for op in self.ops if op in ("MatMul", "Gemm", "Gather"))

    def _find_weights(self, model: ir.Model) -> write.BlockableWeights:
        weights = write.find_blockable_weights(
            model,
            self.blockable_ops,
            min_size=self.min_size,
            whole=self.spec.block if self.form == "qdq" else 1,
            among=select_nodes(model, self.include, self.exclude),
        )
        if not self.head:
            nodes = {product.node for product in weights.products}
            kept = [product for product in weights.products if not is_last(product.node, nodes)]
            weights.skipped["last product"] += len(weights.products) - len(kept)
            weights.products = kept
        return weights


def pack_rows(
    rows: write.Rows, spec: BlockSpec, method: Method, order: Order | None = None
) -> PackedWeight:
    """Round and pack one weight, some rows at a time.

    Without an order `gptq` rounds as `hqq`: tables that are only looked up have none.
    """
    dtype = rows.dtype.numpy()
    count, width = rows.shape
    blocks = spec.count_blocks(width)
    integers = np.empty((count, blocks, spec.block * spec.bits // 8), np.uint8)
    scale = np.empty((count, blocks), dtype)
    zero = None if spec.symmetric else np.empty((count, -(-blocks * spec.bits // 8)), np.uint8)
    for part, slab in rows.read_slabs(SLAB):
        folded = split_into_blocks(slab, spec)
        steps = compute_block_steps(folded, spec, dtype)
        if method != "rtn":
            steps = refine_steps(folded, steps, spec, dtype)
        if order is None:
            whole = steps.quantize_blocks(folded, spec)
        else:
            whole = round_rows(slab, steps, order, spec)
        integers[part], scale[part] = pack_integers(whole, spec.bits), steps.scale
        if zero is not None:
            zero[part] = pack_integers(steps.zero, spec.bits)
    return PackedWeight(spec, width, integers, scale, zero)


Group: TypeAlias = tuple[write.Rows, list[write.Product], list[write.TableLookup]]
"""A weight with the nodes that read it."""


def _group_by_weight(weights: write.BlockableWeights) -> list[Group]:
    """Return who reads each weight: what several read is packed once."""
    groups: dict[write.Rows, Group] = {}
    for product in weights.products:
        groups.setdefault(product.rows, (product.rows, [], []))[1].append(product)
    for table in weights.tables:
        groups.setdefault(table.rows, (table.rows, [], []))[2].append(table)
    return list(groups.values())


class _Orders:
    """Finds the order of a weight's columns; layers that read one tensor share it."""

    def __init__(self, ranges: Ranges, damping: float, act_order: bool) -> None:
        self._ranges, self._damping, self._act_order = ranges, damping, act_order
        self._last: tuple[tuple[str, ...], Order | None] = ((), None)

    def find_order(self, products: Sequence[write.Product]) -> Order | None:
        """Return it from the moments over the inputs of all products that share the weight.

        None where there is nothing to go by: a table that is only looked up, or layers in
        branches that no sample takes.
        """
        names = tuple(dict.fromkeys(str(product.x.name) for product in products))
        if self._last[0] == names:
            return self._last[1]
        if names and not self._ranges:
            raise BadData(
                f"the values of '{names[0]}' were not observed",
                fix="give samples with --data, or use method=hqq: it needs none",
            )
        observations = [self._ranges[name].moments for name in names if name in self._ranges]
        seen = [moments for moments in observations if moments is not None and moments.count]
        order = None
        if seen:
            count = sum(moments.count for moments in seen)
            second = np.zeros_like(seen[0].second[0])
            for moments in seen:
                second += moments.count / count * moments.second[0]
            order = compute_order(second, self._damping, act_order=self._act_order)
        self._last = (names, order)
        return order


LAZY = 128
"""Columns whose errors are gathered before the rest of the matrix is updated."""

TRIES = 6
"""How often the damping grows tenfold where the moment is not positive definite."""


@dataclass(frozen=True, eq=False)
class Order:
    """In which order columns are rounded and how errors spread."""

    columns: Array  # shape [width]
    # Upper Cholesky factor of the inverse moment in that order, shape [width, width].
    spread: Array


def compute_order(second: Array, damping: float, *, act_order: bool) -> Order:
    """Prepare a layer from the second moment of its inputs.

    Args:
        second: Mean of x x^T, shape [width, width].
        damping: Share of the mean diagonal that is added to it.
        act_order: Columns of large inputs first, while all others can still make up for them.

    Raises:
        BadData: The moment is not finite.
    """
    if not np.isfinite(second).all():
        raise BadData(
            "the inputs of a layer are not finite on the calibration samples",
            fix="see which with `ortune verify`, or use method=hqq, which needs no data",
        )
    diagonal = np.diagonal(second)
    columns = np.argsort(-diagonal, kind="stable") if act_order else np.arange(len(second))
    turned = np.array(second[np.ix_(columns, columns)], np.float64)
    mean = float(diagonal.mean()) or 1.0
    floor = np.where(np.diagonal(turned) <= 0, mean, 0.0)  # inputs that are always zero
    for attempt in range(TRIES):
        damped = turned + np.diag(floor + damping * mean * 10.0**attempt)
        try:
            # With axes reversed the factor is R R^T, R upper, and the inverse's is R^-1 itself.
            lower = np.linalg.cholesky(damped[::-1, ::-1])
            spread = np.triu(np.linalg.inv(lower)[::-1, ::-1])
            return Order(columns, spread.astype(np.float32))
        except np.linalg.LinAlgError:
            continue
    raise BadData(
        "the second moment of a layer's inputs cannot be inverted",
        fix="give more samples, a larger damping, or method=hqq",
    )


def round_rows(rows: Array, steps: BlockSteps, order: Order, spec: BlockSpec) -> Array:
    """Round float32 rows [rows, width] to whole floats in 0..top, [rows, blocks, block]."""
    remaining = np.ascontiguousarray(rows.T[order.columns])  # a column is a contiguous row here
    scale, zero = np.ascontiguousarray(steps.scale.T), np.ascontiguousarray(steps.zero.T)
    integers = np.empty_like(remaining)
    width = len(remaining)
    for start in range(0, width, LAZY):
        end = min(start + LAZY, width)
        errors = np.empty_like(remaining[start:end])
        for index in range(start, end):
            block = order.columns[index] // spec.block
            step, middle = scale[block], zero[block]
            whole = np.clip(np.rint(remaining[index] / step) + middle, 0, spec.top)
            integers[order.columns[index]] = whole
            error = (remaining[index] - (whole - middle) * step) / order.spread[index, index]
            remaining[index + 1 : end] -= np.outer(order.spread[index, index + 1 : end], error)
            errors[index - start] = error
        remaining[end:] -= order.spread[start:end, end:].T @ errors
    padded = split_into_blocks(integers.T, spec)
    short = spec.count_blocks(width) * spec.block - width
    if short:
        padded = np.array(padded)
        padded[:, -1, spec.block - short :] = steps.zero[:, -1:]
    return padded


STARTS = (1.0, 1.05, 0.95, 0.9, 0.85, 0.8)
"""Factors of the covering step: a smaller one clips the largest weights of a block."""

SPARSITY = 10.0
"""Weight of the sparse part, in units of a block's largest weight."""

CHUNK = 1 << 17
"""Weights refined at a time: what is worked on stays in the CPU's cache."""


def refine_steps(
    folded: Array, start: BlockSteps, spec: BlockSpec, dtype: Any = np.float32
) -> BlockSteps:
    """Return grids whose squared rounding error is at most that of `start`, block by block.

    Weights are folded, shape [rows, blocks, block]; steps are stored in `dtype`.
    """
    scale, zero = start.scale.copy(), start.zero.copy()
    step = max(1, CHUNK // max(1, folded[0].size)) if len(folded) else 1
    for first in range(0, len(folded), step):
        part = slice(first, first + step)
        grids = _refine_chunk(folded[part], BlockSteps(scale[part], zero[part]), spec, dtype)
        scale[part], zero[part] = grids.scale, grids.zero
    return BlockSteps(scale, zero)


def _refine_chunk(folded: Array, start: BlockSteps, spec: BlockSpec, dtype: Any) -> BlockSteps:
    size = np.maximum(np.abs(folded).max(axis=-1, keepdims=True), 1e-30)
    best = np.full(start.scale.shape, np.inf, folded.dtype)
    kept = BlockSteps(start.scale.copy(), start.zero.copy())
    for factor in STARTS:
        scale = start.scale
        if factor != 1.0:
            scale = round_steps(scale * np.float32(factor), dtype)
        steps = BlockSteps(scale, start.zero)
        integers, error = _keep_better(folded, steps, spec, best, kept)
        # Return the grids that fit the weights less their sparse errors best, integers given.
        sparse = _shrink_errors(error / size) * size
        targets = np.subtract(folded, sparse, out=sparse)
        zero = steps.zero
        if not spec.symmetric:
            zero = np.rint(np.mean(integers - targets / steps.scale[..., None], axis=-1))
            zero = np.clip(zero, 0, spec.top)
        integers -= zero[..., None]
        square = np.einsum("rbk,rbk->rb", integers, integers)
        product = np.einsum("rbk,rbk->rb", integers, targets)
        solved = BlockSteps(
            np.where(square > 0, product / np.maximum(square, 1), steps.scale), zero
        )
        _keep_better(
            folded, BlockSteps(round_steps(solved.scale, dtype), solved.zero), spec, best, kept
        )
    return kept


def _keep_better(
    folded: Array, steps: BlockSteps, spec: BlockSpec, best: Array, kept: BlockSteps
) -> tuple[Array, Array]:
    """Round, keep the grids that err less than the best so far, return integers and errors."""
    integers = steps.quantize_blocks(folded, spec)
    error = folded - steps.dequantize_blocks(integers)
    loss = np.einsum("rbk,rbk->rb", error, error)
    better = loss < best
    np.copyto(best, loss, where=better)
    np.copyto(kept.scale, steps.scale, where=better)
    np.copyto(kept.zero, steps.zero, where=better)
    return integers, error


def _shrink_errors(error: Array) -> Array:
    """Soft-threshold for p = 1/2: about minimize ``|e|^p + SPARSITY / 2 (e - error)^2``."""
    size = np.abs(error)
    threshold = np.sqrt(np.maximum(size, 1e-8))
    np.reciprocal(threshold, out=threshold)
    threshold /= SPARSITY
    size -= threshold
    np.maximum(size, 0, out=size)
    return np.copysign(size, error, out=size)
