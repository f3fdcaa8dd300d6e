"""Fold constants, drop what does nothing, store equal weights once."""

from collections import ChainMap
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, TypeAlias

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common

from ortune.core.plugins.bounds import Bounds
from ortune.core.step import Stage, Transform
from ortune.graph.analysis.facts import bound_weight_bytes, count_weight_bytes
from ortune.graph.io import names
from ortune.graph.ir import edit, match, prune
from ortune.graph.shapes.infer import infer_graph
from ortune.graph.shapes.known_values import Item, Partial, SymbolicValues
from ortune.graph.shapes.named_dims import is_whole_axis, read_slices
from ortune.transforms.common.simplify import clamps, constants, masks, reshapes


@dataclass(frozen=True)
class Simplify(Transform):
    """Leave out all that is the same in every run or does nothing: smaller graph, same function.

    Local functions are inlined unless they are to be kept; weights that an exporter listed as
    inputs become constants; then, until nothing changes: shapes are inferred, what is the same in
    every run is computed, an If with a known condition gives way to its branch, nodes that
    forward their input are taken out, those that reshape, cast or limit in a row are joined, equal
    nodes and zero states go, masks that are gathered number by number become the input itself,
    and what nothing reads is dropped. At last equal weights are stored once. Names of inputs,
    outputs and all nodes that stay are kept. Each rule says what it leaves alone where it lives,
    here and in `transforms.common.simplify`; docs/rewriting.md has the list.

    Exact up to the order of float operations on constants, and to the sign of zero (x + 0).

    Attributes:
        rounds: How often the rules may run at most; they stop at a fixed point.
        functions: Whether local functions are put in place of their calls, or stay as they are
            with their bodies left alone.
    """

    stage: ClassVar[Stage] = Stage.FOLD

    rounds: Annotated[int, Bounds(high=1000)] = 8
    functions: Literal["inline", "keep"] = "inline"

    def apply(self, model: ir.Model) -> int:
        inlined = edit.inline_functions(model) if self.functions == "inline" else 0
        count = inlined + _weights_as_inputs(model)
        names.make_names_unique(model)
        most_bytes = bound_weight_bytes(count_weight_bytes(model))
        for _ in range(self.rounds):
            inferred = SymbolicValues()
            infer_graph(model.graph, model.opset_imports, inferred)
            edits = constants.fold_constants(model, inferred, most_bytes)
            edits += constants.take_branches(model, inferred)
            edits += constants.settle_targets(model, inferred)
            edits += masks.settle_lengths(model, inferred)
            edits += _drop_identities(model, inferred) + masks.settle_masks(model, inferred)
            edits += reshapes.merge_pairs(model, inferred) + merge_casts(model)
            edits += clamps.merge_limits(model) + drop_zero_states(model)
            edits += share_nodes(model) + prune.drop_dead(model)
            count += edits
            if not edits:
                break
        return count + prune.share_weights(model)


def _drop_identities(model: ir.Model, inferred: SymbolicValues) -> int:
    opset = model.opset_imports.get("", 0)
    count = 0
    for graph in list(edit.walk_graphs(model)):
        obsolete = []
        for node in list(graph):
            source = find_equal_input(node, inferred, opset)
            if source is not None and edit.redirect_uses(node.outputs[0], source):
                obsolete.append(edit.detach_node(node))
        graph.remove(obsolete, safe=True)
        count += len(obsolete)
    return count


def _weights_as_inputs(model: ir.Model) -> int:
    """Take initializers out of the inputs where an exporter listed them all.

    A caller could override them, but weights are not passed; the runtime may not fold what can be
    overridden. A few among many are meant as defaults of inputs and stay.
    """
    graph = model.graph
    listed = [value for value in graph.inputs if value.is_initializer()]
    if len(listed) * 2 < len(graph.initializers):
        return 0
    common.RemoveInitializersFromInputsPass()(model)
    return len(listed)


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
    for node in edit.walk_nodes(model):
        if node.op_type != "Cast" or node.domain or not node.inputs:
            continue
        before = match.find_producer(node.inputs[0], "Cast")
        source = before.inputs[0] if before is not None else None
        if before is None or source is None or source.dtype is None:
            continue
        between = ir.DataType(edit.read_attribute(before, "to", 0))
        if converts_exactly(between, source.dtype) and _is_direct_cast(source.dtype, node):
            node.replace_input_with(0, source)
            count += 1
    return count


