"""Read a model's facts in one pass, and count the values of its weights."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortune.core.facts import Facts
from ortune.graph.analysis.node_costs import count_flops
from ortune.graph.ir import edit
from ortune.graph.ir.match import qualify_operator
from ortune.graph.shapes.infer import infer_copy, list_unknown_values

HALF_MAX = 65504.0
_MASK = 1e30
_HALF_SMALL = 2.0**-14
_CHUNK = 1 << 20
_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE)
_KINDS: dict[np.dtype[Any], tuple[type[np.unsignedinteger], int]] = {
    np.dtype(np.float32): (np.uint32, 8),
    np.dtype(np.float16): (np.uint16, 5),
}


@dataclass
class WeightValues:
    """How many elements of a weight are of which kind."""

    name: str
    elements: int = 0  # looked at
    denormal: int = 0  # so small that many CPUs compute slowly with them; not counted in float64
    nan: int = 0
    infinite: int = 0
    over: int = 0  # beyond the largest float16; not counted in float16, as the next two
    masks: int = 0  # from 1e30 on, which stand for infinity
    small: int = 0  # not 0, and below the smallest normal float16


def weight_values(model: ir.Model, at_most: int | None = None) -> Iterator[WeightValues]:
    """Yield counts of each float weight, in chunks: beyond `at_most` elements an even part."""
    weights = [(name, t) for name, t in edit.list_named_weights(model) if t.dtype in _FLOATS]
    total = sum(tensor.size for _, tensor in weights)
    step = max(1, -(-total // at_most)) if at_most else 1
    for name, tensor in weights:
        counts = WeightValues(name)
        flat = np.asarray(tensor.numpy()).reshape(-1)
        for start in range(0, flat.size, _CHUNK * step):
            _count_values(flat[start : start + _CHUNK], counts)
        yield counts


def denormal_share(values: Iterable[WeightValues]) -> float:
    """Return the share of elements that are denormal, 0 without any."""
    weights = list(values)
    elements = sum(weight.elements for weight in weights)
    return sum(weight.denormal for weight in weights) / elements if elements else 0.0


def is_denormal(array: NDArray[np.floating]) -> NDArray[np.bool_]:
    """Return which elements are denormal: exponent 0, and not 0 themselves (IEEE 754)."""
    whole, exponent = _KINDS[array.dtype]
    bits: NDArray[np.unsignedinteger] = np.ascontiguousarray(array).view(whole)
    smallest = 1 << (8 * array.dtype.itemsize - exponent)
    return np.asarray((bits << 1) - 1 < smallest - 1)


def _count_values(part: NDArray[np.floating], counts: WeightValues) -> None:
    counts.elements += part.size
    if part.dtype in _KINDS:
        counts.denormal += int(np.count_nonzero(is_denormal(part)))
    size: NDArray[np.floating] = np.abs(part)
    top = size.max(initial=0)
    if not np.isfinite(top):
        counts.nan += int(np.count_nonzero(np.isnan(size)))
        counts.infinite += int(np.count_nonzero(np.isinf(size)))
        size = size[np.isfinite(size)]
        top = size.max(initial=0)
    if part.dtype != np.float16:
        counts.small += int(np.count_nonzero(size < _HALF_SMALL) - np.count_nonzero(size == 0))
        if top > HALF_MAX:
            counts.masks += int(np.count_nonzero(size >= _MASK))
            counts.over += int(np.count_nonzero((size > HALF_MAX) & (size < _MASK)))


_LIMIT = 1 << 27
"""Weights that are read: a second of work, however large the model is."""


def read_facts(
    model: ir.Model,
    inference: tuple[ir.Model, str] | None = None,
    *,
    values: Sequence[WeightValues] | None = None,
    read: bool = False,
) -> Facts:
    """Describe a model; it is left as it is.

    Missing shapes are inferred on a copy. Weights are initializers and Constant nodes, counted
    once where they are stored, as they are stored (4-bit ones as half a byte).

    Args:
        model: Its weights are read only where `read` says so.
        inference: What `shaped` returned for it.
        values: Of its weights, for the share of denormals.
        read: Count that share; of more than 134 million weights an even part is looked at.
    """
    nodes = list(model.graph.all_nodes())
    weights = [tensor for _, tensor in edit.list_named_weights(model)]
    precisions: Counter[str] = Counter()
    for tensor in weights:
        precisions[edit.dtype_name(tensor.dtype)] += tensor.nbytes
    if inference is None:
        whole = not model.functions and not list_unknown_values(model)
        inference = (model, "file") if whole else infer_copy(model)
    rows, sizes = table_rows(inference[0]), find_size_inputs(inference[0])
    inputs = tuple(
        replace(spec, rows=rows.get(spec.name), sizes=spec.name in sizes)
        for spec in edit.list_inputs(model)
    )
    dynamic = [d for tensor_spec in inputs for d in tensor_spec.shape or () if isinstance(d, str)]
    if read and values is None:
        values = list(weight_values(model, _LIMIT))
    return Facts(
        ops=dict(Counter(qualify_operator(node) for node in nodes).most_common()),
        nodes=len(nodes),
        parameters=sum(tensor.size for tensor in weights),
        weight_bytes=precisions.total(),
        precisions=dict(precisions.most_common()),
        opset=model.opset_imports.get("", 0),
        ir_version=model.ir_version,
        inputs=inputs,
        outputs=edit.list_outputs(model),
        dynamic=tuple(dict.fromkeys(dynamic)),
        subgraphs=sum(1 for _ in model.graph.subgraphs()),
        functions=len(model.functions),
        flops=count_flops(inference[0]),
        denormals=None if values is None else denormal_share(values),
        shapes_from=inference[1],
        metadata=dict(model.metadata_props),
        table_bytes=table_bytes(model),
    )


def count_weight_bytes(model: ir.Model) -> int:
    """Return the bytes of all weights as they are stored; none is read."""
    return sum(tensor.nbytes for _, tensor in edit.list_named_weights(model))


MOST_GROWTH = 0.1
"""Share of the weights that constants computed in advance may add to a file."""

_ROOM = 1 << 20
"""Bytes that they may add in any case."""


def bound_weight_bytes(before: int) -> int:
    """Return the bytes that weights may become where constants are computed in advance."""
    return before + max(_ROOM, int(MOST_GROWTH * before))


_SHAPING = "Expand Flatten Gather Reshape Slice Split Squeeze Tile Transpose Unsqueeze"
_PASSED_ON = frozenset(["Cast", "Concat", "Identity", *_SHAPING.split()])
"""Operators that hand on their first input's integers, or those of every input."""
_AXES = dict.fromkeys(("Gather", "GatherElements", "ScatterElements"), "axis")
_SIZES: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys(("Expand", "Pad", "Reshape", "Tile", "TopK", "OneHot", "CenterCropPad"), (1,)),
    **dict.fromkeys(("ConstantOfShape", "BlackmanWindow", "HammingWindow", "HannWindow"), (0,)),
    "Col2Im": (1, 2),
    "Range": (0, 1),
    "Resize": (3,),
    "MaxUnpool": (2,),
    "DFT": (1,),
    "AffineGrid": (1,),
    "MelWeightMatrix": (0, 1, 2),
    "com.microsoft::Pad": (1,),
}
"""Operator -> the inputs that say how large its output is."""
_PACKED = "com.microsoft::GatherBlockQuantized"
_PICKS = frozenset(["Gather", _PACKED])
_EMBED = "com.microsoft::EmbedLayerNormalization"
_EMBED_TABLES = {0: 2, 1: 4}
"""Input of an EmbedLayerNormalization that holds indices -> the input that is their table."""


