"""An exporter's file under the names that were asked for, in ortune's own form."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import onnx_ir as ir

from ortune.core.errors import BadModel
from ortune.core.wording import count
from ortune.model.io import file
from ortune.runtimes.torch.export import Interface

_SYMBOL = re.compile(r"[A-Za-z_]\w*")


def rewritten(draft: Path, asked: Interface, out: Path) -> tuple[int, tuple[str, ...]]:
    """Write a draft with the names asked for; return its nodes and the inputs that it takes.

    Raises:
        BadModel: It cannot be read, or has another number of outputs.
    """
    model = file.load(draft)
    outputs = model.graph.outputs
    if len(outputs) != len(asked.outputs):
        raise BadModel(
            f"it gives {count(len(outputs), 'output')}, PyTorch {len(asked.outputs)}",
            fix="return each tensor once",
        )
    for value, name in zip(outputs, asked.outputs, strict=True):
        if value.name != name:
            value.name = name
    _rename_dims(model, asked)
    file.save(model, out)
    nodes = sum(1 for _ in model.graph.all_nodes())
    return nodes, tuple(str(value.name) for value in model.graph.inputs)


def _rename_dims(model: ir.Model, asked: Interface) -> None:
    """Give dynamic dimensions their names, also in the expressions that are made of them."""
    wanted: dict[str, str] = {}
    for value in model.graph.inputs:
        for axis, dim in asked.axes(str(value.name)).items():
            held = value.shape[axis] if value.shape is not None else None
            if isinstance(held, ir.SymbolicDim) and held.value and held.value != dim:
                wanted[held.value] = dim
    if not wanted:
        return
    every = [*model.graph.inputs, *model.graph.outputs]
    every += [value for node in model.graph.all_nodes() for value in node.outputs]
    for value in every:
        if value.shape is not None and any(isinstance(one, ir.SymbolicDim) for one in value.shape):
            dims = [one if isinstance(one, int) else one.value for one in value.shape]
            value.shape = ir.Shape([_renamed(dim, wanted) for dim in dims])


def _renamed(dim: int | str | None, wanted: Mapping[str, str]) -> int | str | None:
    if not isinstance(dim, str):
        return dim
    return _SYMBOL.sub(lambda found: wanted.get(found[0], found[0]), dim)
