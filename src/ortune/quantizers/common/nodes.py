"""Nodes that are named, nodes that the writers of integers add, and attributes taken over."""

import fnmatch
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortune.core.errors import BadSettings, find_nearest
from ortune.graph.ir import edit

_NAMES = "ortune.node-names"
_NEAR = 3


def remember_names(model: ir.Model) -> None:
    """Keep the names of all nodes: those that a step folds away may still be named.

    They are kept in memory only, never in the file.
    """
    node_names = model.meta.setdefault(_NAMES, set())
    node_names.update(node.name for node in edit.walk_nodes(model) if node.name)


def match_nodes(model: ir.Model, patterns: Sequence[str], option: str) -> frozenset[ir.Node]:
    """Return the nodes that any of the patterns names.

    Args:
        model: With the names that `remember_names` kept, if any.
        patterns: ``*``, ``?`` and ``[...]`` match as in a shell; ``re:`` begins a regular
            expression, which must match the whole name.
        option: What the patterns were given as.

    Raises:
        BadSettings: A pattern matches no node of the model, or is not a regular expression.
    """
    if not patterns:
        return frozenset()
    nodes = [(node, node.name or "") for node in edit.walk_nodes(model)]
    gone: set[str] = model.meta.get(_NAMES, set())
    selection: set[ir.Node] = set()
    for pattern in patterns:
        try:
            is_regex = pattern.startswith("re:")
            matches = re.compile(pattern[3:] if is_regex else fnmatch.translate(pattern))
        except re.error as error:
            raise BadSettings(
                f"{option}: '{pattern}' is not a regular expression: {error}",
                fix="write re: and a Python regular expression, or a name with * and ?",
            ) from None
        hits = {node for node, name in nodes if matches.fullmatch(name)}
        if not hits and not any(map(matches.fullmatch, gone)):
            names = [name for _, name in nodes]
            bare = pattern.removeprefix("re:").strip("*?.")
            shown = ", ".join(find_nearest(bare, names, _NEAR) or sorted(names)[:_NEAR])
            raise BadSettings(
                f"{option} pattern '{pattern}' matches no node",
                fix="use node names, with * and ?, or re: and a regular expression; such as "
                f"{shown}",
            )
        selection |= hits
    return frozenset(selection)


def select_nodes(
    model: ir.Model, include: Sequence[str], exclude: Sequence[str]
) -> frozenset[ir.Node]:
    """Return the nodes that `include` names, all when empty, but those that `exclude` names.

    Raises:
        BadSettings: As `match_nodes`.
    """
    excluded = match_nodes(model, exclude, "exclude")
    included = frozenset(edit.walk_nodes(model))
    if include:
        included = match_nodes(model, include, "include")
    return included - excluded


def escape_pattern(name: str) -> str:
    """Return the pattern that matches one name and nothing else."""
    escaped = re.sub(r"([*?[])", r"[\1]", name)
    return f"[r]{escaped[1:]}" if escaped.startswith("re:") else escaped


def make_name_matcher(patterns: Sequence[str]) -> Callable[[str], bool]:
    """Return what says whether any of these patterns is a node's name.

    Regular expressions are left out: the patterns may be a stranger's.
    """
    plain = [pattern for pattern in patterns if not pattern.startswith("re:")]
    spelled = {re.sub(r"\[([*?[r])\]", r"\1", pattern) for pattern in plain}
    literal = {name for name in spelled if escape_pattern(name) in plain}
    wild = [pattern for pattern in plain if re.sub(r"\[([*?[r])\]", r"\1", pattern) not in literal]
    regexes = [re.compile(fnmatch.translate(pattern)) for pattern in wild]
    return lambda name: name in literal or any(regex.fullmatch(name) for regex in regexes)


def add_constants(editor: edit.Editor, stem: str, **arrays: NDArray[Any]) -> list[ir.Value]:
    """Add constants, named after a stem and their keywords."""
    return [editor.add_constant(f"{stem}_{name}", array) for name, array in arrays.items()]


def make_dequantize(
    editor: edit.Editor,
    stem: str,
    parts: Sequence[ir.Value],
    axis: int | None = None,
    domain: str = "",
) -> ir.Node:
    """Return a DequantizeLinear of integers, their steps and zero points."""
    attributes = {} if axis is None else {"axis": axis}
    node = editor.make_node(
        "DequantizeLinear", parts, attributes, name=f"{stem}_dq", domain=domain
    )
    node.outputs[0].shape, node.outputs[0].dtype = parts[0].shape, ir.DataType.FLOAT
    return node


