"""OpenVINO's own runtime: the way to it on CPUs that its onnxruntime plug-in does not take."""

from __future__ import annotations

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
from ortune.backends.runtimes.onnxruntime.providers import plug_in
from ortune.core.errors import BadModel, gist
from ortune.core.session import Executed, InProcess, Operand, Recorded, Recording, Session, Tensors

_SKIPPED = 2
"""The first runs compile kernels for the shapes they see."""
_DTYPES = {"f32": "float32", "f64": "float64", "f16": "float16", "bf16": "bfloat16"}
_DTYPES |= {"boolean": "bool"}
_WHOLE = "times are means over all profiled runs: the counters are sums"


SILENT = 'sys.modules.setdefault("openvino_telemetry", None)'
"""Code of a process of its own that says so before it imports the package."""


def load() -> Any:
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


def installed() -> bool:
    """Say whether the runtime's own package is there."""
    return importlib.util.find_spec("openvino") is not None


@cache
def missing(device: str = "CPU") -> str | None:
    """Return what keeps the runtime from a device of this machine and how to fix it, or None.

    GPU and NPU are asked in a process of its own: their drivers are loaded.

    Args:
        device: In OpenVINO's spelling: CPU, GPU, NPU, AUTO.
    """
    if not installed():
        return "pip install openvino"
    if device not in DRIVERS:
        return None
    return own_process.refusal(f"OpenVINO's {device} device", _ASK, device, DRIVERS[device])


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


class Compiled(InProcess):
    """A compiled model behind the Session protocol."""

    def __init__(self, compiled: Any) -> None:
        self._compiled, self._own = compiled, threading.local()
        self.provider = _shown(compiled)
        self._nodes = 1  # a device may show no graph: it compiles the model as one
        with suppress(RuntimeError):
            self._nodes = len(compiled.get_runtime_model().get_ops())
        self._outputs = [(port.get_any_name(), port) for port in compiled.outputs]

    @property
    def request(self) -> Any:
        """The calling thread's request: one computes for one caller at a time."""
        if not hasattr(self._own, "request"):
            self._own.request = self._compiled.create_infer_request()
        return self._own.request

    def run(self, feeds: Tensors) -> dict[str, NDArray[Any]]:
        """Run once; outputs by name, copied out of the runtime's buffers."""
        found = self.request.infer(dict(feeds), share_inputs=True, share_outputs=True)
        return {name: found[port].copy() for name, port in self._outputs}

    def placement(self) -> Mapping[str, int]:
        """All nodes of the compiled model run here."""
        return {self.provider: self._nodes}


def _shown(compiled: Any) -> str:
    """Return the runtime's name, and the devices that it really computes on where no CPU is."""
    devices = [str(one).strip("()") for one in compiled.get_property("EXECUTION_DEVICES")]
    return PROVIDER if devices == ["CPU"] else f"{PROVIDER} {', '.join(devices)}"


@contextmanager
def session(path: Path, options: Mapping[str, str], device: str = "CPU") -> Iterator[Session]:
    """Compile a model for a device; there is no other that it would fall back to.

    Raises:
        BadModel: OpenVINO does not accept it.
    """
    yield Compiled(compiled(path, options, device))


def takes(
    path: Path, options: Mapping[str, str], device: str = "CPU"
) -> dict[str, tuple[str, ...]]:
    """Return device -> names of the model's operations that it has kernels for.

    Operations have the names of the nodes that they were read from.

    Raises:
        BadModel: OpenVINO does not read the model; the text names the operators.
    """
    core = load().Core()
    if device == "AUTO":  # it does not tell; the device that it chooses does
        chosen = compiled(path, options, device).get_property("EXECUTION_DEVICES")
        device, options = str(chosen[0]).strip("()"), {}
    with _refusing("load", path):
        found = core.query_model(core.read_model(str(path)), device, dict(options))
    taken: dict[str, list[str]] = {}
    for name, place in found.items():
        taken.setdefault(place, []).append(name)
    return {f"{PROVIDER} {place}": tuple(names) for place, names in taken.items()}


@contextmanager
def _refusing(verb: str, path: Path) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise BadModel(
            f"openvino does not {verb} {path.name}: {_reason(error)}",
            fix="leave this backend out with --on cpu",
        ) from None


def _reason(error: Exception) -> str:
    """Return which operators OpenVINO does not convert and why the first, from its report."""
    text = str(error)
    failed = re.search(r"(?:Conversion is failed for|No conversion rule found for.*?): (.*)", text)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    kept = [line for line in lines if _NOISE.search(line) is None]
    why = next((line for line in kept if not line.startswith("--")), "")
    if failed is None:
        return gist(why or error)
    return gist(f"it does not convert {failed[1].strip()}{f': {why}' if why else ''}")


_NOISE = re.compile(
    r"^(Exception from|Check '|FrontEnd API failed|While validating|Model wasn't fully|Summary:)"
    r"|Failed operations detailed|Conversion is failed"
)


