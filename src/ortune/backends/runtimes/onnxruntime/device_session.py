"""Sessions on a device with memory of its own: bound buffers, and no silent way to the CPU."""

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from ortune.backends.runtimes.onnxruntime import messages, plug_in, trace
from ortune.backends.runtimes.onnxruntime import session as ort
from ortune.core import wording
from ortune.core.errors import BackendMissing, BadModel, BadSettings
from ortune.core.session import Recording, Tensors

T = TypeVar("T")

Provider: TypeAlias = tuple[str, Mapping[str, str]]
"""Name of an execution provider and its options."""

_SHAPES = 16
"""Shapes whose buffers are kept; the one that was not used for longest goes."""
_DTYPES: Mapping[str, str] = {
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(double)": "float64",
    "tensor(bool)": "bool",
    **{f"tensor({sign}int{n})": f"{sign}int{n}" for sign in ("", "u") for n in (8, 16, 32, 64)},
}
_CONTROL = ("If", "Loop", "Scan")
_MOST_NAMED = 5
_CAPTURE = "graph capture"
"""In what onnxruntime says of a session that it cannot record as a CUDA graph."""


@dataclass
class _BufferSet:
    """Buffers for one set of input shapes; `sized`: for outputs too, as their shapes follow."""

    binding: Any
    inputs: dict[str, Any] = field(default_factory=dict)
    sized: bool = False


class DeviceSession(ort.OrtSession):
    """An onnxruntime session whose inputs and outputs lie in the device's memory.

    `run` is the whole way of a call; `stage` and `compute` are it without the copies. One call at
    a time: they share the buffers.
    """

    def __init__(self, inner: Any, device: str, index: int) -> None:
        super().__init__(inner)
        self._place = (device, index)
        self._dims = {value.name: value.shape for value in inner.get_inputs()}
        self._buffer_sets: OrderedDict[Any, _BufferSet] = OrderedDict()
        self._lock = Lock()
        self._staged: _BufferSet | None = None

    def run(self, feeds: Tensors) -> dict[str, NDArray[Any]]:
        with self._lock:
            bound = self._fill_buffers(feeds)
            self._run_bound(bound)
            outputs = bound.binding.copy_outputs_to_cpu()
        return dict(zip(self._names, outputs, strict=True))

    def stage(self, feeds: Tensors) -> None:
        with self._lock:
            self._staged = self._fill_buffers(feeds)

    def compute(self) -> None:
        with self._lock:
            assert self._staged is not None, "compute is asked after stage"
            self._run_bound(self._staged)

    def _run_bound(self, bound: _BufferSet) -> None:
        """Run and wait; buffers that a wrong shape in the file has made too small are given up."""
        bound.binding.synchronize_inputs()
        with ort.make_run_options() as run_options:
            try:
                self.inner.run_with_iobinding(bound.binding, run_options)
            except Exception:
                if not bound.sized:
                    raise
                self._bind_outputs(bound, None)
                self.inner.run_with_iobinding(bound.binding, run_options)
        bound.binding.synchronize_outputs()

    def _fill_buffers(self, feeds: Tensors) -> _BufferSet:
        key = tuple((name, array.shape, array.dtype.str) for name, array in feeds.items())
        bound = self._buffer_sets.get(key)
        if bound is None:
            bound = _BufferSet(self.inner.io_binding())
            for name, array in feeds.items():
                buffer = self._make_buffer(array.shape, array.dtype)
                bound.inputs[name] = buffer
                bound.binding.bind_ortvalue_input(name, buffer)
            sizes = {
                dim: size
                for name, array in feeds.items()
                for dim, size in zip(self._dims.get(name) or (), array.shape, strict=False)
                if isinstance(dim, str)
            }
            self._bind_outputs(bound, sizes)
            self._buffer_sets[key] = bound
            if len(self._buffer_sets) > _SHAPES:
                self._buffer_sets.popitem(last=False)
        self._buffer_sets.move_to_end(key)
        for name, array in feeds.items():
            bound.inputs[name].update_inplace(np.require(array, requirements="C"))
        return bound

    def _make_buffer(self, shape: Sequence[int], dtype: np.dtype[Any]) -> Any:
        from onnxruntime import OrtValue

        return OrtValue.ortvalue_from_shape_and_type(shape, dtype, *self._place)

    def _bind_outputs(self, bound: _BufferSet, sizes: Mapping[str, int] | None) -> None:
        """Give outputs buffers where their shapes are known; else the runtime makes them there.

        Args:
            sizes: Of named dimensions; None takes no shape as known.
        """
        bound.sized = False
        for value in self.inner.get_outputs():
            dims = [None] if sizes is None or value.shape is None else value.shape
            named = sizes or {}
            shape: list[Any] = [named.get(k) if isinstance(k, str) else k for k in dims]
            if None in shape:
                bound.binding.bind_output(value.name, *self._place)
                continue
            buffer = self._make_buffer(shape, np.dtype(_DTYPES[value.type]))
            bound.binding.bind_ortvalue_output(value.name, buffer)
            bound.sized = True