def converts_exactly(wide: ir.DataType, narrow: ir.DataType) -> bool:
    """Say whether every value of one type is exactly one of the other, and back again."""
    if wide == narrow:
        return True
    if narrow == ir.DataType.BOOL:
        return wide in _EXACT_BITS or _has_whole_bytes(wide)
    if narrow in _EXACT_BITS and wide in _EXACT_BITS:
        pairs = zip(_EXACT_BITS[narrow], _EXACT_BITS[wide], strict=True)
        return all(few <= many for few, many in pairs)
    if not _has_whole_bytes(narrow):
        return False
    signed = narrow.is_signed()
    if wide in _EXACT_BITS:
        significand, exponent = _EXACT_BITS[wide]
        return narrow.bitwidth - signed <= significand and narrow.bitwidth < 2 ** (exponent - 1)
    if not _has_whole_bytes(wide) or (signed and not wide.is_signed()):
        return False
    return narrow.bitwidth - signed <= wide.bitwidth - wide.is_signed()


def _has_whole_bytes(dtype: ir.DataType) -> bool:
    """Say whether it is an integer of whole bytes."""
    return dtype.is_integer() and dtype.bitwidth >= 8


def _is_direct_cast(source: ir.DataType, node: ir.Node) -> bool:
    """Say whether the joined cast is one that every runtime has and does alike."""
    to = ir.DataType(edit.read_attribute(node, "to", 0))
    return all(
        dtype in _EXACT_BITS or dtype == ir.DataType.BOOL or _has_whole_bytes(dtype)
        for dtype in (source, to)
    )


def find_equal_input(
    node: ir.Node, symbolic_values: SymbolicValues, opset: int
) -> ir.Value | None:
    """Return the input that the node's first output always equals; None when there is none.

    Equal means in value, type and shape, in every run that does not fail.
    """
    rule = _RULES.get(node.op_type) if not node.domain else None
    if rule is None or not node.inputs or node.inputs[0] is None:
        return None
    if any(attr.is_ref() for attr in node.attributes.values()):
        return None
    if any(edit.is_read(value) for value in node.outputs[1:]):
        return None
    outcome = rule(node, symbolic_values, opset)
    if isinstance(outcome, ir.Value):
        return outcome
    if outcome:
        return node.inputs[0]
    if node.op_type in _COMMUTE and len(node.inputs) == 2:
        constant, operand = node.inputs
        return operand if _is_neutral(node, _COMMUTE[node.op_type], operand, constant) else None
    return None


_Rule: TypeAlias = Callable[[ir.Node, SymbolicValues, int], "bool | ir.Value | None"]
"""Says whether the first input is passed on, or which value is."""


def _sum(node: ir.Node, symbolic_values: SymbolicValues, opset: int) -> bool:
    """Among pairs a Sum of one keeps what is behind it out of a runtime's fusions: it stays."""
    return len(node.inputs) == 1 and not symbolic_values.paired


def _dropout(node: ir.Node, symbolic_values: SymbolicValues, opset: int) -> bool:
    """Before opset 7 an attribute chose the mode, from 12 on an input does."""
    if opset < 7:
        return bool(edit.read_attribute(node, "is_test", 0))
    if opset < 12 or len(node.inputs) < 3 or node.inputs[2] is None:
        return True
    training = edit.const_array(node.inputs[2])
    return training is not None and not edit.is_overridable(node.inputs[2]) and not training.any()


def _cast(node: ir.Node, symbolic_values: SymbolicValues, opset: int) -> bool:
    to = edit.read_attribute(node, "to", None)
    source = node.inputs[0]
    return source is not None and source.dtype is not None and to == source.dtype


def _cast_like(node: ir.Node, symbolic_values: SymbolicValues, opset: int) -> bool:
    first, second = (v.dtype if v is not None else None for v in node.inputs[:2])
    return first is not None and first == second


