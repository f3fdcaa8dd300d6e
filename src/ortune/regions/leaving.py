"""A quantizer's step with some layers left in float, spelled with the fields that it has."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import fields, replace
from typing import Any

import onnx_ir as ir

from ortune.core.errors import Refused
from ortune.core.step import Quantizer, Step
from ortune.model.graph import edit
from ortune.quantization.node_filter import literally
from ortune.quantization.roles import PREPARES, deciding, role, static_int8

_RULES: dict[str, Any] = {"keep_first": 0, "head": True}
"""Fields that leave layers in float by their place among those that are quantized -> the value
with which none is left."""


def leaving(step: Quantizer, model: ir.Model, names: Iterable[str]) -> Quantizer:
    """Return a step that leaves further nodes in float, and what it leaves by itself.

    Rules that go by place, the first convolutions and the head, are written out as names: without
    the nodes that are given back they would mean other layers.

    Args:
        model: As the step gets it; left as it is.
        names: Of nodes; each must be in the model.

    Raises:
        Refused: The step has no field for names.
    """
    own = {field.name for field in fields(step)}
    if "exclude" not in own:
        raise Refused(
            f"{step.name()} quantizes all that it can: it leaves no node out by name",
            fix="use int8-static, int8-dynamic, int8-weights or int4-weights",
        )
    rules = {name: value for name, value in _RULES.items() if name in own}
    freed = replace(step, **rules)
    kept = [*names]
    if freed != step:
        kept += _by_place(step, freed, model)
    patterns = dict.fromkeys((*getattr(step, "exclude", ()), *map(literally, kept)))
    changes: dict[str, Any] = {"exclude": tuple(patterns)}
    return replace(freed, **changes)


def alone(
    step: Quantizer, model: ir.Model, own: Collection[str], others: Iterable[str]
) -> Quantizer:
    """Return a step that leaves all layers in float but those of one region.

    Args:
        own: Layers of the region.
        others: Layers of all regions.
    """
    found = leaving(step, model, [name for name in others if name not in own])
    changes: dict[str, Any] = {"leave_worst": 0}  # of one region its layers would be the worst
    return replace(found, **changes) if hasattr(found, "leave_worst") else found


def without(steps: Sequence[Step], model: ir.Model, names: Iterable[str]) -> tuple[Step, ...]:
    """Return a recipe's steps whose deciding one leaves further nodes in float.

    Preparing steps in front of it that repeat it, or mean it by default, follow.

    Args:
        model: As the deciding step gets it.

    Raises:
        Refused: No step decides, or it leaves no node out by name.
    """
    at = deciding(steps)
    if at is None:
        raise Refused("no step of the recipe decides a precision", fix="add a quantizer")
    old = steps[at]
    assert isinstance(old, Quantizer)
    new = leaving(old, model, names)
    return following(steps, at, new)


def following(steps: Sequence[Step], at: int, new: Quantizer) -> tuple[Step, ...]:
    """Return steps with another deciding one at a place; what prepares for it follows."""
    old = steps[at]
    assert isinstance(old, Quantizer)
    return (*(_following(step, old, new) for step in steps[:at]), new, *steps[at + 1 :])


def in_float(steps: Sequence[Step]) -> tuple[Step, ...]:
    """Return a recipe's steps in front of the deciding one but those that only prepare for it."""
    at = deciding(steps)
    return tuple(step for step in steps[:at] if role(step) not in PREPARES)


def _following(step: Step, old: Quantizer, new: Quantizer) -> Step:
    if role(step) not in PREPARES or "before" not in {field.name for field in fields(step)}:
        return step
    meant = getattr(step, "before", None) or static_int8()
    changes: dict[str, Any] = {"before": new}
    return replace(step, **changes) if meant == old else step


def _by_place(step: Quantizer, freed: Quantizer, model: ir.Model) -> list[str]:
    """Return the layers that a step leaves in float for their place alone."""
    there = {str(node.name) for node in edit.every_node(model)}
    taken, every = _chosen(step, model), _chosen(freed, model)
    return [name for name in every if name not in taken and name in there]


def _chosen(step: Quantizer, model: ir.Model) -> dict[str, None]:
    """Return the names of the layers that a step would quantize."""
    found = getattr(step, "chosen", None)
    layers = [] if found is None else found(model.clone())
    return {str(layer.node.name): None for layer in layers}