@contextmanager
def open_device_session(
    path: Path,
    session_options: Any,
    chain: Sequence[Provider],
    *,
    device: str,
    index: int = 0,
    io_binding: bool = True,
    graph: str = "",
    verbose: bool = False,
) -> Iterator[ort.OrtSession]:
    """Open a session on the first provider of a chain, and prove that it runs there.

    Args:
        chain: Providers in order of preference, each with its options.
        device: The device's kind as onnxruntime names its memory, such as ``cuda``.
        io_binding: Keep inputs and outputs in its memory.
        graph: Option of the first provider by which it records a CUDA graph; empty for none.

    Raises:
        BadModel: The runtime does not accept the model.
        BadSettings: A CUDA graph is asked for, and the model does not allow one.
        BackendMissing: The first provider does not start, or took nothing.
    """
    provider, options = chain[0]

    def opening(chain: Sequence[Provider]) -> AbstractContextManager[ort.OrtSession]:
        return ort.open_session(path, session_options, provider=provider, chain=chain)

    with ExitStack() as stack:
        try:
            opened = enter_session(stack, opening(chain), provider, index, verbose=verbose)
        except BadModel as error:
            if not graph or _CAPTURE not in error.what:
                raise
            plain = [(provider, {**options, graph: "0"}), *chain[1:]]
            opened = enter_session(stack, opening(plain), provider, index, verbose=verbose)
            raise _no_graph(
                path, find_graph_obstacles(opened, provider) or (error.what,)
            ) from error
        if graph and (reasons := find_graph_obstacles(opened, provider)):
            raise _no_graph(path, reasons)
        if io_binding and all(
            value.type in _DTYPES
            for value in (*opened.inner.get_inputs(), *opened.inner.get_outputs())
        ):
            yield DeviceSession(opened.inner, device, index)
        else:
            yield opened


@contextmanager
def open_device_recording(
    path: Path,
    session_options: Any,
    folder: Path,
    chain: Sequence[Provider],
    index: int,
    *,
    verbose: bool,
) -> Iterator[Recording]:
    """Open a session on the first provider of a chain with the profiler on, as `enter_session`."""
    provider = chain[0][0]
    plug_in.preload_libraries(provider)
    opening = trace.open_recording(path, session_options, folder, provider=provider, chain=chain)
    with ExitStack() as stack:
        yield enter_session(stack, opening, provider, index, verbose=verbose)


def enter_session(
    stack: ExitStack,
    opening: AbstractContextManager[T],
    provider: str,
    index: int = 0,
    *,
    verbose: bool = False,
) -> T:
    """Open a session; where that fails, find out whether it is the provider's fault.

    Args:
        opening: Of a session on this provider.

    Raises:
        BackendMissing: The provider does not start or took nothing; it says why, in the first
            real line of the runtime's log.
        OrtuneError: What opening it raises.
    """
    log = messages.RuntimeLog()
    try:
        with messages.capture_log(verbose=verbose) as log:
            return stack.enter_context(opening)
    except (BackendMissing, BadModel) as error:
        if isinstance(error, BadModel) and _CAPTURE in error.what:
            raise
        probed = plug_in.probe_provider(provider, index)
        if probed.state != "works":
            reason = log.reason or probed.reason
            message = f"{provider} does not start ({probed.state}): {reason}"
            raise BackendMissing(message, fix=probed.fix) from error
        if isinstance(error, BackendMissing) and log.reason:
            raise BackendMissing(f"{error.what}: {log.reason}", fix=error.fix) from error
        raise


def find_graph_obstacles(opened: ort.OrtSession, provider: str) -> tuple[str, ...]:
    """Return what keeps a session from being recorded as one CUDA graph; empty for nothing.

    A graph replays the same kernels on the same addresses: sizes must be fixed, and whatever runs
    elsewhere is named (onnxruntime, "CUDA execution provider: using CUDA Graphs").
    """
    obstacles = []
    for value in opened.inner.get_inputs():
        dims = ["?" if dim is None else str(dim) for dim in value.shape]
        if any(not isinstance(dim, int) for dim in value.shape):
            obstacles.append(f"input '{value.name}' has no fixed shape ({'x'.join(dims)})")
    parts = opened.list_assigned_ops()
    for other, nodes in parts.items():
        bodies = [name for name, op in nodes if op in _CONTROL]
        if bodies:
            obstacles.append(f"control flow: {wording.join_names(bodies, _MOST_NAMED)}")
        if other != provider and provider in parts:
            count = wording.format_count(len(nodes), "node")
            named = wording.join_names([name for name, _ in nodes], _MOST_NAMED)
            obstacles.append(f"{count} on {other}: {named}")
    return tuple(obstacles)


def _no_graph(path: Path, reasons: Sequence[str]) -> BadSettings:
    return BadSettings(
        f"{path.name} does not run as a CUDA graph: {'; '.join(reasons)}",
        fix="fix its shapes (--fixed-shapes), or leave cuda_graph out",
    )