def table_rows(model: ir.Model) -> dict[str, int | str]:
    """Return input -> number of rows of the smallest table that its values index.

    Only inputs whose integers reach the indices unchanged; tables may be computed, but of a known
    size or of a dimension that has a name, as the nodes of a graph that edges point to: then the
    first such name. Local functions are to be inlined first.
    """
    rows: dict[str, int | str] = {}
    for value in model.graph.inputs:
        whole = value.dtype is not None and value.dtype.is_integer()
        sizes = list(_list_table_sizes(value)) if whole else []
        if numbers := [size for size in sizes if isinstance(size, int)]:
            rows[str(value.name)] = min(numbers)
        elif sizes:
            rows[str(value.name)] = sizes[0]
    return rows


def find_size_inputs(model: ir.Model) -> frozenset[str]:
    """Return the inputs whose integers reach an operand that says how large an output is."""
    return frozenset(
        str(value.name)
        for value in model.graph.inputs
        if value.dtype is not None
        and value.dtype.is_integer()
        and any(place in _SIZES.get(qualify_operator(node), ()) for node, place in _follow(value))
    )


def table_bytes(model: ir.Model) -> int:
    """Return the bytes of weights that are used as tables alone: their rows are picked."""
    return sum(tensor.nbytes for value, tensor in edit.list_weights(model) if _is_table(value))


