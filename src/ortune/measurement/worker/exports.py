"""Tasks that load a PyTorch module: what it takes, how it answers, and its ONNX file."""

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
    load_module,
)
from ortune.core.errors import BadModel, summarize_error
from ortune.core.hardware.cpus import effective_cpus
from ortune.core.plugins import codec, user_function
from ortune.core.session import Tensors
from ortune.data import stream
from ortune.data.sequences import generation
from ortune.data.sequences.rolling import Run
from ortune.measurement.worker.workbench import Workbench


def describe_module(bench: Workbench, module_source: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a module takes, as far as it says so.

    Its parameters by name; of a model of transformers its inputs and sizes of their dimensions;
    of one with ``example_inputs`` (a mapping, or a tensor a parameter) theirs.
    """
    source = codec.decode(ModuleSource, dict(module_source))
    module, keywords = load_module(source)
    names = [name for name in keywords if name not in ("args", "kwargs")]
    if is_folder(source.source):
        specs = [codec.encode(spec) for spec in folder_inputs(module)]
        return {"parameters": names, "inputs": specs, "sizes": folder_sizes(module)}
    order = list(inspect.signature(module.forward).parameters)
    examples = getattr(module, "example_inputs", None) or {}
    if not isinstance(examples, Mapping):
        tensors = examples if isinstance(examples, (tuple, list)) else (examples,)
        examples = dict(zip(order, tensors, strict=False))
    specs = [
        {"name": name, "dtype": str(value.numpy().dtype), "shape": list(value.shape)}
        for name, value in examples.items()
    ]
    return {"parameters": order, "inputs": specs, "sizes": {}}


def answer_module(
    bench: Workbench,
    module_source: Mapping[str, Any],
    names: Sequence[str],
    feeds: Sequence[str],
    enough: int,
    out: str,
) -> dict[str, Any]:
    """Run a module eagerly on streams of samples, until it took as many streams as are enough.

    The answers to ``feeds[i]`` are ``OUT/i.stream``, the module's weights ``OUT/state.pt``.

    Returns:
        outputs: Names of its tensors.
        completed: Places of the streams that it ran.
        refused: Place -> why it did not run.

    Raises:
        BadModel: It does not run the first stream.
    """
    import torch

    torch.set_num_threads(effective_cpus())
    module, keywords = load_module(codec.decode(ModuleSource, dict(module_source)))
    outputs: list[str] = []
    completed: list[int] = []
    refused: dict[str, str] = {}
    for place, path in enumerate(feeds):
        if len(completed) == enough:
            break
        try:
            rows = [
                export.run_eagerly(module, keywords, names, sample)
                for sample in stream.Stream(Path(path))
            ]
        except Exception as error:
            reason = summarize_error(user_function.describe_error(error))
            if place == 0:
                raise BadModel(
                    f"the module does not run: {reason}",
                    fix="check --input: names, shapes and types, and --range of integers",
                ) from error
            refused[str(place)] = reason
            continue
        if (
            not outputs
        ):  # a tensor that no mapping names, or whose name is there twice, by its place
            for at, (name, _) in enumerate(rows[0]):
                plain = name if name and not name.isdigit() else f"output_{at}"
                outputs.append(f"{plain}_{at}" if plain in outputs else plain)
            if len(outputs) == 1:
                outputs = [rows[0][0][0] or "output"]
        arrays = ([value.numpy() for _, value in row] for row in rows)
        named = (dict(zip(outputs, row, strict=True)) for row in arrays)
        stream.write_stream(Path(out) / f"{place}.stream", named)
        completed.append(place)
        bench.report_progress("running PyTorch", len(completed), enough)
    torch.save(module.state_dict(), Path(out) / "state.pt")
    return {"outputs": outputs, "taken": completed, "refused": refused}


def export_module(
    bench: Workbench,
    module_source: Mapping[str, Any],
    interface: Mapping[str, Any],
    *,
    exporter: str,
    feeds: str,
    out: str,
    opset: int | None = None,
) -> dict[str, Any]:
    """Write a module as ONNX, traced with the first sample of a stream."""
    source = codec.decode(ModuleSource, dict(module_source))
    signature = codec.decode(Interface, dict(interface))
    sample = stream.Stream(Path(feeds))[0]
    export.run_exporter(exporter, source, signature, sample, Path(out), opset)
    return {}


def write_answers(
    bench: Workbench,
    parts: Sequence[Mapping[str, Any]],
    *,
    feeds: str,
    start: int,
    ends: Sequence[int],
    count: int,
) -> dict[str, Any]:
    """Have the encoder and the decoder of a folder write the likeliest tokens for every sample."""
    import torch

    torch.set_num_threads(effective_cpus())
    encode, decode = (_make_run(codec.decode(ModuleSource, dict(part))) for part in parts)
    answers: list[list[int]] = []
    samples = stream.Stream(Path(feeds))
    for sample in samples:
        decoder = generation.open_decoder(encode, decode, sample)
        answers.append(generation.write_answer(decoder, start, count, frozenset(ends)))
        bench.report_progress("writing answers by PyTorch", len(answers), len(samples))
    return {"answers": answers}


def _make_run(source: ModuleSource) -> Run:
    """Return what runs a part of a folder once."""
    module, keywords = load_module(source)
    names = [spec.name for spec in folder_inputs(module)]

    def run(fed: Tensors) -> dict[str, Any]:
        answer = export.run_eagerly(module, keywords, names, fed)
        return {name: value.numpy() for name, value in answer}

    return run