def make_cast_and_mul(
    editor: edit.Editor, stem: str, integers: ir.Value, factor: ir.Value
) -> tuple[ir.Node, ir.Node]:
    """Return the Cast and Mul of constant integers, which onnxruntime folds when it loads."""
    cast = editor.make_node(
        "Cast", [integers], {"to": int(ir.DataType.FLOAT)}, name=f"{stem}_cast"
    )
    product = editor.make_node("Mul", [cast.outputs[0], factor], name=f"{stem}_wide")
    product.outputs[0].shape, product.outputs[0].dtype = integers.shape, ir.DataType.FLOAT
    return cast, product


def put_behind(value: ir.Value, home: edit.Graph, *nodes: ir.Node) -> None:
    """Place nodes right behind a tensor, or in front of the graph that takes it from outside."""
    producer = value.producer()
    if producer is None or producer.graph is not home:
        edit.insert_first(home, *nodes)
    else:
        edit.insert_after(producer, *nodes)


def multiply_channels(
    editor: edit.Editor, value: ir.Value, factor: NDArray[np.float32], home: edit.Graph
) -> ir.Value:
    """Return a value's product with factors along its last axis, which nothing reads yet."""
    constant = editor.add_constant(f"{value.name}_factor", factor)
    inputs, name = [value, constant], f"{value.name}_smooth"
    product = editor.make_node("Mul", inputs, name=name, like=value)
    put_behind(value, home, product)
    return product.outputs[0]


def add_unary_sum(editor: edit.Editor, value: ir.Value, suffix: str) -> ir.Value:
    """Return a copy of a value that nothing reads yet: runtimes look no further through a Sum."""
    sum_node = editor.make_node("Sum", [value], name=f"{value.name}_{suffix}", like=value)
    producer = value.producer()
    assert producer is not None
    edit.insert_after(producer, sum_node)
    return sum_node.outputs[0]


def replace_value(old: ir.Value, new: ir.Value) -> None:
    """Let everything read `new` instead of `old`, graph outputs included.

    `new` takes over name, type and shape; what was made for `old` alone is removed.
    """
    new.shape, new.type = old.shape, old.type
    old.replace_all_uses_with(new, replace_graph_outputs=True)
    name, old.name = old.name, None
    new.name = name
    discard_upstream(old)


def discard_upstream(value: ir.Value | None) -> None:
    """Remove a value that nothing reads any more, and before it what was made for it alone."""
    ahead = [value]
    while ahead:
        current = ahead.pop()
        if current is None or edit.is_read(current):
            continue
        node = current.producer()
        if node is None:
            edit.discard_constant(current)
        elif node.graph is not None and not any(map(edit.is_read, node.outputs)):
            ahead += node.inputs
            node.graph.remove(node, safe=True)


def replace_output(
    editor: edit.Editor, graph: ir.Graph, value: ir.Value, instead: ir.Value
) -> None:
    """Make `instead` a graph's output in a value's place, under the name it had."""
    name, outputs = str(value.name), graph.outputs
    for index, output in enumerate(outputs):
        if output is value:
            outputs[index] = instead
    value.name = editor.reserve_name(f"{name}_float")
    instead.name = name


SUPPORTED_ATTRIBUTES = {
    "DynamicQuantizeLSTM": "hidden_size direction activations activation_alpha activation_beta "
    "clip input_forget",
    "QAttention": "num_heads unidirectional scale mask_filter_value",
    "QGemm": "alpha transA transB",
    "QLinearAdd": "",
    "QLinearAveragePool": "kernel_shape strides pads auto_pad ceil_mode count_include_pad",
    "QLinearConcat": "axis",
    "QLinearGlobalAveragePool": "",
    "QLinearLeakyRelu": "alpha",
    "QLinearMul": "",
    "QLinearSigmoid": "",
    "QLinearSoftmax": "axis",
}
"""Operator -> the attributes that it has in common with the standard one."""

_NEUTRAL = {
    "layout": 0,
    "dilations": 1,
    "beta": 1.0,
    "do_rotary": 0,
    "past_present_share_buffer": 0,
}
"""Values, of every item of a list, at which an attribute says nothing and can be left out."""


def transfer_attributes(node: ir.Node, op: str) -> dict[str, ir.Attr] | None:
    """Return the attributes of a node for its form `op`; None when one would be lost.

    An attribute that an operator does not know makes the model invalid, whatever its value:
    exporters write ``layout=0`` and ``dilations=[1, 1]``, which are the defaults.
    """
    supported = SUPPORTED_ATTRIBUTES[op].split()
    for name, attribute in node.attributes.items():
        if name not in supported and (
            attribute.is_ref()
            or not (name in _NEUTRAL and bool(np.all(np.equal(attribute.value, _NEUTRAL[name]))))
        ):
            return None
    return {name: attribute for name, attribute in node.attributes.items() if name in supported}