def _reshape(node: ir.Node, symbolic_values: SymbolicValues, opset: int) -> bool:
    shape = edit.shape_of(node.inputs[0])
    if opset < 5:
        to: Partial | None = Partial(tuple(edit.read_attribute(node, "shape", ())))
    else:
        to = symbolic_values.read_partial(node.inputs[1]) if len(node.inputs) > 1 else None
    if shape is None or to is None or len(to.items) != len(shape):
        return False
    keeps_zero = bool(edit.read_attribute(node, "allowzero", 0))
    pairs = zip(to.items, shape, strict=True)
    differ = [i for i, d in pairs if not (_is_same_dim(i, d) or (i == 0 and not keeps_zero))]
    # One -1 stands for what is left over, which is then the dimension in its place.
    solid = all(not isinstance(dim, int) or dim > 0 for dim in shape)
    return not differ or (differ == [-1] and solid)


def _flatten(node: ir.Node, symbolic_values: SymbolicValues, opset: int) -> bool:
    shape, axis = edit.shape_of(node.inputs[0]), edit.read_attribute(node, "axis", 1)
    return shape is not None and len(shape) == 2 and axis in (1, -1)


def _expand(node: ir.Node, symbolic_values: SymbolicValues, opset: int) -> bool:
    shape, to = edit.shape_of(node.inputs[0]), symbolic_values.read_partial(node.inputs[1])
    if shape is None or to is None or len(to.items) > len(shape):
        return False
    tail = shape[len(shape) - len(to.items) :]
    return all(i == 1 or _is_same_dim(i, dim) for i, dim in zip(to.items, tail, strict=True))


def _transpose(node: ir.Node, symbolic_values: SymbolicValues, opset: int) -> bool:
    perm = edit.read_attribute(node, "perm", None)
    if perm is not None:
        return list(perm) == list(range(len(perm)))
    shape = edit.shape_of(node.inputs[0])
    return shape is not None and len(shape) < 2


def _pad(node: ir.Node, symbolic_values: SymbolicValues, opset: int) -> bool:
    if opset < 11:
        listed = edit.read_attribute(node, "pads", edit.read_attribute(node, "paddings", (1,)))
        return not any(listed)
    pads = symbolic_values.read_partial(node.inputs[1]) if len(node.inputs) > 1 else None
    return pads is not None and all(item == 0 for item in pads.items)


def _slice(node: ir.Node, symbolic_values: SymbolicValues, opset: int) -> bool:
    shape, slices = edit.shape_of(node.inputs[0]), read_slices(node, symbolic_values, opset)
    if shape is None or slices is None:
        return False
    whole = (cut.start == 0 and cut.step == 1 for cut in slices)
    return all(whole) and all(is_whole_axis(shape, cut.axis, cut.end) for cut in slices)


def _where(node: ir.Node, symbolic_values: SymbolicValues, opset: int) -> ir.Value | None:
    """A condition that is the same everywhere chooses; so do two branches that are one."""
    condition, yes, no = node.inputs
    array = symbolic_values.read_array(condition)
    if yes is no:
        chosen = yes
    elif array is not None and array.size and (array.all() or not array.any()):
        chosen = yes if array.all() else no
    else:
        return None
    shape, out = (edit.shape_of(v) for v in (chosen, node.outputs[0]))
    return chosen if shape is not None and shape == out and None not in shape else None


def _tile(node: ir.Node, symbolic_values: SymbolicValues, opset: int) -> bool:
    part = symbolic_values.read_partial(node.inputs[1]) if len(node.inputs) == 2 else None
    return part is not None and all(item == 1 for item in part.items)


def _reduce(node: ir.Node, symbolic_values: SymbolicValues, opset: int) -> bool:
    """One number is its own sum, mean, product, maximum and minimum."""
    shape, axes = edit.shape_of(node.inputs[0]), edit.read_attribute(node, "axes", None)
    if len(node.inputs) > 1 and node.inputs[1] is not None:
        part = symbolic_values.read_partial(node.inputs[1])
        if part is None or not part.whole:
            return False
        axes = part.items
    if shape is None:
        return False
    if not axes:
        axes = () if edit.read_attribute(node, "noop_with_empty_axes", 0) else range(len(shape))
    kept = bool(edit.read_attribute(node, "keepdims", 1)) or not axes
    inside = all(-len(shape) <= axis < len(shape) for axis in axes)
    return kept and inside and all(shape[axis] == 1 for axis in axes)


