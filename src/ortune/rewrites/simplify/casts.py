"""Casts behind casts: one does, where the type between them holds every value."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from ortune.model.graph import edit
from ortune.model.graph.match import maker

_EXACT_BITS: Mapping[ir.DataType, tuple[int, int]] = {
    ir.DataType.FLOAT16: (11, 5),
    ir.DataType.BFLOAT16: (8, 8),
    ir.DataType.FLOAT: (24, 8),
    ir.DataType.DOUBLE: (53, 11),
}
"""Bits of significand, the hidden one included, and of exponent."""


def merge_casts(model: ir.Model) -> int:
    """Let a Cast read what the Cast before it reads, and return how many do.

    Only where the type between holds every value of the first (int32 -> int64 -> float; bool ->
    float -> int64; float16 -> float -> double): then the second sees the same values. A narrowing
    in the middle stays, be it int64 -> int32 -> int64 or float -> float16 -> float: it may change
    values.
    """
    count = 0
    for node in edit.every_node(model):
        if node.op_type != "Cast" or node.domain or not node.inputs:
            continue
        before = maker(node.inputs[0], "Cast")
        source = before.inputs[0] if before is not None else None
        if before is None or source is None or source.dtype is None:
            continue
        between = ir.DataType(edit.attribute(before, "to", 0))
        if holds(between, source.dtype) and _direct(source.dtype, node):
            node.replace_input_with(0, source)
            count += 1
    return count


def holds(wide: ir.DataType, narrow: ir.DataType) -> bool:
    """Say whether every value of one type is exactly one of the other, and back again."""
    if wide == narrow:
        return True
    if narrow == ir.DataType.BOOL:
        return wide in _EXACT_BITS or _whole(wide)
    if narrow in _EXACT_BITS and wide in _EXACT_BITS:
        pairs = zip(_EXACT_BITS[narrow], _EXACT_BITS[wide], strict=True)
        return all(few <= many for few, many in pairs)
    if not _whole(narrow):
        return False
    signed = narrow.is_signed()
    if wide in _EXACT_BITS:
        significand, exponent = _EXACT_BITS[wide]
        return narrow.bitwidth - signed <= significand and narrow.bitwidth < 2 ** (exponent - 1)
    if not _whole(wide) or (signed and not wide.is_signed()):
        return False
    return narrow.bitwidth - signed <= wide.bitwidth - wide.is_signed()


def _whole(dtype: ir.DataType) -> bool:
    """Say whether it is an integer of whole bytes."""
    return dtype.is_integer() and dtype.bitwidth >= 8


def _direct(source: ir.DataType, node: ir.Node) -> bool:
    """Say whether the joined cast is one that every runtime has and does alike."""
    to = ir.DataType(edit.attribute(node, "to", 0))
    return all(
        dtype in _EXACT_BITS or dtype == ir.DataType.BOOL or _whole(dtype)
        for dtype in (source, to)
    )
