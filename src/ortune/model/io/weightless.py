"""A model without its weights, for onnx's own functions, which take at most 2 GB."""

from __future__ import annotations

import onnx
import onnx_ir as ir

from ortune.model.io import external
from ortune.model.io.protobuf import HELD
from ortune.model.io.write import held


def light(model: ir.Model) -> onnx.ModelProto:
    """Serialize a model with its large initializers turned into inputs of the same type.

    They come after the real inputs. What infers shapes or types from it sees the same graph; what
    computes with the values of large weights does not.
    """
    with held(model, everywhere=False):
        proto = ir.serde.serialize_model(model)
    proto.ir_version = max(4, proto.ir_version)
    graph = proto.graph
    given = {value.name for value in graph.input}
    moved = [t for t in graph.initializer if external.location(t) == HELD]
    names = {tensor.name for tensor in moved}
    graph.input.extend(
        onnx.helper.make_tensor_value_info(t.name, t.data_type, list(t.dims))
        for t in moved
        if t.name not in given
    )
    for field in (graph.initializer, graph.value_info):
        for index in reversed(range(len(field))):
            if field[index].name in names:
                del field[index]
    return proto
