"""Old and rare spellings, brought to the one form that the rest of the code knows."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray
from onnx import numpy_helper
from onnx_ir.passes import common

from ortune.core.errors import gist
from ortune.model.graph.edit import bodies, every_graph
from ortune.model.graph.spec import shape_of
from ortune.model.io import tensor_data
from ortune.model.io.tensor_data import Invalid

_SHOWN = 5
FIRST_FREE_IR = 4
"""Before this IR version every initializer had to be listed among the inputs, as a constant."""


def densify(proto: onnx.ModelProto) -> None:
    """Turn sparse initializers and attributes into dense ones, as onnxruntime does on load."""
    _densify_graph(proto.graph)
    for function in proto.functions:
        for node in function.node:
            _densify_node(node)


def normalize(model: ir.Model) -> None:
    """Normalize domains, opsets, constants, shapes and node order; see `model.io.file.load`."""
    for graph in every_graph(model):
        _merge_domain(graph.opset_imports)
        _sort(graph)
        for value in (*graph.inputs, *(value for node in graph for value in node.outputs)):
            _clean_shape(value)
    if not model.opset_imports:
        model.opset_imports[""] = 1  # files older than IR 3 do not say
    if model.ir_version < FIRST_FREE_IR:
        common.RemoveInitializersFromInputsPass()(model)


def _merge_domain(imports: dict[str, int]) -> None:
    if "ai.onnx" in imports:
        imports[""] = max(imports.pop("ai.onnx"), imports.get("", 0))


def _clean_shape(value: ir.Value) -> None:
    """A name stands for one size throughout a model; some exporters call all unknown sizes ``?``,
    or write -1."""
    shape = shape_of(value)
    if shape is None:
        return
    clean = [None if _means_nothing(dim) else dim for dim in shape]
    if clean != list(shape):
        value.shape = ir.Shape(clean)


def _means_nothing(dim: int | str | None) -> bool:
    if isinstance(dim, int):
        return dim < 0
    name = (dim or "").strip().lower()
    return name in _NO_NAMES or not any(letter.isalpha() for letter in name)


_NO_NAMES = frozenset({"none", "null", "unk", "unknown", "dynamic", "dyn", "any"})


def _sort(graph: ir.Graph | ir.Function) -> None:
    """Runtimes take nodes in any order; everything here relies on the order that ONNX demands."""
    made = {value for node in graph for value in node.outputs}
    seen: set[ir.Value] = set()
    for node in graph:
        if any(v in made and v not in seen for v in _reads(node)):
            try:
                (graph.graph if isinstance(graph, ir.Function) else graph).sort()
            except ValueError:
                raise Invalid(f"its nodes form a cycle: {_cycle(graph)}") from None
            return
        seen.update(node.outputs)


def _cycle(graph: ir.Graph | ir.Function) -> str:
    """Return the nodes of a cycle, each fed by the one before."""
    reads = {node: [v.producer() for v in _reads(node)] for node in graph}
    calls = {node: [one for one in made if one in reads] for node, made in reads.items()}
    try:
        TopologicalSorter(calls).prepare()
    except CycleError as error:
        nodes = error.args[1]
        names = [
            f"{node.op_type} '{node.name or node.outputs[0].name}'" for node in nodes[:_SHOWN]
        ]
        return " -> ".join([*names, *(["..."] if len(nodes) > _SHOWN else [])])
    return "between bodies"


def _reads(node: ir.Node) -> list[ir.Value]:
    nodes = [node, *(inner for body in bodies(node) for inner in body.all_nodes())]
    return [value for one in nodes for value in one.inputs if value is not None]


def _densify_graph(graph: onnx.GraphProto) -> None:
    for sparse in graph.sparse_initializer:
        array = _dense(sparse)
        graph.initializer.append(numpy_helper.from_array(array, sparse.values.name))
    del graph.sparse_initializer[:]
    for node in graph.node:
        _densify_node(node)


def _densify_node(node: onnx.NodeProto) -> None:
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.SPARSE_TENSOR:
            array = _dense(attribute.sparse_tensor)
            attribute.ClearField("sparse_tensor")
            attribute.type = onnx.AttributeProto.TENSOR
            attribute.t.CopyFrom(numpy_helper.from_array(array))
            if node.op_type == "Constant" and attribute.name == "sparse_value":
                attribute.name = "value"
        if attribute.HasField("g"):
            _densify_graph(attribute.g)
        for graph in attribute.graphs:
            _densify_graph(graph)


def _dense(sparse: onnx.SparseTensorProto) -> NDArray[np.generic]:
    """Indices are linear, shape [n], or by coordinate, shape [n, rank]."""
    tensor_data.sparse(sparse)
    values = numpy_helper.to_array(sparse.values)
    indices = numpy_helper.to_array(sparse.indices)
    dense = np.zeros(tuple(sparse.dims), values.dtype)
    try:
        if indices.ndim == 2:
            dense[tuple(indices.T)] = values
        else:
            dense.reshape(-1)[indices] = values
    except (IndexError, ValueError) as error:
        raise Invalid(f"sparse tensor '{sparse.values.name}': {gist(error)}") from None
    return dense
