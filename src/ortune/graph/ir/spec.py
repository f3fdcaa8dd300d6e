"""Inputs and outputs of a model as plain values."""

import onnx_ir as ir

from ortune.core.facts import TensorSpec


def list_inputs(model: ir.Model) -> tuple[TensorSpec, ...]:
    """Return the inputs a caller must give: those without a default in the model."""
    return tuple(describe_value(v) for v in model.graph.inputs if not v.is_initializer())


def list_outputs(model: ir.Model) -> tuple[TensorSpec, ...]:
    """Return the outputs in file order."""
    return tuple(describe_value(value) for value in model.graph.outputs)


def describe_value(value: ir.Value) -> TensorSpec:
    """Describe a value; what is no tensor has a dtype such as ``seq(float32)`` and no shape."""
    return TensorSpec(value.name or "", type_name(value.type), list_dims(value.shape))


def list_dims(shape: ir.Shape | None) -> tuple[int | str | None, ...] | None:
    """Return a shape as plain values."""
    if shape is None:
        return None
    return tuple(dim if isinstance(dim, int) else dim.value for dim in shape)


def shape_of(value: ir.Value | None) -> tuple[int | str | None, ...] | None:
    """Return the shape of a value as plain values; None where there is none or it is unknown."""
    return None if value is None else list_dims(value.shape)


def type_name(kind: ir.TypeProtocol | None) -> str:
    """Return NumPy's name of a tensor's type; empty when it is unknown."""
    match kind:
        case None:
            return ""
        case ir.SequenceType():
            return f"seq({type_name(kind.elem_type)})"
        case ir.OptionalType():
            return f"optional({type_name(kind.elem_type)})"
        case ir.SparseTensorType():
            return f"sparse({dtype_name(kind.dtype)})"
        case _:
            return dtype_name(kind.dtype)


def dtype_name(dtype: ir.DataType) -> str:
    """Return NumPy's name (ml_dtypes' for what NumPy lacks); ``str`` for strings."""
    if dtype == ir.DataType.STRING:
        return "str"
    return "" if dtype == ir.DataType.UNDEFINED else str(dtype.numpy().name)
