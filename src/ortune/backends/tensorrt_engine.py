"""TensorRT by its own API: an engine built of the file, or read back, and run on streams."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ortune.backends.runtimes.tensorrt import library, profiles
from ortune.backends.runtimes.tensorrt.profiles import Profile, ShapeRange
from ortune.core import regular_file
from ortune.core.backend import Backend, Kind
from ortune.core.capabilities import State
from ortune.core.errors import BadData, BadModel
from ortune.core.outputs import find_cache_folder
from ortune.core.plugins import stored
from ortune.core.plugins.bounds import Bounds
from ortune.core.session import InProcess, Session, Tensors

PROVIDER = "TensorRT"
"""Under this name the engine's layers are shown as placed."""
SUFFIXES = (".engine", ".plan")
"""Of files that hold an engine; any other is an ONNX file to build one of."""
_TYPES: Mapping[str, Any] = {
    "FLOAT": np.float32,
    "HALF": np.float16,
    "INT8": np.int8,
    "UINT8": np.uint8,
    "INT32": np.int32,
    "INT64": np.int64,
    "BOOL": np.bool_,
}
"""TensorRT's types that an array of NumPy's own holds; 4-bit types are packed and stay inside."""


@contextmanager
def open_engine(path: Path, options: library.BuildOptions) -> Iterator[Session]:
    """Open an engine, or build one of an ONNX file.

    Raises:
        BackendMissing: TensorRT or the device is not there.
        BadModel: TensorRT does not take the file.
        BadSettings: An input is of open size and has no range.
    """
    if path.suffix in SUFFIXES:
        with regular_file.open_regular(path, BadModel) as file:
            plan = file.read()
    else:
        plan = library.build_engine(path, options)
    opened = TensorrtSession(plan, options)
    try:
        yield opened
    finally:
        opened.close()


class TensorrtSession(InProcess):
    """An engine behind the Session protocol; each calling thread has a context of its own."""

    def __init__(self, plan: bytes, options: library.BuildOptions) -> None:
        self._trt = library.import_tensorrt()
        self._cuda = library.CudaDevice(options.device)
        self._log = library.make_logger(self._trt)
        self._engine = library.deserialize_engine(self._trt, self._log, plan, options.plugins)
        self._io = read_engine_io(self._trt, self._engine)
        self._local, self._contexts = threading.local(), list[EngineContext]()

    def run(self, feeds: Tensors) -> dict[str, NDArray[Any]]:
        """Copy in, run once, copy out."""
        self.stage(feeds)
        self._thread_context.enqueue_run()
        return self._thread_context.fetch_outputs()

    def stage(self, feeds: Tensors) -> None:
        """Copy inputs to the device and make room for outputs.

        Raises:
            BadData: A shape lies outside every profile, or an input is missing or of another type.
        """
        self._thread_context.stage_inputs(feeds)

    def compute(self) -> None:
        """Run once on what was staged; returns when the device is done."""
        self._thread_context.enqueue_run()
        self._thread_context.synchronize()

    def placement(self) -> Mapping[str, int]:
        """All layers of the engine run here."""
        return {PROVIDER: self._engine.num_layers}

    def close(self) -> None:
        """Give the device memory of all threads back."""
        for context in self._contexts:
            context.close()
        self._contexts.clear()

    @property
    def _thread_context(self) -> EngineContext:
        if not hasattr(self._local, "context"):
            self._cuda.make_current()
            self._local.context = EngineContext(
                self._trt, self._engine, self._io, self._cuda, self._log
            )
            self._contexts.append(self._local.context)
        context: EngineContext = self._local.context
        return context


@dataclass(frozen=True)
class Io:
    """What an engine takes and gives."""

    inputs: Mapping[str, Any]  # name -> type of array
    outputs: Mapping[str, Any]  # the same
    # Ranges of inputs, a profile each; a fixed input is a range of one shape.
    profiles: tuple[Profile, ...]

    @property
    def by_value(self) -> frozenset[str]:
        """Inputs whose values decide shapes: TensorRT reads them in the host's memory."""
        ranges = (shape_range for profile in self.profiles for shape_range in profile.values())
        return frozenset(shape_range.name for shape_range in ranges if shape_range.values)


def read_engine_io(trt: Any, engine: Any) -> Io:
    """Ask an engine for names, types and ranges.

    Raises:
        BadModel: A tensor is of a type that no array holds.
    """
    import ml_dtypes  # a device may lack it

    types = {**_TYPES, "BF16": ml_dtypes.bfloat16, "FP8": ml_dtypes.float8_e4m3fn}
    inputs: dict[str, Any] = {}
    outputs: dict[str, Any] = {}
    for at in range(engine.num_io_tensors):
        name = engine.get_tensor_name(at)
        kind = engine.get_tensor_dtype(name).name
        if kind not in types:
            raise BadModel(
                f"'{name}' is {kind}, which NumPy arrays cannot hold", fix="cast it in the model"
            )
        mine = inputs if engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT else outputs
        mine[name] = types[kind]

    def shape_range(name: str, at: int) -> ShapeRange:
        if engine.is_shape_inference_io(name):
            return ShapeRange(name, (), (), (), values=True)
        least, best, most = map(tuple, engine.get_tensor_profile_shape(name, at))
        return ShapeRange(name, least, best, most)

    count = engine.num_optimization_profiles
    ranges = tuple({name: shape_range(name, at) for name in inputs} for at in range(count))
    return Io(inputs, outputs, ranges)


