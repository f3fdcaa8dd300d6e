"""A model's ``config.pbtxt``: what of a plan it says, and the plan that it says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from typing import Any

from ortune.backends.cpu import Cpu
from ortune.bundle.source import Source
from ortune.core.errors import BadModel
from ortune.core.facts import TensorSpec
from ortune.deployment.threads import threads
from ortune.deployment.triton.options import ServerOptions
from ortune.deployment.triton.text import Word
from ortune.engine.manifest import Signature
from ortune.protocol import datatypes

MODEL = "model.onnx"

_LEVELS = {"all": 0, "basic": -1, "extended": 1, "disabled": 2}
"""Graph level -> Triton's number; 0 is its default, all."""
_INITIALIZERS = "session.use_device_allocator_for_initializers"
"""The one session key that the backend passes on."""
_SAID = ("threads", "level", "parallel", "inter_threads", "arena", "memory_pattern", "config")
"""Fields of a CPU plan that a configuration can say."""
_REWRITING = ("disable", "fast_gelu", "cast_chains", "nbits_block")
"""Fields that act when the graph is rewritten: they hold in a graph that is stored rewritten."""


def refusal(source: Source, options: ServerOptions) -> str:
    """Return why Triton's onnxruntime backend cannot run a plan as measured; empty if it can."""
    backend = source.backend
    if not isinstance(backend, Cpu):
        return f"Triton's onnxruntime backend does not run '{backend.name()}'"
    if not options.carried.onnxruntime:
        return f"which onnxruntime Triton {options.release} carries is not known here"
    if backend.custom_ops:
        return "its libraries of custom operators have no place that holds on every server"
    plain = Cpu()
    held = (*_SAID, *_REWRITING) if options.offline else _SAID
    lost = [
        one.name
        for one in fields(backend)
        if one.name not in held and getattr(backend, one.name) != getattr(plain, one.name)
    ]
    lost += [text for text in backend.config if not text.startswith(f"{_INITIALIZERS}=")]
    if not lost:
        return next(unfit(source, options.batch), "")
    how = "; offline=true stores the rewritten graph" if lost[0] in _REWRITING else ""
    return f"Triton has no setting for {', '.join(lost)}{how}"


def unfit(source: Source, batch: int) -> Iterator[str]:
    """Yield why inputs and outputs cannot be described to Triton."""
    for name, signature in source.manifest.signatures.items():
        for spec in (*signature.inputs, *signature.outputs):
            shown = f"'{spec.name}' of {name or 'the model'}"
            if not datatypes.known(spec.dtype):
                yield f"Triton has no type for {shown}, {spec.dtype or 'of unknown type'}"
            elif spec.shape is None:
                yield f"the rank of {shown} is unknown"
            elif any(dim == 0 for dim in spec.shape):
                yield f"{shown} has a dimension of size 0"
            elif batch and (not spec.shape or isinstance(spec.shape[0], int)):
                yield f"the first dimension of {shown} is fixed: calls cannot be stacked"


def onnxruntime(
    label: str, source: Source, signature: Signature, options: ServerOptions
) -> dict[str, Any]:
    """Return the configuration of a CPU plan's model for the onnxruntime backend."""
    backend = source.backend
    assert isinstance(backend, Cpu)
    held = common(label, "onnxruntime", MODEL, signature, options)
    level = _LEVELS["disabled" if options.offline else backend.level]
    optimization: dict[str, Any] = {"graph": {"level": level}} if level else {}
    if options.accelerator:
        accelerator = {
            "name": options.accelerator,
            "parameters": [{"key": k, "value": v} for k, v in options.accelerated.items()],
        }
        optimization["execution_accelerators"] = {"gpu_execution_accelerator": [accelerator]}
    if optimization:
        held["optimization"] = optimization
    parameters = {
        "intra_op_thread_count": str(threads(source)),
        "execution_mode": str(int(backend.parallel)),
        "enable_mem_arena": str(int(backend.arena)),
        "enable_mem_pattern": str(int(backend.memory_pattern)),
    }
    if backend.parallel:
        parameters["inter_op_thread_count"] = str(backend.inter_threads or threads(source))
    parameters |= dict(text.split("=", 1) for text in backend.config)
    return held | {"parameters": pairs(parameters)}


def common(
    label: str, backend: str, file: str, signature: Signature, options: ServerOptions
) -> dict[str, Any]:
    """Return what every backend's configuration has: inputs, outputs, instances, batching."""
    held: dict[str, Any] = {
        "name": label,
        "backend": backend,
        "max_batch_size": options.batch,
        "default_model_filename": file,
        "input": [_tensor(spec, options.batch) for spec in signature.inputs],
        "output": [_tensor(spec, options.batch) for spec in signature.outputs],
    }
    held["instance_group"] = list(_groups(options))
    if options.batch:
        held["dynamic_batching"] = _batching(options)
    return held


