"""What a node's attributes say, as text that two models can be compared by."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from ortune.model.diff.weights import digest

_MEANINGLESS = frozenset({"kernel_shape", "channels_last"})


def settings(node: ir.Node, opset: int) -> dict[str, str]:
    """Return attribute -> text without bodies, ONNX' defaults and what the weights' shape says."""
    usual = _defaults(node.op_type, opset) if not node.domain else {}
    found = {}
    for name, attribute in sorted(node.attributes.items()):
        if attribute.is_ref() or name in _MEANINGLESS:
            continue
        if attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
            continue
        text = _text(attribute)
        if usual.get(name) != text and not _plain(name, attribute.value):
            found[name] = text
    return found


def _text(attribute: ir.Attr) -> str:
    value: Any = attribute.value
    if attribute.type == ir.AttributeType.TENSOR:
        return f"tensor {digest(value)}"
    if attribute.type == ir.AttributeType.FLOAT:
        return repr(float(np.float32(value)))
    if attribute.type == ir.AttributeType.FLOATS:
        return repr([float(np.float32(one)) for one in value])
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return repr(list(value))
    return repr(value)


def _plain(name: str, value: Any) -> bool:
    """Say whether an attribute says what it would mean without it, whatever the rank."""
    match name:
        case "strides" | "dilations":
            return bool(np.all(np.asarray(value) == 1))
        case "pads" | "output_padding":
            return not np.any(value)
        case "auto_pad":
            return bool(value == "NOTSET")
        case _:
            return False


@functools.cache
def _defaults(op_type: str, opset: int) -> dict[str, str]:
    try:
        schema = onnx.defs.get_schema(op_type, opset)
    except onnx.defs.SchemaError:
        return {}
    found = {}
    for name, attribute in schema.attributes.items():
        if attribute.default_value.name:
            held = ir.serde.deserialize_attribute(attribute.default_value)
            found[name] = _text(held)
    return found
