"""A module as a person names it: a factory, a saved program or a folder, with its weights."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ortune.core.errors import BadModel, BadSettings, gist, with_article
from ortune.core.plugins import user_function
from ortune.runtimes.torch import checkpoint, folder

SCRIPTS = (".pt", ".pth", ".ts", ".jit")
"""Endings of TorchScript."""
SEED = 0
"""Before a factory is called: weights that nobody gives are the same in every process."""


@dataclass(frozen=True)
class ModuleSource:
    """Where a module and its weights are.

    Attributes:
        source: ``pkg.module:factory``, a program of torch.export (.pt2), TorchScript (.pt) or a
            folder of transformers.
        weights: Checkpoint for a factory's module; empty where it brings its own.
        key: Where the state dict is in the checkpoint; see `checkpoint.read`.
        prefix: Taken from the front of every name in it.
        unsafe: The checkpoint may run code.
    """

    source: str
    weights: str = ""
    key: str = ""
    prefix: str = ""
    unsafe: bool = False


def is_source(text: str) -> bool:
    """Say whether a text names a module of PyTorch rather than a model file."""
    program = text.endswith((".pt2", *SCRIPTS))
    return program or user_function.is_function(text) or folder.is_folder(text)


def load(given: ModuleSource) -> tuple[Any, set[str]]:
    """Return the module in evaluation mode, and the names that it takes as keywords.

    Raises:
        BadSettings: `source` is none of the four kinds.
        BadModel: It does not load.
    """
    import torch

    source = given.source
    if not source:
        raise BadSettings("torch is given no module", fix="write torch(source=pkg.module:factory)")
    if user_function.is_function(source):
        torch.manual_seed(SEED)
        module = user_function.function(source, "a function that makes a module")()
        if not isinstance(module, torch.nn.Module):
            raise BadModel(
                f"{source} returns {with_article(type(module).__name__)}, not a torch.nn.Module",
                fix="return the module itself",
            )
        _fill(module, given)
        return module.eval(), set(inspect.signature(module.forward).parameters)
    if folder.is_folder(source):
        module = folder.load(source)
        _fill(module, given)
        return module, set(inspect.signature(module.forward).parameters)
    if given.weights:
        raise BadSettings(
            f"{source} holds its own weights", fix="leave weights= out, or give a factory"
        )
    return _file(Path(source))


def _fill(module: Any, given: ModuleSource) -> None:
    if given.weights:
        path = Path(given.weights)
        state = checkpoint.read(path, given.key, given.prefix, unsafe=given.unsafe)
        checkpoint.fill(module, path, state)


def _file(path: Path) -> tuple[Any, set[str]]:
    import torch

    if path.suffix != ".pt2" and path.suffix not in SCRIPTS:
        raise BadSettings(
            f"cannot read '{path}' as a module",
            fix="give pkg.module:factory, a torch.export program (.pt2) or TorchScript (.pt)",
        )
    if not path.is_file():
        raise BadModel(f"no file {path}", fix="check the path in torch(source=...)")
    try:
        if path.suffix == ".pt2":
            program = torch.export.load(path)
            # An exported program takes as keywords exactly what it was exported with as such.
            return program.module(), set(program.call_spec.in_spec.child(1).context)
        script = torch.jit.load(path, map_location="cpu").eval()
        return script, {argument.name for argument in script.forward.schema.arguments}
    except Exception as error:
        raise BadModel(
            f"torch does not load {path.name}: {gist(user_function.reason(error))}",
            fix="a state dict is given as torch(source=pkg.module:factory, weights=...)",
        ) from error


def tensors(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the tensors in a module's answer in order, each with the keys on the way to it."""
    import torch

    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from tensors(item, f"{name}.{key}" if name else str(key))
    elif isinstance(value, (tuple, list)):
        for index, item in enumerate(value):
            yield from tensors(item, f"{name}.{index}" if name else "")