def _groups(options: ServerOptions) -> Iterator[dict[str, Any]]:
    """Yield Triton's instance groups: GPUs with as many instances each share one."""
    gpus: dict[int, list[int]] = {}
    for one in options.groups:
        if one.kind == "gpu":
            gpus.setdefault(one.count, []).append(one.index)
        else:
            yield {"count": one.count, "kind": Word("KIND_CPU")}
    for count, numbers in gpus.items():
        yield {"count": count, "kind": Word("KIND_GPU"), "gpus": numbers}


def pairs(parameters: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return parameters as the entries of Triton's map."""
    return [{"key": k, "value": {"string_value": v}} for k, v in parameters.items()]


def _batching(options: ServerOptions) -> dict[str, Any]:
    policy: dict[str, Any] = {"timeout_action": Word("REJECT")} if options.timeout_us else {}
    if options.timeout_us:
        policy["default_timeout_microseconds"] = options.timeout_us
    if options.queue:
        policy["max_queue_size"] = options.queue
    return {
        "preferred_batch_size": list(options.preferred),
        "max_queue_delay_microseconds": options.delay_us,
        **({"default_queue_policy": policy} if policy else {}),
    }


def _tensor(spec: TensorSpec, batch: int) -> dict[str, Any]:
    """Describe an input or output; where calls are stacked, without the first dimension."""
    shape = spec.shape or ()
    dims = [dim if isinstance(dim, int) else -1 for dim in (shape[1:] if batch else shape)]
    held = {"name": spec.name, "data_type": data_type(spec.dtype), "dims": dims or [1]}
    return held if dims else held | {"reshape": {"shape": []}}


def data_type(dtype: str) -> Word:
    """Return Triton's name of a type: the protocol's, but for text."""
    return Word(f"TYPE_{datatypes.datatype(dtype).replace('BYTES', 'STRING')}")


def parameters(config: Mapping[str, list[Any]]) -> dict[str, str]:
    """Return the parameters of a configuration that was read."""
    return {
        str(one["key"][0]): str(one["value"][0]["string_value"][0])
        for one in config.get("parameters", [])
    }


def configured(config: Mapping[str, list[Any]]) -> Cpu:
    """Return the settings that Triton's onnxruntime backend takes from a configuration.

    What it does not say has the backend's default; 0 threads are as many as the CPU has cores.

    Raises:
        BadModel: It is none of that backend's.
    """
    try:
        given = parameters(config)
        graph = config.get("optimization", [{}])[0].get("graph", [{}])[0]
        levels = {number: name for name, number in _LEVELS.items()}
        parallel = given.get("execution_mode", "0") == "1"
        free = (f"{_INITIALIZERS}={given[_INITIALIZERS]}",) if _INITIALIZERS in given else ()
        return Cpu(
            threads=int(given.get("intra_op_thread_count", "0")),
            level=levels[graph.get("level", [0])[0]],  # type: ignore[arg-type]
            parallel=parallel,
            inter_threads=int(given.get("inter_op_thread_count", "0")) if parallel else 0,
            arena=given.get("enable_mem_arena", "1") == "1",
            memory_pattern=given.get("enable_mem_pattern", "1") == "1",
            config=free,
        )
    except (KeyError, IndexError, ValueError, TypeError) as error:
        raise BadModel(f"config.pbtxt is incomplete: {error!r}", fix="pack again") from None


def demand_tuned(source: Source, said: Cpu, options: ServerOptions) -> None:
    """Refuse a configuration that says other settings than were tuned.

    Raises:
        BadModel: It does: a server would force one thread, for instance.
    """
    tuned = source.backend
    assert isinstance(tuned, Cpu)
    wanted = replace(tuned, threads=threads(source))
    if tuned.parallel:
        wanted = replace(wanted, inter_threads=tuned.inter_threads or threads(source))
    else:
        wanted = replace(wanted, inter_threads=0)
    if options.offline:
        plain = Cpu()
        held = {name: getattr(plain, name) for name in _REWRITING}
        wanted = replace(wanted, level="disabled", **held)
    for one in fields(wanted):
        here, there = getattr(wanted, one.name), getattr(said, one.name)
        if here != there:
            raise BadModel(
                f"config.pbtxt has {one.name}={there}, and the plan was tuned with {here}",
                fix="pack again",
            )
