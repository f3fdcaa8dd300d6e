"""Weight-only quantization in blocks: from settings to packed tensors."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortune.core.errors import BadData, BadSettings, Refused
from ortune.core.observer import Moments, Observer, Probe, Ranges
from ortune.core.plugins import catalog
from ortune.model.graph import edit
from ortune.model.shapes.infer import infer
from ortune.quantization.block_grid import SLAB, Array, Packed, Spec, Steps, fold, nearest, pack
from ortune.quantization.layers import excluded
from ortune.quantization.node_filter import chosen
from ortune.quantization.rounding import gptq, hqq
from ortune.quantization.weights.matmuls import UNKNOWN_RANK, Found, Product, Rows, Table, find
from ortune.rewrites.opset.raise_version import raise_to

Method: TypeAlias = Literal["rtn", "hqq", "gptq"]
Form: TypeAlias = Literal["nbits", "qdq"]

BLOCK_OPSET = 21
"""DequantizeLinear has blocks and 4-bit types from here on."""


@dataclass(frozen=True)
class Blockwise:
    """What is to be done; the fields are those of `int4-weights` and `int8-weights`."""

    spec: Spec
    method: Method
    form: Form
    accuracy_level: int
    ops: tuple[str, ...]
    min_size: int
    include: tuple[str, ...]
    exclude: tuple[str, ...]
    damping: float
    act_order: bool

    def __post_init__(self) -> None:
        if not 0 <= self.accuracy_level <= 4:
            raise BadSettings(
                f"accuracy_level={self.accuracy_level} is not 0 to 4",
                fix="use 0 for float32 products or 4 for int8 ones",
            )
        if self.damping <= 0:
            raise BadSettings(f"damping={self.damping} is not positive", fix="0.01 is usual")

    def probes(self, model: ir.Model) -> Sequence[Probe]:
        """Return the inputs of the products where errors are spread by their moments."""
        if self.method != "gptq":
            return []
        edit.inline(model)
        observer = catalog.load(Observer, "moments")()
        names = dict.fromkeys(str(product.x.name) for product in self._find(model).products)
        return [Probe(name, observer) for name in names]

    def apply(self, model: ir.Model, ranges: Ranges) -> int:
        """Pack the weights and return how many were.

        Raises:
            Refused: There is none; the text counts why.
            BadSettings: A pattern matches no node.
            BadData: A layer's inputs were not seen, or are not finite.
        """
        from ortune.quantization.weights.write import Writer

        edit.inline(model)
        found = self._find(model)
        if UNKNOWN_RANK in found.skipped and infer(model):
            found = self._find(model)
        if not found.products and not found.tables:
            why = found.reasons() or f"no {', '.join(self.ops)} reads one"
            convolutions = sum("Conv" in node.op_type for node in edit.every_node(model))
            if convolutions:
                why += f"; {convolutions} convolutions have no kernel for weights in blocks"
            raise Refused(
                f"no weight to store in {self.spec.bits} bits: {why}",
                fix="see `ortune inspect` for the model's operators and dtypes",
            )
        if self.form == "qdq" and model.opset_imports.get("", 0) < BLOCK_OPSET:
            raise_to(model, BLOCK_OPSET)
            found = self._find(model)
        writer = Writer(model, self.form, self.accuracy_level)
        groups = _grouped(found)
        if self.form == "qdq":
            groups = _apart(groups)
        orders = _Orders(ranges, self.damping, self.act_order)
        for rows, products, tables in groups:
            order = orders.of(products) if self.method == "gptq" else None
            if order is None and products and self.method == "gptq":
                edit.note(model, f"no sample reaches '{products[0].node.name}': rounded by hqq")
            writer.write(self.pack(rows, order), rows, products, tables)
        if found.skipped:
            edit.note(model, f"left in float: {found.reasons()}")
        return len(groups)

    def pack(self, rows: Rows, order: gptq.Order | None = None) -> Packed:
        """Round and pack one weight, some rows at a time.

        Args:
            rows: The weight.
            order: For `gptq`; None rounds as `hqq` (tables that are only looked up have none).
        """
        spec, dtype = self.spec, rows.dtype.numpy()
        count, width = rows.shape
        blocks = spec.blocks(width)
        integers = np.empty((count, blocks, spec.block * spec.bits // 8), np.uint8)
        scale = np.empty((count, blocks), dtype)
        zero = None
        if not spec.symmetric:
            zero = np.empty((count, -(-blocks * spec.bits // 8)), np.uint8)
        for part, slab in rows.slabs(SLAB):
            whole, steps = self._round(slab, order, dtype)
            integers[part] = pack(whole, spec.bits)
            scale[part] = steps.scale
            if zero is not None:
                zero[part] = pack(steps.zero, spec.bits)
        return Packed(spec, width, integers, scale, zero)

    def _round(
        self, slab: NDArray[np.float32], order: gptq.Order | None, dtype: object
    ) -> tuple[Array, Steps]:
        folded = fold(slab, self.spec)
        steps = nearest(folded, self.spec, dtype)
        if self.method != "rtn":
            steps = hqq.refine(folded, steps, self.spec, dtype)
        if order is None:
            return steps.integers(folded, self.spec), steps
        return gptq.round_rows(slab, steps, order, self.spec), steps

    def _find(self, model: ir.Model) -> Found:
        return find(
            model,
            self.ops,
            min_size=self.min_size,
            whole=self.spec.block if self.form == "qdq" else 1,
            allowed=included(model, self.include),
            left=excluded(model, self.exclude),
        )


def _grouped(found: Found) -> list[tuple[Rows, list[Product], list[Table]]]:
    """Return who reads each weight: what several read is packed once."""
    groups: dict[Rows, tuple[list[Product], list[Table]]] = {}
    for product in found.products:
        groups.setdefault(product.rows, ([], []))[0].append(product)
    for table in found.tables:
        groups.setdefault(table.rows, ([], []))[1].append(table)
    return [(rows, products, tables) for rows, (products, tables) in groups.items()]


def _apart(
    groups: Sequence[tuple[Rows, list[Product], list[Table]]],
) -> list[tuple[Rows, list[Product], list[Table]]]:
    """Give every product a weight of its own: onnxruntime 1.31.1 fuses one reader of a weight."""
    found: list[tuple[Rows, list[Product], list[Table]]] = []
    for rows, products, tables in groups:
        found.append((rows, products[:1], tables))
        found += [(rows, [product], []) for product in products[1:]]
    return found


class _Orders:
    """Finds the order of a weight's columns; layers that read one tensor share it."""

    def __init__(self, ranges: Ranges, damping: float, act_order: bool) -> None:
        self._ranges, self._damping, self._act_order = ranges, damping, act_order
        self._last: tuple[tuple[str, ...], gptq.Order | None] = ((), None)

    def of(self, products: Sequence[Product]) -> gptq.Order | None:
        """Return it from the moments over the inputs of all products that share the weight.

        None where there is nothing to go by: a table that is only looked up, or layers in
        branches that no sample takes.
        """
        names = tuple(dict.fromkeys(str(product.x.name) for product in products))
        if self._last[0] != names:
            self._last = (names, self._find(names))
        return self._last[1]

    def _find(self, names: Sequence[str]) -> gptq.Order | None:
        seen: list[Moments] = []
        for name in names:
            known = self._ranges.get(name)
            if not self._ranges:
                raise BadData(
                    f"the values of '{name}' were not observed",
                    fix="give samples with --data, or use method=hqq: it needs none",
                )
            if known is not None and known.moments is not None and known.moments.count:
                seen.append(known.moments)
        if not seen:
            return None
        count = sum(moments.count for moments in seen)
        second = np.zeros_like(seen[0].second[0])
        for moments in seen:
            second += moments.count / count * moments.second[0]
        return gptq.order(second, self._damping, act_order=self._act_order)


def included(model: ir.Model, patterns: Sequence[str]) -> Collection[ir.Node] | None:
    """Return the nodes that `include` names; None without patterns.

    Raises:
        BadSettings: A pattern matches no node of the model.
    """
    return chosen(model, patterns, "include") if patterns else None
