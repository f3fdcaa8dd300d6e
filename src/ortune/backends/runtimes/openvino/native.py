"""OpenVINO's own runtime: the way to it on CPUs that its onnxruntime plug-in does not take."""

import importlib.util
import math
import re
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortune.backends.runtimes import own_process
from ortune.backends.runtimes.onnxruntime import plug_in
from ortune.core.errors import BadModel, summarize_error
from ortune.core.session import Executed, InProcess, Operand, Recorded, Recording, Session, Tensors
from ortune.core.termination import find_termination

_SKIPPED = 2
"""The first runs compile kernels for the shapes they see."""
_DTYPES = {"f32": "float32", "f64": "float64", "f16": "float16", "bf16": "bfloat16"}
_DTYPES |= {"boolean": "bool"}
_WHOLE = "times are means over all profiled runs: the counters are sums"


SILENT = 'sys.modules.setdefault("openvino_telemetry", None)'
"""Code of a process of its own that says so before it imports the package."""


def import_openvino() -> Any:
    """Return the package ``openvino``, without the usage data that it sends when it is imported.

    It does that with package ``openvino-telemetry``, from a forked process that outlives a worker
    and holds its pipes open; where that package cannot be imported, it goes on without.
    """
    first = sys.modules.keys().isdisjoint({"openvino", "openvino_telemetry"})
    if first:  # else the program that we run in has decided
        sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]
    try:
        import openvino
    finally:
        if first:
            del sys.modules["openvino_telemetry"]
    return openvino


PROVIDER = "OpenVINO"
"""Under this name the runtime's own nodes are shown as placed, with a device that is no CPU."""
DRIVERS: Mapping[str, str] = {
    "GPU": "install Intel's GPU driver: apt install ocl-icd-libopencl1 intel-opencl-icd",
    "NPU": "install Intel's NPU driver: github.com/intel/linux-npu-driver/releases",
}
"""Device -> what brings it, beside the device itself."""


def is_openvino_installed() -> bool:
    """Say whether the runtime's own package is there."""
    return importlib.util.find_spec("openvino") is not None


@cache
def explain_missing_device(device: str = "CPU") -> str | None:
    """Return what keeps the runtime from a device of this machine and how to fix it, or None.

    GPU and NPU are asked in a process of its own: their drivers are loaded.

    Args:
        device: In OpenVINO's spelling: CPU, GPU, NPU, AUTO.
    """
    if not is_openvino_installed():
        return "pip install openvino"
    if device not in DRIVERS:
        return None
    return own_process.find_load_failure(
        f"OpenVINO's {device} device", _ASK, device, DRIVERS[device]
    )


_ASK = f"""
import sys
{SILENT}
import openvino
device, remedy = sys.argv[1:]
try:
    found = openvino.Core().get_property(device, "AVAILABLE_DEVICES")
except RuntimeError as error:
    reason = [line for line in str(error).splitlines() if line.strip()][-1].rpartition('": ')[2]
    print(f"OpenVINO's {{device}} device {plug_in.NOT_LOADED}: {{reason}}; {{remedy}}")
else:
    if not found:
        print(f"OpenVINO {plug_in.NO_DEVICE} {{device}} here; {{remedy}}")
"""


class CompiledSession(InProcess):
    """A compiled model behind the Session protocol."""

    def __init__(self, compiled: Any) -> None:
        self._compiled, self._local = compiled, threading.local()
        executing = compiled.get_property("EXECUTION_DEVICES")
        devices = [str(device).strip("()") for device in executing]
        self.provider = PROVIDER if devices == ["CPU"] else f"{PROVIDER} {', '.join(devices)}"
        self._nodes = 1  # a device may show no graph: it compiles the model as one
        with suppress(RuntimeError):
            self._nodes = len(compiled.get_runtime_model().get_ops())
        self._outputs = [(_find_output_name(port), port) for port in compiled.outputs]

    @property
    def request(self) -> Any:
        """The calling thread's request: one computes for one caller at a time."""
        if not hasattr(self._local, "request"):
            self._local.request = self._compiled.create_infer_request()
        return self._local.request

    def run(self, feeds: Tensors) -> dict[str, NDArray[Any]]:
        """Run once; outputs by name, copied out of the runtime's buffers.

        The runtime looks between two layers whether it is to end, not inside the bodies of loops.

        Raises:
            RunTerminated: It was told to end.
        """
        request, termination = self.request, find_termination()
        # A scalar that must not be written to it cannot share, and does not copy either.
        inputs = {n: array if array.ndim else array.copy() for n, array in feeds.items()}
        if termination is None:
            outputs = request.infer(inputs, share_inputs=True, share_outputs=True)
        else:  # what `infer` runs in the caller's thread cannot be cancelled
            request.start_async(inputs, share_inputs=True)
            with termination.watch_run(request.cancel):
                request.wait()
            outputs = request.results
        return {name: outputs[port].copy() for name, port in self._outputs}

    def placement(self) -> Mapping[str, int]:
        """All nodes of the compiled model run here."""
        return {self.provider: self._nodes}


