"""OpenVINO's own runtime: the way to it on CPUs that its onnxruntime plug-in does not take."""

from __future__ import annotations

import importlib.util
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from ortune.core.errors import BadModel, gist
from ortune.core.session import Session, Tensors
from ortune.runtimes import own_process
from ortune.runtimes.in_process import InProcess
from ortune.runtimes.onnxruntime.providers import plug_in
from ortune.runtimes.openvino import package

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
{package.SILENT}
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
    core = package.load().Core()
    if device == "AUTO":  # it does not tell; the device that it chooses does
        chosen = compiled(path, options, device).get_property("EXECUTION_DEVICES")
        device, options = str(chosen[0]).strip("()"), {}
    try:
        found = core.query_model(core.read_model(str(path)), device, dict(options))
    except RuntimeError as error:
        raise BadModel(
            f"openvino does not load {path.name}: {_reason(error)}",
            fix="leave this backend out with --on cpu",
        ) from None
    taken: dict[str, list[str]] = {}
    for name, place in found.items():
        taken.setdefault(place, []).append(name)
    return {f"{PROVIDER} {place}": tuple(names) for place, names in taken.items()}


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
    openvino = package.load()
    try:
        openvino.save_model(openvino.Core().read_model(str(path)), out, compress_to_fp16=False)
    except RuntimeError as error:
        raise BadModel(
            f"openvino does not convert {path.name}: {_reason(error)}",
            fix="leave this backend out with --on cpu",
        ) from None


def compiled(path: Path, options: Mapping[str, str], device: str = "CPU") -> Any:
    """Return OpenVINO's own compiled model.

    Raises:
        BadModel: OpenVINO does not accept it.
    """
    try:
        return package.load().Core().compile_model(str(path), device, dict(options))
    except RuntimeError as error:
        raise BadModel(
            f"openvino does not load {path.name}: {_reason(error)}",
            fix="leave this backend out with --on cpu",
        ) from None