def _relu(node: ir.Node, symbolic_values: SymbolicValues, opset: int) -> bool:
    """Behind what is never below 0."""
    before = node.inputs[0].producer() if node.inputs[0] is not None else None
    if before is None or before.domain:
        return False
    if before.op_type == "Clip":
        low = edit.read_attribute(before, "min", None) if opset < 11 else None
        bound = before.inputs[1] if opset >= 11 and len(before.inputs) > 1 else None
        array = symbolic_values.read_array(bound)
        low = array.reshape(-1)[0] if array is not None and array.size == 1 else low
        return low is not None and bool(low >= 0)
    return before.op_type in match.NOT_NEGATIVE


def _find_undone(node: ir.Node, symbolic_values: SymbolicValues, opset: int) -> ir.Value | None:
    """Not of Not, and Neg of Neg."""
    before = match.find_producer(node.inputs[0], node.op_type)
    return before.inputs[0] if before is not None else None


def _neutral(number: float) -> _Rule:
    """Make a rule: one input, or beside it a constant that changes nothing and widens no shape."""

    def rule(node: ir.Node, symbolic_values: SymbolicValues, opset: int) -> bool:
        if len(node.inputs) == 1:
            return True
        return len(node.inputs) == 2 and _is_neutral(node, number, *node.inputs)

    return rule


def _is_neutral(
    node: ir.Node, number: float, value: ir.Value | None, constant: ir.Value | None
) -> bool:
    tensor = edit.const_tensor(constant)
    shape = edit.shape_of(value)
    if tensor is None or tensor.size != 1 or shape is None or len(tensor.shape) > len(shape):
        return False
    if edit.is_overridable(constant) or edit.read_attribute(node, "axis", None) is not None:
        return False
    array = edit.const_array(constant)
    kinds = "b" if node.op_type in _LOGICAL else "iuf"
    return array is not None and array.dtype.kind in kinds and bool(np.all(array == number))


def _is_same_dim(first: Item, second: Item) -> bool:
    """A name stands for one size throughout a model; what has no name equals nothing."""
    return first is not None and first == second


_LOGICAL = frozenset(("And", "Or", "Xor"))
_COMMUTE: Mapping[str, float] = {
    "Add": 0,
    "Mul": 1,
    "And": True,
    "Or": False,
    "Xor": False,
    "Max": -np.inf,
    "Min": np.inf,
}

_RULES: Mapping[str, _Rule] = {
    "Identity": lambda node, values, opset: True,
    "Dropout": _dropout,
    "Cast": _cast,
    "CastLike": _cast_like,
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Expand": _expand,
    "Transpose": _transpose,
    "Pad": _pad,
    "Slice": _slice,
    "Split": lambda node, values, opset: len(node.outputs) == 1,
    "Concat": lambda node, values, opset: len(node.inputs) == 1,
    "Sum": _sum,
    "Mean": lambda node, values, opset: len(node.inputs) == 1,
    "Where": _where,
    "Tile": _tile,
    **{f"Reduce{kind}": _reduce for kind in ("Sum", "Mean", "Max", "Min", "Prod")},
    "Relu": _relu,
    "Not": _find_undone,
    "Neg": _find_undone,
    **{op: _neutral(number) for op, number in _COMMUTE.items()},
    "Sub": _neutral(0),
    "Div": _neutral(1),
    "Pow": _neutral(1),
}


_LONGEST = 1 << 20
_MOST_MOVES = 16