def save(path: Path, out: Path) -> None:
    """Write a model in OpenVINO's own format; weights keep their types.

    Raises:
        BadModel: OpenVINO does not read the model.
    """
    openvino = load()
    with _refusing("convert", path):
        openvino.save_model(openvino.Core().read_model(str(path)), out, compress_to_fp16=False)


def compiled(path: Path, options: Mapping[str, str], device: str = "CPU") -> Any:
    """Return OpenVINO's own compiled model.

    Raises:
        BadModel: OpenVINO does not accept it.
    """
    with _refusing("load", path):
        return load().Core().compile_model(str(path), device, dict(options))


class _Counting(Compiled):
    """A compiled model whose layers are counted; the counters are means over all runs so far."""

    def __init__(self, compiled: Any) -> None:
        super().__init__(compiled)
        self._graph = compiled.get_runtime_model()
        self._walls: list[int] = []
        self._before: dict[str, float] = {}

    def run(self, feeds: Tensors) -> dict[str, NDArray[Any]]:
        start = time.perf_counter_ns()
        found = super().run(feeds)
        self._walls.append(time.perf_counter_ns() - start)
        if len(self._walls) == _SKIPPED:
            self._before = self._counters()
        return found

    def _counters(self) -> dict[str, float]:
        """Return layer -> microseconds of all runs so far; those that were not run are left out.

        The mean is cut to whole microseconds: half of one is put back.
        """
        return {
            one.node_name: (one.real_time.total_seconds() * 1e6 + 0.5) * len(self._walls)
            for one in self.request.get_profiling_info()
            if one.status == one.Status.EXECUTED
        }

    def recorded(self, runs: int) -> Recorded:
        """Read the counters; all runs but the first two count, whatever `runs` says."""
        after = self._counters()
        counted = max(1, len(self._walls) - _SKIPPED)
        taken = {n: max(0.0, t - self._before.get(n, 0.0)) / counted for n, t in after.items()}
        wall = float(np.mean(self._walls[_SKIPPED:] or self._walls))
        nodes, constants = executed(self._graph, taken, self.provider)
        return Recorded(
            nodes=nodes,
            runs=counted,
            wall_ns=wall,
            run_ns=wall,
            constants=constants,
            placement={self.provider: tuple(node.name for node in nodes if node.calls)},
            notes=(_WHOLE,),
        )


def executed(
    graph: Any, taken: Mapping[str, float], provider: str = PROVIDER
) -> tuple[tuple[Executed, ...], tuple[str, ...]]:
    """Read a runtime graph.

    Args:
        taken: Layer -> microseconds of a run.
        provider: What ran them.

    Returns:
        Its layers in order of execution, and the names of its constants.
    """
    nodes: list[tuple[int, Executed]] = []
    constants: list[str] = []
    for op in graph.get_ordered_ops():
        info = {key: _text(op.get_rt_info()[key]) for key in op.get_rt_info()}
        name, kind = op.get_friendly_name(), _layer(op)
        if kind == "Const":
            constants.append(_tensor(op))
        if kind in ("Const", "Input", "Parameter", "Output", "Result"):
            continue
        sources = [port.get_source_output() for port in op.inputs()]
        spent = 1e3 * taken.get(name, 0.0)
        one = Executed(
            name,
            kind,
            provider=provider,
            reads=tuple(_tensor(port.get_node(), port.get_index()) for port in sources),
            writes=tuple(_tensor(op, index) for index in range(len(op.outputs()))),
            known=tuple(part for part in info.get("originalLayersNames", "").split(",") if part),
            calls=int(name in taken),
            span_ns=spent,
            kernel_ns=spent,
            inputs=_operands(sources),
            outputs=_operands(op.outputs()),
        )
        nodes.append((int(info.get("execOrder", "0") or 0), one))
    nodes.sort(key=lambda item: (not item[1].calls, item[0]))
    return tuple(node for _, node in nodes), tuple(constants)


@contextmanager
def recording(path: Path, options: Mapping[str, str], device: str = "CPU") -> Iterator[Recording]:
    """Compile a model with counters on."""
    yield _Counting(compiled(path, {**options, "PERF_COUNT": "YES"}, device))


def _tensor(op: Any, index: int = 0) -> str:
    """Name an output apart from the values of the model: layers have the names of nodes."""
    name: str = op.get_friendly_name()
    return name if _layer(op) in ("Input", "Parameter") else f"layer {name}:{index}"


def _layer(op: Any) -> str:
    return _text(op.get_rt_info()["layerType"])


def _text(value: Any) -> str:
    return str(value.astype(str) if hasattr(value, "astype") else value)


def _operands(ports: Iterable[Any]) -> tuple[Operand, ...]:
    """Describe tensors; none of them when a shape is only known in a run."""
    found = []
    for port in ports:
        if port.get_partial_shape().is_dynamic:
            return ()
        shape = tuple(int(size) for size in port.get_shape())
        kind = port.get_element_type()
        name = kind.get_type_name()
        dtype = _DTYPES.get(name, re.sub(r"^(u?)i?(?=\d+$)", r"\1int", name))
        size = math.prod(shape) * kind.bitwidth // 8
        found.append(Operand(dtype, shape, size, _layer(port.get_node()) == "Const"))
    return tuple(found)
