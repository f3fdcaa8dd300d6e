"""Weight-only quantization in blocks: from settings to packed tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

import numpy as np
import onnx_ir as ir

from ortune.core import wording
from ortune.core.errors import BadData, BadSettings, Refused
from ortune.core.observer import Moments, Observer, Probe, Ranges
from ortune.core.plugins import catalog
from ortune.core.step import Quantizer
from ortune.graph.ir import edit
from ortune.graph.shapes.infer import infer_shapes
from ortune.quantizers.common.block_grid import (
    SLAB,
    Bits,
    BlockSpec,
    PackedWeight,
    compute_block_steps,
    pack_integers,
    split_into_blocks,
)
from ortune.quantizers.common.layers import flatten_model, is_last
from ortune.quantizers.common.node_filter import select_nodes
from ortune.quantizers.common.rounding import blocks as rounding
from ortune.quantizers.common.weights.matmuls import (
    UNKNOWN_RANK,
    BlockableWeights,
    Product,
    Rows,
    TableLookup,
    find_blockable_weights,
)
from ortune.quantizers.common.weights.write import Writer
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
        names = dict.fromkeys(
            str(product.x.name) for product in self._find_weights(model).products
        )
        return [Probe(name, observer) for name in names]

    def apply(self, model: ir.Model, ranges: Ranges) -> int:
        """Pack the weights and return how many were."""
        flatten_model(model)
        weights = self._find_weights(model)
        if UNKNOWN_RANK in weights.skipped and infer_shapes(model):
            weights = self._find_weights(model)
        if not weights.products and not weights.tables:
            reason = (
                weights.describe_skipped()
                or f"no {', '.join(self.blockable_ops or self.ops)} reads one"
            )
            convolutions = sum("Conv" in node.op_type for node in edit.walk_nodes(model))
            if convolutions:
                reason += (
                    "; no kernel for weights in blocks: "
                    f"{wording.format_count(convolutions, 'convolution')}"
                )
            raise Refused(
                f"no weight to store in {wording.format_count(self.spec.bits, 'bit')}: {reason}",
                fix="see `ortune inspect` for the model's operators and dtypes",
            )
        standard = self.form == "qdq"
        if standard and model.opset_imports.get("", 0) < BLOCK_OPSET:
            raise_to(model, BLOCK_OPSET)
            weights = self._find_weights(model)
        writer = Writer(model, self.accuracy_level, standard=standard)
        groups = (
            _split_products(_group_by_weight(weights)) if standard else _group_by_weight(weights)
        )
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

    def _find_weights(self, model: ir.Model) -> BlockableWeights:
        weights = find_blockable_weights(
            model,
            self.blockable_ops,
            min_size=self.min_size,
            whole=self.spec.block if self.form == "qdq" else 1,
            among=select_nodes(model, self.include, self.exclude),
        )
        if not self.head:
            nodes = {product.node for product in weights.products}
            kept = [
                candidate for candidate in weights.products if not is_last(candidate.node, nodes)
            ]
            weights.skipped["last product"] += len(weights.products) - len(kept)
            weights.products = kept
        return weights


def pack_rows(
    rows: Rows, spec: BlockSpec, method: Method, order: rounding.Order | None = None
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
            steps = rounding.refine_steps(folded, steps, spec, dtype)
        if order is None:
            whole = steps.quantize_blocks(folded, spec)
        else:
            whole = rounding.round_rows(slab, steps, order, spec)
        integers[part], scale[part] = pack_integers(whole, spec.bits), steps.scale
        if zero is not None:
            zero[part] = pack_integers(steps.zero, spec.bits)
    return PackedWeight(spec, width, integers, scale, zero)


Group: TypeAlias = tuple[Rows, list[Product], list[TableLookup]]
"""A weight with the nodes that read it."""


def _group_by_weight(weights: BlockableWeights) -> list[Group]:
    """Return who reads each weight: what several read is packed once."""
    groups: dict[Rows, Group] = {}
    for product in weights.products:
        groups.setdefault(product.rows, (product.rows, [], []))[1].append(product)
    for table in weights.tables:
        groups.setdefault(table.rows, (table.rows, [], []))[2].append(table)
    return list(groups.values())


def _split_products(groups: Sequence[Group]) -> list[Group]:
    """Give every product a weight of its own: onnxruntime 1.31.1 fuses one reader of a weight."""
    split_groups: list[Group] = []
    for rows, products, tables in groups:
        split_groups.append((rows, products[:1], tables))
        split_groups += [(rows, [product], []) for product in products[1:]]
    return split_groups


class _Orders:
    """Finds the order of a weight's columns; layers that read one tensor share it."""

    def __init__(self, ranges: Ranges, damping: float, act_order: bool) -> None:
        self._ranges, self._damping, self._act_order = ranges, damping, act_order
        self._last: tuple[tuple[str, ...], rounding.Order | None] = ((), None)

    def find_order(self, products: Sequence[Product]) -> rounding.Order | None:
        """Return it from the moments over the inputs of all products that share the weight.

        None where there is nothing to go by: a table that is only looked up, or layers in
        branches that no sample takes.
        """
        names = tuple(dict.fromkeys(str(product.x.name) for product in products))
        if self._last[0] != names:
            self._last = (names, self._compute_order(names))
        return self._last[1]

    def _compute_order(self, names: Sequence[str]) -> rounding.Order | None:
        seen: list[Moments] = []
        for name in names:
            observation = self._ranges.get(name)
            if not self._ranges:
                raise BadData(
                    f"the values of '{name}' were not observed",
                    fix="give samples with --data, or use method=hqq: it needs none",
                )
            if (
                observation is not None
                and observation.moments is not None
                and observation.moments.count
            ):
                seen.append(observation.moments)
        if not seen:
            return None
        count = sum(moments.count for moments in seen)
        second = np.zeros_like(seen[0].second[0])
        for moments in seen:
            second += moments.count / count * moments.second[0]
        return rounding.compute_order(second, self._damping, act_order=self._act_order)
