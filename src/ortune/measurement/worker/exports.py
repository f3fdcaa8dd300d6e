"""Tasks that load a PyTorch module: what it takes, how it answers, and its ONNX file."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ortune.backends.runtimes.torch import export
from ortune.backends.runtimes.torch.export import Interface
from ortune.backends.runtimes.torch.module import (
    ModuleSource,
    folder_inputs,
    folder_sizes,
    is_folder,
    load,
)
from ortune.core.errors import BadModel, gist
from ortune.core.hardware.cpus import effective_cpus
from ortune.core.plugins import codec, user_function
from ortune.data import stream
from ortune.measurement.worker.workbench import Workbench


def describe_module(bench: Workbench, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a module takes, as far as it says so.

    Its parameters by name; of a model of transformers its inputs and sizes of their dimensions;
    of one with ``example_inputs`` (a mapping, or a tensor a parameter) theirs.
    """
    source = codec.decode(ModuleSource, dict(given))
    module, keywords = load(source)
    names = [name for name in keywords if name not in ("args", "kwargs")]
    if is_folder(source.source):
        specs = [codec.encode(one) for one in folder_inputs(module)]
        return {"parameters": names, "inputs": specs, "sizes": folder_sizes(module)}
    order = list(inspect.signature(module.forward).parameters)
    held = getattr(module, "example_inputs", None) or {}
    if not isinstance(held, Mapping):
        every = held if isinstance(held, (tuple, list)) else (held,)
        held = dict(zip(order, every, strict=False))
    specs = [
        {"name": name, "dtype": str(value.numpy().dtype), "shape": list(value.shape)}
        for name, value in held.items()
    ]
    return {"parameters": order, "inputs": specs, "sizes": {}}


def answer_module(
    bench: Workbench,
    given: Mapping[str, Any],
    names: Sequence[str],
    feeds: Sequence[str],
    enough: int,
    out: str,
) -> dict[str, Any]:
    """Run a module eagerly on streams of samples, until it took as many streams as are enough.

    The answers to ``feeds[i]`` are ``OUT/i.stream``, the module's weights ``OUT/state.pt``.

    Returns:
        outputs: Names of its tensors.
        taken: Places of the streams that it ran.
        refused: Place -> why it did not run.

    Raises:
        BadModel: It does not run the first stream.
    """
    import torch

    torch.set_num_threads(effective_cpus())
    module, keywords = load(codec.decode(ModuleSource, dict(given)))
    outputs: list[str] = []
    taken: list[int] = []
    refused: dict[str, str] = {}
    for place, path in enumerate(feeds):
        if len(taken) == enough:
            break
        try:
            rows = [
                export.answers(module, keywords, names, sample)
                for sample in stream.Stream(Path(path))
            ]
        except Exception as error:
            reason = gist(user_function.reason(error))
            if place == 0:
                raise BadModel(
                    f"the module does not run: {reason}",
                    fix="check --input: names, shapes and types, and --range of integers",
                ) from error
            refused[str(place)] = reason
            continue
        outputs = outputs or _names([name for name, _ in rows[0]])
        made = ([value.numpy() for _, value in row] for row in rows)
        named = (dict(zip(outputs, row, strict=True)) for row in made)
        stream.write(Path(out) / f"{place}.stream", named)
        taken.append(place)
        bench.progress("running PyTorch", len(taken), enough)
    torch.save(module.state_dict(), Path(out) / "state.pt")
    return {"outputs": outputs, "taken": taken, "refused": refused}


def _names(found: Sequence[str]) -> list[str]:
    """Name the tensors that no mapping names; a name that is there twice gets its place."""
    if len(found) == 1:
        return [found[0] or "output"]
    names: list[str] = []
    for place, name in enumerate(found):
        plain = name if name and not name.isdigit() else f"output_{place}"
        names.append(f"{plain}_{place}" if plain in names else plain)
    return names


def export_module(
    bench: Workbench,
    given: Mapping[str, Any],
    asked: Mapping[str, Any],
    exporter: str,
    feeds: str,
    out: str,
    opset: int | None = None,
) -> dict[str, Any]:
    """Write a module as ONNX, traced with the first sample of a stream."""
    source = codec.decode(ModuleSource, dict(given))
    signature = codec.decode(Interface, dict(asked))
    sample = stream.Stream(Path(feeds))[0]
    export.export(exporter, source, signature, sample, Path(out), opset)
    return {}
