"""A Triton model repository: a folder a model, with its configuration, version and warm-up."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from ortune.backends.cpu import Cpu
from ortune.bundle.source import Source
from ortune.bundle.target import Replay
from ortune.core.backend import Backend
from ortune.core.capabilities import HERE
from ortune.core.errors import BackendMissing, BadModel
from ortune.core.hardware.cpus import effective_cpus
from ortune.core.plugins import stored
from ortune.deployment.replay import by_worker, environment
from ortune.deployment.triton import config, openvino, text
from ortune.deployment.triton.options import ServerOptions
from ortune.measurement.job import WorkerJob
from ortune.measurement.process import WorkerFailed, ask_once

CONFIG = "config.pbtxt"
VERSION = "1"
_WARM_UP = "warmup"


def refusal(source: Source, options: ServerOptions) -> str:
    """Return why a release of Triton cannot run a plan as it was measured; empty when it can."""
    if openvino.is_for(source):
        return openvino.refusal(source, options)
    return config.refusal(source, options)


def write(source: Source, folder: Path, options: ServerOptions, *, replayed: bool) -> None:
    """Write the repository into a folder.

    Args:
        replayed: Whether it will be run: the release's runtime must be there then.

    Raises:
        BackendMissing: The environment with the release's runtime is not there.
        BadModel: A model does not convert.
    """
    place = _environment(source, options, demanded=replayed or options.offline)
    for name, label in source.labels.items():
        home = folder / label / VERSION
        home.mkdir(parents=True)
        signature = source.manifest.signatures[name]
        if openvino.is_for(source):
            openvino.write(source, name, home, place)
            held = openvino.config(label, source, signature, options)
        else:
            _model(source, name, home, options, place)
            held = config.onnxruntime(label, source, signature, options)
        if options.warm_up and name in source.plan.golden:
            held["model_warmup"] = [_warm_up(source, name, folder / label, options.batch)]
        (folder / label / CONFIG).write_text(text.write(held), encoding="ascii")


def replay(source: Source, folder: Path, options: ServerOptions) -> Replay:
    """Run the models of a repository as its configurations say, under the release's runtime.

    Raises:
        BadModel: A configuration says other settings than were tuned, or a model does not run.
        BackendMissing: The environment is not there.
    """
    place = _environment(source, options)
    said: list[Backend] = []
    files: dict[str, Path] = {}
    for name, label in source.labels.items():
        read = text.read((folder / label / CONFIG).read_text(encoding="ascii"))
        files[name] = folder / label / VERSION / str(_one(read, "default_model_filename"))
        if openvino.is_for(source):
            said.append(openvino.configured(source, read))
        else:
            settings = config.configured(read)
            config.demand_tuned(source, settings, options)
            said.append(settings)
    by = f"{runtime(source)} {options.carried.demand(runtime(source), options.release)}"
    return by_worker(source, files, said[0], by, environment=place)


def runtime(source: Source) -> str:
    """Return the distribution that stands for the backend which Triton runs a plan on."""
    return "openvino" if openvino.is_for(source) else "onnxruntime"


def unrun(options: ServerOptions, replay: Replay | None) -> str:
    """Say what of a repository was not run here."""
    parts = [f"Triton {options.release} itself, its batching and its queues"]
    if replay is None:
        parts.append("the models under its runtime (not replayed)")
    if options.unmeasured:
        parts.append(f"{options.unmeasured}, on which nothing was measured either")
    return "; ".join(parts)


def start(options: ServerOptions) -> str:
    """Return the command that serves a repository."""
    gpus = "--gpus all " if options.numbers else ""
    return (
        f"docker run --rm {gpus}-p 8000:8000 -p 8001:8001 -v $PWD:/models "
        f"nvcr.io/nvidia/tritonserver:{options.release}-py3 tritonserver "
        "--model-repository=/models"
    )


def _environment(source: Source, options: ServerOptions, *, demanded: bool = True) -> str:
    """Return where the release's runtime is; this process's own place where it need not be.

    Raises:
        BackendMissing: It is not there, and it is needed.
        BadSettings: The runtime is not known.
    """
    distribution = runtime(source)
    version = options.carried.demand(distribution, options.release)
    name, fix = environment(distribution, version)
    if fix is None:
        return name
    if demanded:
        raise BackendMissing(
            f"Triton {options.release} carries {distribution} {version}, which is not here to run "
            "the package with",
            fix=f"{fix}, or write it without: triton(replayed=false)",
        )
    return HERE


def _model(source: Source, name: str, home: Path, options: ServerOptions, place: str) -> None:
    """Copy a model and its external data, or store it as the release's runtime rewrites it."""
    if not options.offline:
        shutil.copyfile(source.models[name], home / config.MODEL)
        for location, file in source.external(name).items():
            if location.partition("/")[0].casefold() == config.MODEL:
                raise BadModel(
                    f"its weights are in '{location}', and the model has that name in Triton",
                    fix="rename the file of weights",
                )
            (home / location).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, home / location)
        return
    backend, _ = stored.lowered(source.backend, effective_cpus())
    assert isinstance(backend, Cpu)
    with TemporaryDirectory(prefix="ortune-", ignore_cleanup_errors=True) as temporary:
        root = Path(temporary).resolve()
        out = str((home / config.MODEL).resolve())
        job = WorkerJob({"": source.models[name].resolve()}, backend, {}, root, environment=place)
        try:
            ask_once(job, ("optimize", {"out": out}))
        except WorkerFailed as error:
            raise BadModel(
                f"the release's onnxruntime does not rewrite the model: {error.failure.reason}",
                fix=error.failure.fix or "leave offline=true out",
            ) from None


def _warm_up(source: Source, name: str, home: Path, batch: int) -> dict[str, Any]:
    """Write a golden sample as the files of a warm-up, and return its entry."""
    feeds, _ = next(iter(source.feeds(name)))
    (home / _WARM_UP).mkdir()
    inputs = []
    for index, (tensor, array) in enumerate(feeds.items()):
        given = np.asarray(array)
        given = given[:1] if batch else given
        dims = list(given.shape[1:] if batch else given.shape) or [1]
        value: dict[str, Any] = {"data_type": _type(source, name, tensor), "dims": dims}
        if given.dtype.kind in "USO":
            value["zero_data"] = True
        else:
            value["input_data_file"] = f"input{index}"
            (home / _WARM_UP / f"input{index}").write_bytes(np.ascontiguousarray(given).tobytes())
        inputs.append({"key": tensor, "value": value})
    return {"name": "golden sample", "batch_size": 1 if batch else 0, "inputs": inputs}


def _type(source: Source, name: str, tensor: str) -> text.Word:
    specs = source.manifest.signatures[name].inputs
    return config.data_type(next(one.dtype for one in specs if one.name == tensor))


def _one(read: Mapping[str, Sequence[Any]], field: str) -> Any:
    values = read.get(field) or [None]
    return values[0]