def drop_zero_states(model: ir.Model) -> int:
    """Leave out zeros given as the initial state of LSTM, GRU and RNN; return how many went.

    The operators start from zeros where no state is given. Zeros are a constant, or the result of
    ConstantOfShape, perhaps moved or widened: with it goes the arithmetic that finds the batch.
    """
    count = 0
    for node in edit.walk_nodes(model):
        if node.domain or node.op_type not in ("LSTM", "GRU", "RNN"):
            continue
        for index in (5, 6):
            value = node.inputs[index] if index < len(node.inputs) else None
            if value is not None and _is_zero(value):
                node.replace_input_with(index, None)
                count += 1
    return count


_MOVES_TEXT = "Expand Tile Identity Cast Unsqueeze Squeeze Reshape Transpose Slice Gather"
_MOVES = tuple(_MOVES_TEXT.split())
"""Operators of whose zeros nothing but zeros comes."""


def _is_zero(value: ir.Value | None) -> bool:
    for _ in range(_MOST_MOVES):
        node = match.find_producer(value, *_MOVES)
        if node is None:
            break
        value = node.inputs[0]
    node = match.find_producer(value, "ConstantOfShape")
    if node is None:
        tensor = edit.const_tensor(value)
        small = tensor is not None and tensor.size <= _LONGEST and not edit.is_overridable(value)
        return small and tensor is not None and not tensor.numpy().any()
    filled = edit.read_attribute(node, "value", None)
    return filled is None or not filled.numpy().any()


_MODES = frozenset(("Dropout", "BatchNormalization"))
"""Drawn, or with outputs that are states, while they train."""

_SINGLE = "DequantizeLinear"
"""Runtimes fuse one into the node that reads it; each reader has its own."""


def share_nodes(model: ir.Model) -> int:
    """Let the first of several equal nodes serve the readers of all; return how many went.

    Equal: operator, attributes, inputs and types. A body sees the nodes around it as well. What
    is drawn at random, has bodies or comes from another domain is left alone, and so is one whose
    result is an output of a graph.
    """
    tops: list[edit.Graph] = [model.graph, *model.functions.values()]
    return sum(_share_nodes(graph, ChainMap()) for graph in tops)


def _share_nodes(graph: edit.Graph, seen: ChainMap[Hashable, ir.Node]) -> int:
    count = 0
    for node in list(graph):
        for body in edit.list_bodies(node):
            count += _share_nodes(body, seen.new_child())
        key = _node_key(node)
        if key is None:
            continue
        first = seen.setdefault(key, node)
        if first is not node and _replace_duplicate(node, first):
            count += 1
    return count


def _replace_duplicate(node: ir.Node, first: ir.Node) -> bool:
    if any(value.is_graph_output() for value in node.outputs):
        return False
    used = [bool(value.uses()) for value in node.outputs]
    if not any(used):
        return False
    for old, new in zip(node.outputs, first.outputs, strict=True):
        if old.uses():
            if not new.name:
                return False
            if new.shape is None:
                new.shape = old.shape
    for old, new in zip(node.outputs, first.outputs, strict=True):
        edit.redirect_uses(old, new)
    return True


def _node_key(node: ir.Node) -> Hashable | None:
    if node.domain or node.op_type in match.RANDOM or node.op_type == _SINGLE:
        return None
    if any(True for _ in edit.list_bodies(node)):
        return None
    if node.op_type in _MODES and edit.read_attribute(node, "training_mode", 0):
        return None
    if node.op_type == "Dropout" and len(node.inputs) > 2:
        return None
    attributes = []
    for name, node_attribute in sorted(node.attributes.items()):
        if node_attribute.is_ref():
            return None
        attributes.append((name, _attribute_key(node_attribute)))
    inputs = tuple(id(value) if value is not None else None for value in node.inputs)
    kinds = tuple((value.type, bool(value.name)) for value in node.outputs)
    return (node.domain, node.op_type, node.overload, inputs, tuple(attributes), kinds)


def _attribute_key(attribute: ir.Attr) -> Hashable:
    if attribute.type == ir.AttributeType.TENSOR:
        tensor = attribute.as_tensor()
        return (tensor.dtype, tuple(tensor.shape), tensor.tobytes())
    if isinstance(attribute.value, (list, tuple)):
        return (attribute.type, tuple(map(str, attribute.value)))
    return (attribute.type, str(attribute.value))
