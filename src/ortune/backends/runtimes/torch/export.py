"""The exporters of PyTorch and transformers."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ortune.backends.runtimes.torch.module import ModuleSource, is_folder, load_module, walk_answer
from ortune.core import hub
from ortune.core.session import Tensors

_INSIDE = 1_500_000_000
"""Bytes of weights up to which they are in the model file: protobuf ends at 2 GB."""


@dataclass(frozen=True)
class Interface:
    """What an exported file takes and gives."""

    inputs: tuple[str, ...]  # names, in order
    outputs: tuple[str, ...] = ()  # names, in order
    dynamic: tuple[tuple[str, int, str], ...] = ()  # input, axis and the name of the dimension

    def list_dynamic_axes(self, name: str) -> dict[int, str]:
        """Return the dynamic axes of an input with their names."""
        return {axis: dim for input_name, axis, dim in self.dynamic if input_name == name}


def list_exporters(source: str, part: str = "all") -> tuple[str, ...]:
    """Return the names of the exporters that a module, or a part of one, may be given to."""
    folder = hub.find_folder(source) if is_folder(source) else None
    # That of transformers has no names for a cache.
    if folder is None or part != "all" or folder.task == hub.GENERATION:
        return ("dynamo", "torchscript")
    return ("transformers", "dynamo", "torchscript")


def run_exporter(
    how: str,
    module_source: ModuleSource,
    interface: Interface,
    sample: Tensors,
    out: Path,
    opset: int | None,
) -> None:
    """Write a module as ONNX; whatever the exporter raises passes.

    Args:
        how: One of `list_exporters`.
        module_source: The module.
        interface: Names and dynamic dimensions.
        sample: The inputs that it is traced with.
        out: The file.
        opset: Of the default domain; the exporter's own choice without.
    """
    import torch

    module, keywords = load_module(module_source)
    example = {name: copy_to_tensor(sample[name]) for name in interface.inputs}
    shared = {
        "input_names": list(interface.inputs),
        "output_names": list(interface.outputs),
        "opset_version": opset,
    }
    with torch.no_grad():
        if how == "transformers":  # they write a model of their own as their exporter knows it
            from transformers.exporters.exporter_onnx import OnnxConfig, OnnxExporter

            shapes = {
                name: dict.fromkeys(interface.list_dynamic_axes(name), torch.export.Dim.DYNAMIC)
                for name in interface.inputs
            }
            config = OnnxConfig(dynamic_shapes=shapes, opset_version=opset)
            OnnxExporter.save_program(
                OnnxExporter().export(module, example, config=config).program, out
            )
        elif how == "dynamo":
            axes = tuple(interface.list_dynamic_axes(name) or None for name in interface.inputs)
            program = torch.onnx.export(
                flatten_module(module, keywords, interface.inputs),
                tuple(example.values()),
                dynamic_shapes=(axes,) if interface.dynamic else None,
                dynamo=True,
                verbose=False,
                **shared,
            )
            weights = module.state_dict().values()
            size = sum(weight.numel() * weight.element_size() for weight in weights)
            program.save(out, external_data=size > _INSIDE)
        else:
            torch.onnx.export(
                flatten_module(module, keywords, interface.inputs),
                tuple(example.values()),
                str(out),
                dynamic_axes={
                    name: interface.list_dynamic_axes(name) for name in interface.inputs
                },
                dynamo=False,
                **shared,
            )


def flatten_module(module: Any, keywords: set[str], names: Sequence[str]) -> Any:
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

        def forward(self, *arguments: Any) -> Any:
            if by_name:
                answer = self.model(**dict(zip(names, arguments, strict=True)))
            else:
                answer = self.model(*arguments)
            return tuple(value for _, value in walk_answer(answer))

    return Flat().eval()


def run_eagerly(
    module: Any, keywords: set[str], names: Sequence[str], sample: Tensors
) -> list[tuple[str, Any]]:
    """Run a module eagerly; return its tensors with the keys on the way to them."""
    import torch

    inputs = {name: copy_to_tensor(sample[name]) for name in names}
    with torch.inference_mode():
        by_name = set(names) <= keywords
        answer = module(**inputs) if by_name else module(*inputs.values())
        answers = walk_answer(answer)
        return [(n, v.float() if v.dtype == torch.bfloat16 else v) for n, v in answers]


def copy_to_tensor(array: Any) -> Any:
    """Return a tensor of its own for an array that may be read-only."""
    import torch

    return torch.from_numpy(array.copy()).reshape(array.shape)
