"""TensorRT's Python package: whether it is there, its messages, engines built by it.

Read in the documentation and in the signatures of NVIDIA's own bindings, 10.16 and 11.4; never run
on a GPU here. Networks are strongly typed: the graph says the precision.
"""

import importlib
import importlib.util
import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from ortune.backends.runtimes.tensorrt import profiles
from ortune.backends.runtimes.tensorrt.profiles import Profile
from ortune.core.atomic_write import open_draft
from ortune.core.errors import BackendMissing, BadModel, BadSettings, OrtuneError, summarize_error

_NO_DEVICE = "a driver and a device of NVIDIA's are needed here"


def no_device() -> str | None:
    """Return why no device can be used here, None where there is one."""
    from cuda.bindings import runtime

    error, count = runtime.cudaGetDeviceCount()
    if int(error):
        return f"no CUDA device: {_NO_DEVICE} ({error.name})"
    return None if count else f"no CUDA device: {_NO_DEVICE}"


class CudaDevice:
    """One device as the calling thread uses it; every call names its error where it has one."""

    def __init__(self, device: int) -> None:
        from cuda.bindings import runtime

        self._runtime = runtime
        self._device = device
        self.make_current()

    def make_current(self) -> None:
        """Let this thread's calls go to the device.

        Raises:
            BackendMissing: There is none of that number.
        """
        error, *_ = self._runtime.cudaSetDevice(self._device)
        if int(error):
            raise BackendMissing(
                f"CUDA device {self._device} cannot be used: {error.name}",
                fix="`nvidia-smi` lists the devices; install NVIDIA's driver if it is missing",
            )

    def to_device(self, address: int, array: NDArray[Any], stream: int) -> None:
        """Begin to copy an array, which must live until the stream is synchronized."""
        kind = self._runtime.cudaMemcpyKind.cudaMemcpyHostToDevice
        self.call("cudaMemcpyAsync", address, array.ctypes.data, array.nbytes, kind, stream)

    def to_host(self, array: NDArray[Any], address: int, stream: int) -> None:
        """Begin to fill an array from device memory."""
        kind = self._runtime.cudaMemcpyKind.cudaMemcpyDeviceToHost
        self.call("cudaMemcpyAsync", array.ctypes.data, address, array.nbytes, kind, stream)

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a function of CUDA's runtime. Raises OrtuneError: it fails."""
        error, *values = getattr(self._runtime, name)(*arguments)
        if int(error):
            raise OrtuneError(
                f"CUDA: {name}: {error.name}",
                fix="`nvidia-smi` shows the device's memory and who uses it",
            )
        return values[0] if values else None


INSTALL = "pip install tensorrt-cu13 cuda-bindings"
"""What both packages come by; `ortune doctor env add tensorrt-engine` keeps them apart."""
_LEAST = 10
_MODULES = ("tensorrt", "tensorrt_bindings")
"""The first is a name for the second, which comes in a wheel of its own."""


def is_tensorrt_installed() -> bool:
    """Say whether TensorRT's own package is there."""
    return any(importlib.util.find_spec(name) for name in _MODULES)


def explain_missing_tensorrt() -> str | None:
    """Return what to do so that engines can be built and run here, None where they can."""
    try:
        bindings = importlib.util.find_spec("cuda.bindings") is not None
    except ModuleNotFoundError:
        bindings = False
    if not (bindings and is_tensorrt_installed()):
        return f"`ortune doctor env add tensorrt-engine`, or {INSTALL}"
    return no_device()


def import_tensorrt() -> Any:
    """Return the module.

    Raises:
        BackendMissing: It is not installed, does not load, or is older than TensorRT 10.
    """
    installed = (module for module in _MODULES if importlib.util.find_spec(module))
    name = next(installed, _MODULES[0])
    try:
        tensorrt = importlib.import_module(name)
    except ImportError as error:
        raise BackendMissing(
            f"TensorRT's Python package does not load: {summarize_error(error)}", fix=INSTALL
        ) from None
    if int(tensorrt.__version__.partition(".")[0]) < _LEAST:
        raise BackendMissing(
            f"TensorRT {tensorrt.__version__} is too old: engines need TensorRT {_LEAST}",
            fix=INSTALL,
        )
    return tensorrt


