"""What one thread runs an engine with: an execution context, a stream, memory on the device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortune.core.errors import BadData, BadModel
from ortune.core.session import Tensors
from ortune.runtimes.tensorrt import library, profiles
from ortune.runtimes.tensorrt.cuda import Cuda
from ortune.runtimes.tensorrt.io import Io


class EngineContext:
    """Takes one call after the other: `stage`, `start` as often as wanted, `fetch`."""

    def __init__(self, trt: Any, engine: Any, io: Io, cuda: Cuda, log: Any) -> None:
        self._io, self._cuda, self._log = io, cuda, log
        self._context = engine.create_execution_context()
        if self._context is None:
            raise library.refuse("TensorRT makes no execution context", log, "free GPU memory")
        self._stream = cuda.stream()
        self._room: dict[str, tuple[int, int]] = {}  # tensor -> address and bytes
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._held: dict[str, NDArray[Any]] = {}  # what the stream still reads
        self._grown: dict[str, tuple[int, ...]] = {}  # outputs whose size the run found
        self._allocator = _allocator(trt, self, self._grown)
        self._profile = 0

    def stage(self, feeds: Tensors) -> None:
        """Copy inputs to the device; where their shapes changed, make room for outputs.

        Raises:
            BadData: A shape lies outside every profile, or an input is missing or of another type.
        """
        self._held = {name: self._checked(name, feeds) for name in self._io.inputs}
        shapes = {name: array.shape for name, array in self._held.items()}
        fresh, self._shapes = shapes != self._shapes, {}
        if fresh:
            self._choose(shapes)
        for name, array in self._held.items():
            self._take(name, array, fresh)
        if fresh or self._io.by_value:
            self._make_room()
        self._shapes = shapes

    def start(self) -> None:
        """Put one run on the stream.

        Raises:
            BadModel: TensorRT refuses.
        """
        if not self._context.execute_async_v3(self._stream):
            raise library.refuse("TensorRT did not run", self._log, "build the engine again")

    def wait(self) -> None:
        """Wait until the device is done."""
        self._cuda.wait(self._stream)

    def fetch(self) -> dict[str, NDArray[Any]]:
        """Copy outputs to fresh arrays behind the run, and wait for all of it."""
        if self._grown:
            self.wait()  # sizes are known when the run is done
        found = {}
        for name, dtype in self._io.outputs.items():
            shape = self._grown.get(name) or self._context.get_tensor_shape(name)
            found[name] = np.empty(tuple(shape), dtype)
            self._cuda.to_host(found[name], self._room[name][0], self._stream)
        self.wait()
        return found

    def room(self, name: str, size: int) -> int:
        """Return the address of at least this much device memory for a tensor."""
        address, there = self._room.get(name, (0, 0))
        if size > there or not address:
            if address:
                del self._room[name]
                self._cuda.free(address)
            address = self._cuda.allocate(size)
            self._room[name] = (address, size)
        return address

    def close(self) -> None:
        """Give memory and stream back."""
        for address, _ in self._room.values():
            self._cuda.free(address)
        self._room.clear()
        self._cuda.drop_stream(self._stream)

    def _checked(self, name: str, feeds: Tensors) -> NDArray[Any]:
        """Return an input as one piece of memory."""
        if name not in feeds:
            raise BadData(f"input '{name}' is missing", fix=f"give {', '.join(self._io.inputs)}")
        array, wanted = np.require(feeds[name], requirements="C"), np.dtype(self._io.inputs[name])
        if array.dtype != wanted:
            raise BadData(
                f"input '{name}' is {array.dtype}, the engine takes {wanted}",
                fix=f"convert it to {wanted}",
            )
        return array

    def _choose(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Take the first profile whose ranges hold these shapes."""
        fitting = (
            at
            for at, ranges in enumerate(self._io.profiles)
            if all(one.values or one.holds(shapes[name]) for name, one in ranges.items())
        )
        found = next(fitting, None)
        if found is None:
            raise self._outside(shapes)
        if found != self._profile:
            if not self._context.set_optimization_profile_async(found, self._stream):
                raise library.refuse(
                    f"TensorRT does not change to profile {found}", self._log, "build it again"
                )
            self.wait()
            self._profile = found

    def _take(self, name: str, array: NDArray[Any], fresh: bool) -> None:
        """Say an input's shape and address, and copy it; values that decide shapes stay here."""
        if fresh and not self._context.set_input_shape(name, array.shape):
            raise self._outside({name: array.shape})
        if name in self._io.by_value:
            self._context.set_tensor_address(name, array.ctypes.data)
            return
        address = self.room(name, array.nbytes)
        if fresh:
            self._context.set_tensor_address(name, address)
        self._cuda.to_device(address, array, self._stream)

    def _make_room(self) -> None:
        """Ask for outputs' shapes; outputs whose size only the run knows get room within it."""
        if lacking := self._context.infer_shapes():
            raise BadModel(
                f"TensorRT cannot tell outputs' shapes without {', '.join(lacking)}",
                fix="fix the model's shapes: `ortune apply M fix-dims(...)`",
            )
        self._grown.clear()
        for name, dtype in self._io.outputs.items():
            shape = tuple(self._context.get_tensor_shape(name))
            if profiles.open_sizes(shape):
                self._context.set_output_allocator(name, self._allocator)
                continue
            size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
            self._context.set_tensor_address(name, self.room(name, size))

    def _outside(self, shapes: Mapping[str, tuple[int, ...]]) -> BadData:
        given = ", ".join(f"{name}:{'x'.join(map(str, one))}" for name, one in shapes.items())
        known = "; ".join(", ".join(map(str, ranges.values())) for ranges in self._io.profiles)
        return BadData(
            f"{given} lies outside the engine's profiles: {known}",
            fix="build it with a profile that holds these shapes",
        )


def _allocator(trt: Any, context: EngineContext, grown: dict[str, tuple[int, ...]]) -> Any:
    """Return what gives outputs room whose size is known only by running.

    Args:
        grown: Receives their shapes.
    """

    class Allocator(trt.IOutputAllocator):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IOutputAllocator.__init__(self)

        def reallocate_output_async(
            self, tensor_name: str, memory: Any, size: int, alignment: int, stream: int
        ) -> int:
            return context.room(tensor_name, size)

        def notify_shape(self, tensor_name: str, shape: Any) -> None:
            grown[tensor_name] = tuple(shape)

    return Allocator()