_RESULT = "/sink_port_0"
"""Behind the name of an output in the name of its operation."""


def _find_output_name(port: Any) -> str:
    """Return the name that the file gives an output; OpenVINO has all those of its tensor.

    The tensor has several where the output is made by an operator that changes nothing.
    """
    name = str(port.get_node().get_friendly_name()).removesuffix(_RESULT)
    return name if name in port.get_names() else str(port.get_any_name())


@contextmanager
def open_native_session(
    path: Path, options: Mapping[str, str], device: str = "CPU"
) -> Iterator[Session]:
    """Compile a model for a device; there is no other that it would fall back to.

    Raises:
        BadModel: OpenVINO does not accept it.
    """
    yield CompiledSession(compile_for_device(path, options, device))


def query_nodes_by_device(
    path: Path, options: Mapping[str, str], device: str = "CPU"
) -> dict[str, tuple[str, ...]]:
    """Return device -> names of the model's operations that it has kernels for.

    Operations have the names of the nodes that they were read from.

    Raises:
        BadModel: OpenVINO does not read the model; the text names the operators.
    """
    core = import_openvino().Core()
    if device == "AUTO":  # it does not tell; the device that it chooses does
        chosen = compile_for_device(path, options, device).get_property("EXECUTION_DEVICES")
        device, options = str(chosen[0]).strip("()"), {}
    with _translate_errors("load", path):
        device_by_name = core.query_model(core.read_model(str(path)), device, dict(options))
    names_by_device: dict[str, list[str]] = {}
    for name, place in device_by_name.items():
        names_by_device.setdefault(place, []).append(name)
    return {f"{PROVIDER} {place}": tuple(names) for place, names in names_by_device.items()}


@contextmanager
def _translate_errors(verb: str, path: Path) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise BadModel(
            f"openvino does not {verb} {path.name}: {_summarize_report(error)}",
            fix="leave this backend out with --on cpu",
        ) from None


def _summarize_report(error: Exception) -> str:
    """Return which operators OpenVINO does not convert and why the first, from its report."""
    text = str(error)
    failed = re.search(r"(?:Conversion is failed for|No conversion rule found for.*?): (.*)", text)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    kept = [line for line in lines if _NOISE.search(line) is None]
    why = next((line for line in kept if not line.startswith("--")), "")
    if failed is None:
        return summarize_error(why or error)
    return summarize_error(f"it does not convert {failed[1].strip()}{f': {why}' if why else ''}")


_NOISE = re.compile(
    r"^(Exception from|Check '|FrontEnd API failed|While validating|Model wasn't fully|Summary:)"
    r"|Failed operations detailed|Conversion is failed"
)


def write_ir(path: Path, out: Path) -> None:
    """Write a model in OpenVINO's own format; weights keep their types.

    Raises:
        BadModel: OpenVINO does not read the model.
    """
    openvino = import_openvino()
    with _translate_errors("convert", path):
        openvino.save_model(openvino.Core().read_model(str(path)), out, compress_to_fp16=False)


def compile_for_device(path: Path, options: Mapping[str, str], device: str = "CPU") -> Any:
    """Return OpenVINO's own compiled model. Raises BadModel: OpenVINO does not accept it."""
    with _translate_errors("load", path):
        return import_openvino().Core().compile_model(str(path), device, dict(options))


