"""The CUDA runtime through ``cuda.bindings``: a device, its memory, streams. No pycuda.

Signatures are those of cuda-bindings 13.5: every call returns a tuple that begins with an error.
"""

from __future__ import annotations

import importlib.util
from typing import Any

from numpy.typing import NDArray

from ortune.core.errors import BackendMissing, OrtuneError

_NO_DEVICE = "a driver and a device of NVIDIA's are needed here"


def installed() -> bool:
    """Say whether the bindings are there."""
    try:
        return importlib.util.find_spec("cuda.bindings") is not None
    except ModuleNotFoundError:
        return False


def no_device() -> str | None:
    """Return why no device can be used here, None where there is one."""
    from cuda.bindings import runtime

    error, count = runtime.cudaGetDeviceCount()
    if int(error):
        return f"no CUDA device: {_NO_DEVICE} ({error.name})"
    return None if count else f"no CUDA device: {_NO_DEVICE}"


class Cuda:
    """One device as the calling thread uses it; every call names its error where it has one."""

    def __init__(self, device: int) -> None:
        from cuda.bindings import runtime

        self._runtime = runtime
        self._device = device
        self.use()

    def use(self) -> None:
        """Let this thread's calls go to the device.

        Raises:
            BackendMissing: There is none of that number.
        """
        error, *_ = self._runtime.cudaSetDevice(self._device)
        if int(error):
            raise BackendMissing(
                f"CUDA device {self._device} cannot be used: {error.name}",
                fix="`nvidia-smi` lists the devices; a driver must be installed",
            )

    def stream(self) -> int:
        """Return the handle of a new stream."""
        return int(self._call("cudaStreamCreate"))

    def drop_stream(self, stream: int) -> None:
        """Give a stream back."""
        self._call("cudaStreamDestroy", stream)

    def allocate(self, size: int) -> int:
        """Return the address of fresh device memory of at least one byte."""
        return int(self._call("cudaMalloc", max(size, 1)))

    def free(self, address: int) -> None:
        """Give device memory back."""
        self._call("cudaFree", address)

    def to_device(self, address: int, array: NDArray[Any], stream: int) -> None:
        """Begin to copy an array, which must live until the stream is synchronized."""
        kind = self._runtime.cudaMemcpyKind.cudaMemcpyHostToDevice
        self._call("cudaMemcpyAsync", address, array.ctypes.data, array.nbytes, kind, stream)

    def to_host(self, array: NDArray[Any], address: int, stream: int) -> None:
        """Begin to fill an array from device memory."""
        kind = self._runtime.cudaMemcpyKind.cudaMemcpyDeviceToHost
        self._call("cudaMemcpyAsync", array.ctypes.data, address, array.nbytes, kind, stream)

    def wait(self, stream: int) -> None:
        """Wait until everything on a stream is done."""
        self._call("cudaStreamSynchronize", stream)

    def _call(self, name: str, *arguments: Any) -> Any:
        error, *values = getattr(self._runtime, name)(*arguments)
        if int(error):
            raise OrtuneError(
                f"CUDA: {name}: {error.name}",
                fix="`nvidia-smi` shows the device's memory and who uses it",
            )
        return values[0] if values else None
