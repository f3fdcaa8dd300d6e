"""TensorRT's Python package: whether it is there, its messages, its plug-in libraries.

Read in the documentation and in the signatures of NVIDIA's own bindings, 10.16 and 11.4; never run
on a GPU here.
"""

import importlib
import importlib.util
from collections.abc import Iterable
from typing import Any

from numpy.typing import NDArray

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
