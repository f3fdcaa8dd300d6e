"""Arithmetic with constants in a row becomes one product and one sum."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeAlias

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortune.core.step import Stage, Transform
from ortune.graph.ir import edit, prune
from ortune.graph.shapes.infer import infer_shapes
from ortune.transforms.common.simplify.reshapes import RESHAPES, permutation

_ARITHMETIC = ("Add", "Sub", "Mul", "Div", "Neg")
_FIRST = 7
"""Opset from which constants broadcast without an attribute."""


@dataclass(frozen=True)
class MergeArithmetic(Transform):
    """Add, Sub, Mul, Div and Neg with constants, one behind the other, Transpose between or not.

    ::

        (c x + d) e - f  =  (c e) x + (d e - f)
        (x - c) / d / e  =  (x - c) (1 / (d e))

    At most a Mul and an Add are left; which comes first stays as it is, so that what is
    subtracted first still is exact. Constants of one number pass Reshape and its like, others
    Transpose too, by having their axes transposed. Computed in float64, stored in the type;
    integers (without division) in the type itself, where it holds with overflow as well.

    onnxruntime has no such rule. It comes last, when other steps have taken what belongs to their
    patterns or to weights.

    Exact up to rounding. Left alone: summands that cancel (x + 12582912 - 12582912 rounds),
    factors that are not finite or fall below the type's smallest normal number, and whatever
    would not lower the number of nodes.
    """

    stage: ClassVar[Stage] = Stage.FINISH
    consumes = (_ARITHMETIC,)

    def apply(self, model: ir.Model) -> int:
        if model.opset_imports.get("", 0) < _FIRST:
            return 0
        infer_shapes(model)
        editor = edit.Editor(model.graph)
        count = 0
        for graph in (model.graph, *list(model.graph.subgraphs())):
            for node in reversed(list(graph)):
                if node.graph is None or _split_operands(node) is None or _has_continuation(node):
                    continue
                chain = _collect_chain(node)
                outcome = _merge_chain(chain, editor) if chain else 0
                if isinstance(outcome, str):
                    edit.note_refusal(model, node, outcome)
                else:
                    count += outcome
        if count:
            prune.drop_dead(model)
        return count


_Chain: TypeAlias = list[tuple[ir.Node, ir.Value, ir.Value | None]]
"""Nodes in order, with what they change and the constant."""


def _split_operands(node: ir.Node) -> tuple[ir.Value, ir.Value | None] | None:
    """Return what arithmetic with a constant changes, and the constant."""
    if node.domain or node.op_type not in _ARITHMETIC:
        return None
    if node.op_type == "Neg":
        return (node.inputs[0], None) if node.inputs[0] is not None else None
    for value, constant in (node.inputs, tuple(reversed(node.inputs))):
        tensor = edit.const_tensor(constant)
        if tensor is None or edit.is_overridable(constant) or value is None or constant is None:
            continue
        if edit.const_tensor(value) is None:
            divides = node.op_type == "Div" and constant is node.inputs[0]
            return None if divides else (value, constant)
    return None


def _moves_numbers(node: ir.Node | None) -> bool:
    return node is not None and not node.domain and node.op_type in ("Transpose", *RESHAPES)


def _has_continuation(node: ir.Node) -> bool:
    """Say whether the chain goes on behind a node: it is taken up from its end."""
    value = node.outputs[0]
    while edit.has_single_use(value):
        after = next(iter(value.uses())).node
        if after.graph is not node.graph:
            return False
        operands = _split_operands(after)
        if operands is not None and operands[0] is value:
            return True
        if not _moves_numbers(after) or after.inputs[0] is not value:
            return False
        value = after.outputs[0]
    return False


def _collect_chain(last: ir.Node) -> _Chain:
    """Return arithmetic that ends in a node, with what moves numbers between, in order."""
    operands = _split_operands(last)
    chain: _Chain = []
    node: ir.Node | None = last
    while node is not None and operands is not None:
        chain.append((node, *operands))
        value = operands[0]
        node = value.producer()
        if node is None or node.graph is not last.graph or not edit.has_single_use(value):
            break
        if _moves_numbers(node) and node.inputs[0] is not None:
            operands = (node.inputs[0], None)
        else:
            operands = _split_operands(node)
    chain.reverse()
    while chain and _moves_numbers(chain[0][0]):
        chain.pop(0)
    return chain


def _merge_chain(chain: _Chain, editor: edit.Editor) -> int | str:
    arithmetic = [step for step in chain if not _moves_numbers(step[0])]
    if len(arithmetic) < 2:
        return 0
    dtype = chain[0][1].dtype
    if dtype is None or not (dtype.is_floating_point() or dtype.is_integer()):
        return 0
    if dtype.bitwidth < 8 or dtype.numpy().kind not in "fiu":
        return 0
    total = _compose_chain(chain, dtype)
    if total is None:
        return 0
    first = arithmetic[0][0].op_type in ("Add", "Sub")
    parts = total.list_operations(adds_first=first)
    if isinstance(parts, str):
        return parts if len(arithmetic) > 2 else 0
    if parts:  # the output keeps the shape that constants which have gone gave it
        (op, array), shapes = parts[-1], [part.shape for _, part in parts]
        wide = np.broadcast_shapes(total.shape, array.shape)
        if np.broadcast_shapes(*shapes) != wide:
            parts[-1] = (op, np.broadcast_to(array, wide))
    if len(parts) >= len(arithmetic) or sum(array.size for _, array in parts) > total.most:
        return 0
    last, start = chain[-1][0], chain[0][1]
    value = last.outputs[0]
    if last.graph is None or (not parts and edit.shape_of(start) != edit.shape_of(value)):
        return 0
    if not parts and (value.is_graph_output() or None in (edit.shape_of(start) or (None,))):
        return 0
    _replace_last_node(chain, parts, editor)
    for node, source, _ in reversed(arithmetic[:-1]):
        edit.redirect_uses(node.outputs[0], source)
        edit.remove_node(node)
    return len(arithmetic) - len(parts)


def _replace_last_node(
    chain: _Chain, parts: Sequence[tuple[str, NDArray[Any]]], editor: edit.Editor
) -> None:
    last, inner, _ = chain[-1]
    value = last.outputs[0]
    merged: list[ir.Node] = []
    for op, array in parts:
        stored = np.asarray(array, order="C")  # of rank 0 too, unlike `ascontiguousarray`
        constant = editor.add_constant(f"{last.name}_{op.lower()}_by", stored)
        name = f"{last.name}_{op.lower()}"
        node = editor.make_node(op, [inner, constant], name=name, like=value)
        inner = node.outputs[0]
        merged.append(node)
    edit.insert_before(last, *merged)
    edit.redirect_uses(value, inner)
    edit.remove_node(last)


def _compose_chain(chain: _Chain, dtype: ir.DataType) -> Total | None:
    """Return what a chain computes as a whole; None where that is not exact."""
    kind = dtype.numpy()
    work = np.dtype(np.float64) if kind.kind == "f" else kind
    zero = np.zeros((), work)
    tensors = [edit.const_tensor(constant) for _, _, constant in chain]
    most = sum(t.size for t in tensors if t is not None) + _SMALL // kind.itemsize
    total: Total | None = Total(np.ones((), work), zero, zero, (), kind, most)
    movers = sum(_moves_numbers(node) for node, _, _ in chain)
    for node, value, constant in chain:
        if total is None:
            break
        movers -= _moves_numbers(node)
        total = _apply_node(total, node, value, constant, moved_later=movers > 0)
    return total


def _apply_node(
    total: Total, node: ir.Node, value: ir.Value, constant: ir.Value | None, *, moved_later: bool
) -> Total | None:
    if _moves_numbers(node):
        if total.single:
            parts = [part.reshape(()) for part in (total.factor, total.summand, total.bound)]
            return replace(total, factor=parts[0], summand=parts[1], bound=parts[2], shape=())
        shape = edit.shape_of(value)
        perm = permutation(node) if node.op_type == "Transpose" else None
        return total.transpose_axes(perm) if perm is not None and shape is not None else None
    if moved_later and (
        value.shape is None or edit.shape_of(value) != edit.shape_of(node.outputs[0])
    ):
        return None
    array = edit.const_array(constant) if constant is not None else None
    return total.compose(node.op_type, array, swapped=node.inputs[0] is constant)


_SMALL = 1024
"""Bytes by which constants may grow: broadcast together they could by far more."""
_CANCELS = 2.0**-8
"""A sum this small beside its terms has lost what the terms rounded away."""


@dataclass(frozen=True)
class Total:
    """``factor * x + summand``, in float64, or in the type itself for integers."""

    factor: NDArray[Any]
    summand: NDArray[Any]
    bound: NDArray[Any]  # what the summand would be if no two terms had different signs
    shape: tuple[int, ...]  # of all constants broadcast together
    dtype: np.dtype[Any]
    most: int  # elements that the constants may have

    @property
    def single(self) -> bool:
        """Whether all constants hold one number, whatever their rank."""
        return self.factor.size == 1 and self.summand.size == 1

    def compose(self, op: str, constant: NDArray[Any] | None, *, swapped: bool) -> Total | None:
        """Return the map with one more node; None where that is not exact."""
        if constant is not None and (constant.dtype != self.dtype or not constant.size):
            return None
        if constant is not None and not self._fits(constant, op):
            return None
        c = None if constant is None else constant.astype(self.factor.dtype)
        shape = self.shape if c is None else np.broadcast_shapes(self.shape, c.shape)
        with np.errstate(all="ignore"):
            composed = self._compose_exact(op, c, swapped=swapped)
        return replace(composed, shape=shape) if composed is not None else None

    def _fits(self, constant: NDArray[Any], op: str) -> bool:
        """Say whether no part grows beyond bounds when it is broadcast with a constant."""
        parts = (self.factor, self.summand) if op in ("Mul", "Div") else (self.summand,)
        shapes = [np.broadcast_shapes(part.shape, constant.shape) for part in parts]
        return all(math.prod(shape) <= self.most for shape in shapes)

    def _compose_exact(self, op: str, c: NDArray[Any] | None, *, swapped: bool) -> Total | None:
        factor, summand, bound = self.factor, self.summand, self.bound
        match op:
            case "Neg":
                return replace(self, factor=-factor, summand=-summand)
            case "Add" if c is not None:
                return replace(self, summand=summand + c, bound=bound + abs(c))
            case "Sub" if c is not None and swapped:
                return replace(self, factor=-factor, summand=c - summand, bound=bound + abs(c))
            case "Sub" if c is not None:
                return replace(self, summand=summand - c, bound=bound + abs(c))
            case "Mul" if c is not None:
                parts = factor * c, summand * c, bound * abs(c)
            case "Div" if c is not None and self.dtype.kind == "f":
                parts = factor / c, summand / c, bound / abs(c)
            case _:
                return None
        return replace(self, factor=parts[0], summand=parts[1], bound=parts[2])

    def transpose_axes(self, perm: Sequence[int]) -> Total:
        """Return the map behind a Transpose."""
        rank = len(perm)

        def turn(array: NDArray[Any]) -> NDArray[Any]:
            if array.size == 1:
                return array.reshape(())
            return np.transpose(array.reshape((1,) * (rank - array.ndim) + array.shape), perm)

        parts = [turn(part) for part in (self.factor, self.summand, self.bound)]
        shape = np.broadcast_shapes(*(part.shape for part in parts))
        return replace(self, factor=parts[0], summand=parts[1], bound=parts[2], shape=shape)

    def list_operations(self, *, adds_first: bool) -> list[tuple[str, NDArray[Any]]] | str:
        """Return the nodes that are left, in order, or why they cannot be had.

        Args:
            adds_first: ``factor * (x + summand / factor)`` where that can be written.
        """
        factor, summand = self.factor, self.summand
        if self.dtype.kind == "f":
            if not (np.isfinite(factor).all() and np.isfinite(summand).all()):
                return "a factor or summand is not finite"
            if (abs(summand) < _CANCELS * self.bound).any():
                return "its summands cancel: they may round on purpose"
        scales, shifts = bool((factor != 1).any()), bool((summand != 0).any())
        first = adds_first and scales and shifts and self.dtype.kind == "f"
        together = np.broadcast_shapes(factor.shape, summand.shape)
        if first and math.prod(together) <= self.most and (factor != 0).all():
            nodes = [("Add", summand / factor), ("Mul", factor)]
        else:
            nodes = [("Mul", factor)] * scales + [("Add", summand)] * shifts
        with np.errstate(over="ignore"):
            stored = [(op, array.astype(self.dtype)) for op, array in nodes]
        for (_, exact), (_, rounded) in zip(nodes, stored, strict=True):
            if self.dtype.kind != "f":
                break
            small = (exact != 0) & (abs(rounded) < np.finfo(rounded.dtype).tiny)
            if not np.isfinite(rounded).all() or small.any():
                return "a factor or summand does not fit the type"
        return stored