class EngineContext:
    """Takes `stage_inputs`, then `enqueue_run` as often as wanted, then `fetch_outputs`."""

    def __init__(self, trt: Any, engine: Any, io: Io, cuda: library.CudaDevice, log: Any) -> None:
        self._io, self._cuda, self._log = io, cuda, log
        self._context = engine.create_execution_context()
        if self._context is None:
            raise library.make_tensorrt_error(
                "TensorRT makes no execution context", log, "free GPU memory"
            )
        self._stream = int(cuda.call("cudaStreamCreate"))
        self._buffers: dict[str, tuple[int, int]] = {}  # tensor -> address and bytes
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._staged_inputs: dict[str, NDArray[Any]] = {}  # what the stream still reads
        self._grown: dict[str, tuple[int, ...]] = {}  # outputs whose size the run found
        self._allocator = _make_allocator(trt, self, self._grown)
        self._profile = 0

    def stage_inputs(self, feeds: Tensors) -> None:
        """Copy inputs to the device; where their shapes changed, make room for outputs."""
        self._staged_inputs = {name: self._check_input(name, feeds) for name in self._io.inputs}
        shapes = {name: array.shape for name, array in self._staged_inputs.items()}
        fresh, self._shapes = shapes != self._shapes, {}
        if fresh:
            self._choose_profile(shapes)
        for name, array in self._staged_inputs.items():
            if fresh and not self._context.set_input_shape(name, array.shape):
                raise self._make_range_error({name: array.shape})
            if name in self._io.by_value:  # values that decide shapes stay here
                self._context.set_tensor_address(name, array.ctypes.data)
                continue
            address = self.reserve_memory(name, array.nbytes)
            if fresh:
                self._context.set_tensor_address(name, address)
            self._cuda.to_device(address, array, self._stream)
        if fresh or self._io.by_value:
            self._make_room()
        self._shapes = shapes

    def enqueue_run(self) -> None:
        """Put one run on the stream. Raises BadModel: TensorRT refuses."""
        if not self._context.execute_async_v3(self._stream):
            raise library.make_tensorrt_error(
                "TensorRT did not run", self._log, "build the engine again"
            )

    def synchronize(self) -> None:
        """Wait until the device is done."""
        self._cuda.call("cudaStreamSynchronize", self._stream)

    def fetch_outputs(self) -> dict[str, NDArray[Any]]:
        """Copy outputs to fresh arrays behind the run, and wait for all of it."""
        if self._grown:
            self.synchronize()  # sizes are known when the run is done
        outputs = {}
        for name, dtype in self._io.outputs.items():
            shape = self._grown.get(name) or self._context.get_tensor_shape(name)
            outputs[name] = np.empty(tuple(shape), dtype)
            self._cuda.to_host(outputs[name], self._buffers[name][0], self._stream)
        self.synchronize()
        return outputs

    def reserve_memory(self, name: str, size: int) -> int:
        """Return the address of at least this much device memory for a tensor."""
        address, there = self._buffers.get(name, (0, 0))
        if size > there or not address:
            if address:
                del self._buffers[name]
                self._cuda.call("cudaFree", address)
            address = int(self._cuda.call("cudaMalloc", max(size, 1)))
            self._buffers[name] = (address, size)
        return address

    def close(self) -> None:
        """Give memory and stream back."""
        for address, _ in self._buffers.values():
            self._cuda.call("cudaFree", address)
        self._buffers.clear()
        self._cuda.call("cudaStreamDestroy", self._stream)

    def _check_input(self, name: str, feeds: Tensors) -> NDArray[Any]:
        """Return an input as one piece of memory."""
        if name not in feeds:
            raise BadData(f"input '{name}' is missing", fix=f"give {', '.join(self._io.inputs)}")
        array, dtype = np.require(feeds[name], requirements="C"), np.dtype(self._io.inputs[name])
        if array.dtype != dtype:
            raise BadData(
                f"input '{name}' is {array.dtype}, the engine takes {dtype}",
                fix=f"convert it to {dtype}",
            )
        return array

    def _choose_profile(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Take the first profile whose ranges hold these shapes."""
        fitting = (
            at
            for at, ranges in enumerate(self._io.profiles)
            if all(
                shape_range.values or shape_range.holds_shape(shapes[name])
                for name, shape_range in ranges.items()
            )
        )
        index = next(fitting, None)
        if index is None:
            raise self._make_range_error(shapes)
        if index != self._profile:
            if not self._context.set_optimization_profile_async(index, self._stream):
                raise library.make_tensorrt_error(
                    f"TensorRT does not change to profile {index}", self._log, "build it again"
                )
            self.synchronize()
            self._profile = index

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
            if profiles.OPEN in shape:
                self._context.set_output_allocator(name, self._allocator)
                continue
            size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
            self._context.set_tensor_address(name, self.reserve_memory(name, size))

    def _make_range_error(self, shapes: Mapping[str, tuple[int, ...]]) -> BadData:
        spelled_shapes = ", ".join(
            f"{name}:{'x'.join(map(str, shape))}" for name, shape in shapes.items()
        )
        spelled = (", ".join(map(str, ranges.values())) for ranges in self._io.profiles)
        allowed_ranges = "; ".join(spelled)
        return BadData(
            f"{spelled_shapes} lies outside the engine's profiles: {allowed_ranges}",
            fix="build it with a profile that holds these shapes",
        )


def _make_allocator(trt: Any, context: EngineContext, grown: dict[str, tuple[int, ...]]) -> Any:
    """Return what gives outputs room whose size only a run tells; `grown` takes their shapes."""

    class Allocator(trt.IOutputAllocator):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IOutputAllocator.__init__(self)

        def reallocate_output_async(
            self, tensor_name: str, memory: Any, size: int, alignment: int, stream: int
        ) -> int:
            return context.reserve_memory(tensor_name, size)

        def notify_shape(self, tensor_name: str, shape: Any) -> None:
            grown[tensor_name] = tuple(shape)

    return Allocator()


@dataclass(frozen=True)
class TensorrtEngine(Backend):
    """GPU execution by TensorRT 10 or newer, without onnxruntime. Never run on a GPU here.

    The network is strongly typed: the file's own types and Q/DQ pairs say what each layer computes
    in, so a faster precision is asked for by converting the file.

    Attributes:
        threads: Ignored: the GPU computes.
        device: Number of the CUDA device.
        profiles: Least, most and best shape of every input whose size is open, such as
            image:1x3x224x224..8x3x224x224..4x3x224x224; NAME=1,2..4,8 gives values of an input
            that decides shapes. The best is the most unless given.
        workspace: Most MB of device memory for a layer's intermediate results; 0 takes all.
        builder_level: How long the builder searches for kernels, 0 to 5.
        tf32: Let float32 products round their factors to 10 bits. Changes numbers.
        timing_cache: Keep kernels' times in the cache folder for the next build.
        plugins: Shared libraries with plug-ins, which are code. Nothing that is stored names one.
    """

    title: ClassVar[str] = "TensorRT engine"
    provider: ClassVar[str] = PROVIDER
    automatic: ClassVar[bool] = False
    reads: ClassVar[tuple[str, ...]] = ("plugins",)
    runs_on: ClassVar[Kind] = "gpu"

    device: Annotated[int, Bounds(high=1024)] = 0
    profiles: Annotated[tuple[str, ...], stored.items(stored.NAME, 4096)] = ()
    workspace: Annotated[int, Bounds(high=2**24)] = 0
    builder_level: Annotated[int, Bounds(high=5)] = 3
    tf32: bool = False
    timing_cache: bool = True
    plugins: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        profiles.parse_profiles(self.profiles)

    @property
    def lossy(self) -> bool:
        """TF32 changes numbers; everything else is in the file."""
        return self.tf32

    @property
    def arithmetic(self) -> frozenset[str]:
        """What a file may ask for by its types and Q/DQ pairs."""
        return frozenset({"int8", "fp16", "bf16", "fp8"})

    def missing(self) -> str | None:
        """Return what to install, or that there is no device."""
        return library.explain_missing_tensorrt()

    def state(self, missing: str | None) -> State:
        """Tell an absent package from an absent device."""
        no_device = missing is not None and missing.startswith("no CUDA device")
        return "no device" if no_device else super().state(missing)

    def open(self, path: Path, *, verbose: bool = False) -> AbstractContextManager[Session]:
        """Read an engine (``.engine``, ``.plan``) back, or build one of an ONNX file."""
        return open_engine(path, self._make_build_options())

    def save(self, path: Path, out: Path) -> None:
        """Write the engine of an ONNX file, and beside it ``.layers.json`` with its layers."""
        options = self._make_build_options()
        plan = library.build_engine(path, options)
        out.write_bytes(plan)
        out.with_suffix(".layers.json").write_text(
            library.describe_layers(plan, options), encoding="utf-8"
        )

    def _make_build_options(self) -> library.BuildOptions:
        home = find_cache_folder() if self.timing_cache else None
        return library.BuildOptions(
            device=self.device,
            profiles=self.profiles,
            workspace_mb=self.workspace,
            level=self.builder_level,
            tf32=self.tf32,
            plugins=self.plugins,
            timing_cache=home / "tensorrt" if home else None,
        )
