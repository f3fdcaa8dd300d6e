"""The exporters of PyTorch and transformers, each a function that writes one ONNX file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from ortune.core.session import Tensors
from ortune.runtimes.torch import folder
from ortune.runtimes.torch.module import ModuleSource, load, tensors

_INSIDE = 1_500_000_000
"""Bytes of weights up to which they are in the model file: protobuf ends at 2 GB."""


@dataclass(frozen=True)
class Interface:
    """What an exported file takes and gives.

    Attributes:
        inputs: Names, in order.
        outputs: Names, in order.
        dynamic: Input, axis and the name of the dimension.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...] = ()
    dynamic: tuple[tuple[str, int, str], ...] = ()

    def axes(self, name: str) -> dict[int, str]:
        """Return the dynamic axes of an input with their names."""
        return {axis: dim for given, axis, dim in self.dynamic if given == name}


def exporters(source: str) -> tuple[str, ...]:
    """Return the names of the exporters that a module may be given to."""
    own = ("transformers",) if folder.is_folder(source) else ()
    return (*own, "dynamo", "torchscript")


def export(
    how: str, given: ModuleSource, asked: Interface, sample: Tensors, out: Path, opset: int | None
) -> None:
    """Write a module as ONNX; whatever the exporter raises passes.

    Args:
        how: One of `exporters`.
        given: The module.
        asked: Names and dynamic dimensions.
        sample: The inputs that it is traced with.
        out: The file.
        opset: Of the default domain; the exporter's own choice without.
    """
    import torch

    module, keywords = load(given)
    example = {name: tensor(sample[name]) for name in asked.inputs}
    with torch.no_grad():
        _EXPORTERS[how](_Task(module, keywords, asked, example, out, opset))


@dataclass(frozen=True)
class _Task:
    module: Any
    keywords: set[str]
    asked: Interface
    example: dict[str, Any]
    out: Path
    opset: int | None

    @property
    def wrapped(self) -> Any:
        return flat(self.module, self.keywords, self.asked.inputs)

    @property
    def large(self) -> bool:
        """Whether the weights go beside the file."""
        held = self.module.state_dict().values()
        return bool(sum(t.numel() * t.element_size() for t in held) > _INSIDE)


def _dynamo(task: _Task) -> None:
    import torch

    axes = tuple(task.asked.axes(name) or None for name in task.asked.inputs)
    program = torch.onnx.export(
        task.wrapped,
        tuple(task.example.values()),
        input_names=list(task.asked.inputs),
        output_names=list(task.asked.outputs),
        dynamic_shapes=(axes,) if task.asked.dynamic else None,
        opset_version=task.opset,
        dynamo=True,
        verbose=False,
    )
    program.save(task.out, external_data=task.large)


def _torchscript(task: _Task) -> None:
    import torch

    torch.onnx.export(
        task.wrapped,
        tuple(task.example.values()),
        str(task.out),
        input_names=list(task.asked.inputs),
        output_names=list(task.asked.outputs),
        dynamic_axes={name: task.asked.axes(name) for name in task.asked.inputs},
        opset_version=task.opset,
        dynamo=False,
    )


def _transformers(task: _Task) -> None:
    import torch
    from transformers.exporters.exporter_onnx import OnnxConfig, OnnxExporter

    shapes = {
        name: dict.fromkeys(task.asked.axes(name), torch.export.Dim.DYNAMIC)
        for name in task.asked.inputs
    }
    config = OnnxConfig(dynamic_shapes=shapes, opset_version=task.opset)
    found = OnnxExporter().export(task.module, dict(task.example), config=config)
    OnnxExporter.save_program(found.program, task.out)


_Exporter: TypeAlias = Callable[[_Task], None]
_EXPORTERS: Mapping[str, _Exporter] = {
    "dynamo": _dynamo,
    "torchscript": _torchscript,
    "transformers": _transformers,
}


def flat(module: Any, keywords: set[str], names: Sequence[str]) -> Any:
    """Return a module of tensors in order that answers with a tuple of them.

    Args:
        module: Called by keywords where it has all names, else in their order.
        keywords: The names that it takes as such.
        names: Of the inputs.
    """
    import torch

    by_name = set(names) <= keywords

    class Flat(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = module

        def forward(self, *given: Any) -> Any:
            made = (
                self.model(**dict(zip(names, given, strict=True)))
                if by_name
                else self.model(*given)
            )
            return tuple(value for _, value in tensors(made))

    return Flat().eval()


def answers(
    module: Any, keywords: set[str], names: Sequence[str], sample: Tensors
) -> list[tuple[str, Any]]:
    """Run a module eagerly; return its tensors with the keys on the way to them."""
    import torch

    given = {name: tensor(sample[name]) for name in names}
    with torch.inference_mode():
        by_name = set(names) <= keywords
        made = module(**given) if by_name else module(*given.values())
        return [
            (name, value.float() if value.dtype == torch.bfloat16 else value)
            for name, value in tensors(made)
        ]


def tensor(array: Any) -> Any:
    """Return a tensor of its own for an array that may be read-only."""
    import torch

    return torch.from_numpy(array.copy()).reshape(array.shape)
