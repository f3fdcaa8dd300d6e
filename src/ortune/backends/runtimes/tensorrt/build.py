"""Building an engine of an ONNX file: strongly typed, so the graph says the precision."""

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ortune.backends.runtimes.tensorrt import library, profiles
from ortune.backends.runtimes.tensorrt.profiles import Profile
from ortune.core.atomic_write import open_draft
from ortune.core.errors import BadModel, BadSettings, OrtuneError, summarize_error

_FIX = "leave this backend out with --on cpu"


@dataclass(frozen=True)
class BuildOptions:
    """How an engine is built.

    Attributes:
        device: Number of the device; the engine runs on devices like it.
        profiles: Ranges of inputs, as `ortune.backends.runtimes.tensorrt.profiles` spells them.
        workspace_mb: Most device memory for a layer's intermediate results; 0 takes all.
        level: How long the builder searches, 0 to 5.
        tf32: Let float32 products round their factors to 10 bits.
        plugins: Shared libraries with plug-ins.
        timing_cache: Folder for kernels' times of earlier builds, a file a version and device.
    """

    device: int = 0
    profiles: tuple[str, ...] = ()
    workspace_mb: int = 0
    level: int = 3
    tf32: bool = False
    plugins: tuple[str, ...] = ()
    timing_cache: Path | None = None


def build_engine(path: Path, options: BuildOptions) -> bytes:
    """Return the serialized engine of an ONNX file.

    Raises:
        BackendMissing: TensorRT or the device is not there.
        BadModel: TensorRT does not take the model; the text has its reason.
        BadSettings: An input is of open size and has no range.
    """
    ranges = profiles.parse_profiles(options.profiles)
    trt = library.import_tensorrt()
    library.CudaDevice(options.device)
    log = library.make_logger(trt)
    builder = trt.Builder(log)
    library.add_plugins(trt, log, builder.get_plugin_registry(), options.plugins)
    typed = 1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
    network = builder.create_network(typed)
    parser = trt.OnnxParser(network, log)
    if not parser.parse_from_file(str(path)):
        reason = "no reason given"
        if parser.num_errors:
            error = parser.get_error(0)
            reason = summarize_error(f"node {error.node()}: {error.desc()}")
        raise BadModel(f"TensorRT does not read {path.name}: {reason}", fix=_FIX)
    config = builder.create_builder_config()
    config.builder_optimization_level = options.level
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    if not options.tf32:  # TensorRT's default is on
        config.clear_flag(trt.BuilderFlag.TF32)
    if options.workspace_mb:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, options.workspace_mb << 20)
    _add_profiles(builder, network, config, ranges)
    kept = cache = None
    if options.timing_cache is not None:
        kept = options.timing_cache / f"timing-{trt.__version__}-{options.device}.cache"
        cache = _start_cache(config, kept)
    log.errors.clear()  # of a cache that did not fit
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise library.make_tensorrt_error(f"TensorRT builds no engine of {path.name}", log, _FIX)
    if kept is not None and cache is not None:  # a full disk costs time and no more
        with suppress(OSError, OrtuneError), open_draft(kept, durable=False) as draft:
            draft.write_bytes(bytes(cache.serialize()))
    return bytes(plan)


def describe_layers(plan: bytes, options: BuildOptions) -> str:
    """Return what TensorRT's inspector says of an engine's layers, as indented JSON.

    Raises:
        BadModel: The engine does not load.
    """
    trt = library.import_tensorrt()
    log = library.make_logger(trt)
    loaded = deserialize_engine(trt, log, plan, options.plugins)
    inspector = loaded.create_engine_inspector()
    text = inspector.get_engine_information(trt.LayerInformationFormat.JSON)
    return json.dumps(json.loads(text), indent=1) + "\n"


def deserialize_engine(trt: Any, log: Any, plan: bytes, plugins: Sequence[str]) -> Any:
    """Return an engine that was read back.

    Raises:
        BadModel: It was built by another version or for another device, or is torn.
    """
    runtime = trt.Runtime(log)
    library.add_plugins(trt, log, runtime.get_plugin_registry(), plugins)
    engine = runtime.deserialize_cuda_engine(plan)
    if engine is None:
        raise library.make_tensorrt_error(
            f"TensorRT {trt.__version__} does not load the engine",
            log,
            "an engine runs only with the TensorRT version and the kind of device that it was "
            "built with: build it again for these",
        )
    return engine


def _add_profiles(builder: Any, network: Any, config: Any, ranges: Sequence[Profile]) -> None:
    """Give the builder every profile, else raise BadSettings; inputs of fixed shape need none."""
    inputs = {tensor.name: tensor for tensor in map(network.get_input, range(network.num_inputs))}
    for name in {name for profile in ranges for name in profile}:
        if name not in inputs:
            raise BadSettings(
                f"the model has no input '{name}'", fix=f"its inputs are {', '.join(inputs)}"
            )
    open_ = [
        name
        for name, tensor in inputs.items()
        if tensor.is_shape_tensor or profiles.OPEN in tensor.shape
    ]
    for profile in ranges or ({},):
        if lacking := next((name for name in open_ if name not in profile), None):
            shape = "x".join(map(str, inputs[lacking].shape))
            raise BadSettings(
                f"input '{lacking}' has a dynamic size ({shape}) and no range",
                fix=f'give it one, such as profiles=["{lacking}:1x3..8x3"]',
            )
        if not profile:
            continue
        trt_profile = builder.create_optimization_profile()
        for shape_range in profile.values():
            ends = (shape_range.least, shape_range.best, shape_range.most)
            try:
                if shape_range.values:
                    trt_profile.set_shape_input(shape_range.name, *map(list, ends))
                else:
                    trt_profile.set_shape(shape_range.name, *ends)
            except ValueError as error:
                raise BadSettings(
                    f"profile '{shape_range}': {summarize_error(error)}",
                    fix="give sizes that the model's input takes",
                ) from None
        config.add_optimization_profile(trt_profile)


def _start_cache(config: Any, path: Path) -> Any:
    """Attach the timing cache; one of another device or version is begun anew."""
    with suppress(OSError):
        cache = config.create_timing_cache(path.read_bytes())
        if cache is not None and config.set_timing_cache(cache, False):
            return cache
    cache = config.create_timing_cache(b"")
    config.set_timing_cache(cache, False)
    return cache