class _CountingSession(CompiledSession):
    """A compiled model whose layers are counted; the counters are means over all runs so far."""

    def __init__(self, compiled: Any) -> None:
        super().__init__(compiled)
        self._graph = compiled.get_runtime_model()
        self._walls: list[int] = []
        self._before: dict[str, float] = {}

    def run(self, feeds: Tensors) -> dict[str, NDArray[Any]]:
        start = time.perf_counter_ns()
        outputs = super().run(feeds)
        self._walls.append(time.perf_counter_ns() - start)
        if len(self._walls) == _SKIPPED:
            self._before = self._read_counters()
        return outputs

    def _read_counters(self) -> dict[str, float]:
        """Return layer -> microseconds of all runs so far; those that were not run are left out.

        The mean is cut to whole microseconds: half of one is put back.
        """
        return {
            layer.node_name: (layer.real_time.total_seconds() * 1e6 + 0.5) * len(self._walls)
            for layer in self.request.get_profiling_info()
            if layer.status == layer.Status.EXECUTED
        }

    def recorded(self, runs: int) -> Recorded:
        """Read the counters; all runs but the first two count, whatever `runs` says."""
        after = self._read_counters()
        counted = max(1, len(self._walls) - _SKIPPED)
        layer_times = {
            n: max(0.0, t - self._before.get(n, 0.0)) / counted for n, t in after.items()
        }
        wall = float(np.mean(self._walls[_SKIPPED:] or self._walls))
        nodes, constants = read_runtime_graph(self._graph, layer_times, self.provider)
        return Recorded(
            nodes=nodes,
            runs=counted,
            wall_ns=wall,
            run_ns=wall,
            constants=constants,
            placement={self.provider: tuple(node.name for node in nodes if node.calls)},
            notes=(_WHOLE,),
        )


def read_runtime_graph(
    graph: Any, layer_times: Mapping[str, float], provider: str = PROVIDER
) -> tuple[tuple[Executed, ...], tuple[str, ...]]:
    """Read a runtime graph.

    Args:
        layer_times: Layer -> microseconds of a run.
        provider: What ran them.

    Returns:
        Its layers in order of execution, and the names of its constants.
    """
    nodes: list[tuple[int, Executed]] = []
    constants: list[str] = []
    for op in graph.get_ordered_ops():
        info = {key: _decode_text(op.get_rt_info()[key]) for key in op.get_rt_info()}
        name, kind = op.get_friendly_name(), _read_layer_type(op)
        if kind == "Const":
            constants.append(_name_tensor(op))
        if kind in ("Const", "Input", "Parameter", "Output", "Result"):
            continue
        sources = [port.get_source_output() for port in op.inputs()]
        spent = 1e3 * layer_times.get(name, 0.0)
        layer = Executed(
            name,
            kind,
            provider=provider,
            reads=tuple(_name_tensor(port.get_node(), port.get_index()) for port in sources),
            writes=tuple(_name_tensor(op, index) for index in range(len(op.outputs()))),
            known=tuple(part for part in info.get("originalLayersNames", "").split(",") if part),
            calls=int(name in layer_times),
            span_ns=spent,
            kernel_ns=spent,
            inputs=_read_operands(sources),
            outputs=_read_operands(op.outputs()),
        )
        nodes.append((int(info.get("execOrder", "0") or 0), layer))
    nodes.sort(key=lambda item: (not item[1].calls, item[0]))
    return tuple(node for _, node in nodes), tuple(constants)


@contextmanager
def open_native_recording(
    path: Path, options: Mapping[str, str], device: str = "CPU"
) -> Iterator[Recording]:
    """Compile a model with counters on."""
    yield _CountingSession(compile_for_device(path, {**options, "PERF_COUNT": "YES"}, device))


def _name_tensor(op: Any, index: int = 0) -> str:
    """Name an output apart from the values of the model: layers have the names of nodes."""
    name: str = op.get_friendly_name()
    return name if _read_layer_type(op) in ("Input", "Parameter") else f"layer {name}:{index}"


def _read_layer_type(op: Any) -> str:
    return _decode_text(op.get_rt_info()["layerType"])


def _decode_text(value: Any) -> str:
    return str(value.astype(str) if hasattr(value, "astype") else value)


def _read_operands(ports: Iterable[Any]) -> tuple[Operand, ...]:
    """Describe tensors; none of them when a shape is only known in a run."""
    operands = []
    for port in ports:
        if port.get_partial_shape().is_dynamic:
            return ()
        shape = tuple(int(size) for size in port.get_shape())
        kind = port.get_element_type()
        name = kind.get_type_name()
        dtype = _DTYPES.get(name, re.sub(r"^(u?)i?(?=\d+$)", r"\1int", name))
        size = math.prod(shape) * kind.bitwidth // 8
        operands.append(Operand(dtype, shape, size, _read_layer_type(port.get_node()) == "Const"))
    return tuple(operands)