def make_logger(trt: Any) -> Any:
    """Return a logger that keeps errors as lines, in ``errors``, and drops everything else."""

    class Log(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.errors: list[str] = []

        def log(self, severity: Any, msg: str) -> None:
            if severity in (trt.ILogger.Severity.INTERNAL_ERROR, trt.ILogger.Severity.ERROR):
                self.errors.append(msg)

    return Log()


def read_first_error(log: Any) -> str:
    """Return the first error that was logged, in one line; a word where there is none."""
    return summarize_error(log.errors[0]) if log.errors else "no reason given"


def add_plugins(trt: Any, log: Any, registry: Any, plugins: Iterable[str]) -> None:
    """Make NVIDIA's plug-ins and those of these shared libraries known.

    Args:
        registry: Of the builder or of the runtime.
        plugins: Paths of libraries. They are code and run at once.

    Raises:
        BadSettings: A library does not load, or brings a plug-in that is known already.
    """
    trt.init_libnvinfer_plugins(log, "")
    for path in plugins:
        if registry.load_library(path) is None:
            raise BadSettings(
                f"TensorRT does not load the plug-in library {path}: {read_first_error(log)}",
                fix="build it with this TensorRT's headers; docs/tensorrt.md has an example",
            )


def make_tensorrt_error(problem: str, log: Any, fix: str) -> BadModel:
    """Return the error that says what TensorRT did not do, and its own first reason."""
    return BadModel(f"{problem}: {read_first_error(log)}", fix=fix)


_FIX = "leave this backend out with --on cpu"


@dataclass(frozen=True)
class BuildOptions:
    """How an engine is built."""

    device: int = 0  # number of the device; the engine runs on devices like it
    # Ranges of inputs, as `ortune.backends.runtimes.tensorrt.profiles` spells them.
    profiles: tuple[str, ...] = ()
    workspace_mb: int = 0  # most device memory for a layer's intermediate results; 0 takes all
    level: int = 3  # how long the builder searches, 0 to 5
    tf32: bool = False  # let float32 products round their factors to 10 bits
    plugins: tuple[str, ...] = ()  # shared libraries with plug-ins
    # Folder for kernels' times of earlier builds, a file a version and device.
    timing_cache: Path | None = None


def build_engine(path: Path, options: BuildOptions) -> bytes:
    """Return the serialized engine of an ONNX file.

    Raises:
        BackendMissing: TensorRT or the device is not there.
        BadModel: TensorRT does not take the model; the text has its reason.
        BadSettings: An input is of open size and has no range.
    """
    ranges = profiles.parse_profiles(options.profiles)
    trt = import_tensorrt()
    CudaDevice(options.device)
    log = make_logger(trt)
    builder = trt.Builder(log)
    add_plugins(trt, log, builder.get_plugin_registry(), options.plugins)
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
        raise make_tensorrt_error(f"TensorRT builds no engine of {path.name}", log, _FIX)
    if kept is not None and cache is not None:  # a full disk costs time and no more
        with suppress(OSError, OrtuneError), open_draft(kept, durable=False) as draft:
            draft.write_bytes(bytes(cache.serialize()))
    return bytes(plan)


def describe_layers(plan: bytes, options: BuildOptions) -> str:
    """Return what TensorRT's inspector says of an engine's layers, as indented JSON.

    Raises:
        BadModel: The engine does not load.
    """
    trt = import_tensorrt()
    log = make_logger(trt)
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
    add_plugins(trt, log, runtime.get_plugin_registry(), plugins)
    engine = runtime.deserialize_cuda_engine(plan)
    if engine is None:
        raise make_tensorrt_error(
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