def _is_table(value: ir.Value) -> bool:
    uses = value.uses()
    return bool(uses) and all(place == 0 and qualify_operator(n) in _PICKS for n, place in uses)


def _list_table_sizes(value: ir.Value, offset: int = 0) -> Iterator[int | str]:
    for node, place in _follow(value):
        size = _count_table_rows(node, place)
        if isinstance(size, int):
            yield max(size - offset, 1)
        elif size is not None and not offset:
            yield size
        if not offset and node.op_type == "Add" and not node.domain:
            added = edit.const_array(node.inputs[1 - place])
            if added is not None and added.size == 1 and added.item() > 0:
                yield from _list_table_sizes(node.outputs[0], int(added.item()))


def _follow(value: ir.Value) -> Iterator[tuple[ir.Node, int]]:
    """Yield the uses of a value, and of those that hand on its integers unchanged."""
    ahead, seen = [value], {value}
    while ahead:
        for node, place in ahead.pop().uses():
            yield node, place
            more = [value for value in _list_handed_on(node, place) if value not in seen]
            seen.update(more)
            ahead += more


def _list_handed_on(node: ir.Node, place: int) -> Sequence[ir.Value]:
    """Return the values that hold an input's integers: outputs, or what a body is given."""
    if node.domain:
        return ()
    if node.op_type in _PASSED_ON and (place == 0 or node.op_type == "Concat"):
        return node.outputs
    if node.op_type in ("Loop", "Scan"):
        return node.attributes["body"].as_graph().inputs[place : place + 1]
    return ()


def _count_table_rows(node: ir.Node, place: int) -> int | str | None:
    """Return the rows that an input of a node picks from; None when it is no such input."""
    op = qualify_operator(node)
    if op == _EMBED and place in _EMBED_TABLES and _EMBED_TABLES[place] < len(node.inputs):
        return _find_axis_size(node.inputs[_EMBED_TABLES[place]], 0)
    if op == "RoiAlign" and place == 2:
        return _find_axis_size(node.inputs[0], 0) or 1  # one picture is made up of any number
    if place != 1 or op not in (*_AXES, _PACKED):
        return None
    return _find_axis_size(
        node.inputs[0], edit.read_attribute(node, _AXES.get(op, "gather_axis"), 0)
    )


def _find_axis_size(table: ir.Value | None, axis: int) -> int | str | None:
    """Return a table's length along an axis, or its name, found behind changes of its type."""
    while table is not None and (node := table.producer()) is not None:
        if node.op_type not in ("Cast", "DequantizeLinear"):
            break
        table = node.inputs[0]
    tensor = edit.const_tensor(table)
    shape = tuple(tensor.shape) if tensor is not None else edit.shape_of(table)
    if not shape or not -len(shape) <= axis < len(shape):
        return None
    size = shape[axis]
    return size if isinstance(size, str) or (isinstance(size, int) and size > 0) else None
