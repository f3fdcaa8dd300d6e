"""OpenVINO's own runtime: the way to it on CPUs that its onnxruntime plug-in does not take."""

from __future__ import annotations

import importlib.util
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from ortune.core.errors import BadModel, gist
from ortune.core.session import Session, Tensors
from ortune.runtimes.in_process import InProcess

PROVIDER = "OpenVINO"
"""Under this name the runtime's own nodes are shown as placed."""


def installed() -> bool:
    """Say whether the runtime's own package is there."""
    return importlib.util.find_spec("openvino") is not None


class Compiled(InProcess):
    """A compiled model behind the Session protocol."""

    def __init__(self, compiled: Any) -> None:
        self._compiled, self._own = compiled, threading.local()
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
        return {PROVIDER: self._nodes}


@contextmanager
def session(path: Path, options: Mapping[str, str]) -> Iterator[Session]:
    """Compile a model for the CPU.

    Raises:
        BadModel: OpenVINO does not accept it.
    """
    yield Compiled(compiled(path, options))


def takes(path: Path, options: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Return device -> names of the model's operations that it has kernels for.

    Operations have the names of the nodes that they were read from.

    Raises:
        BadModel: OpenVINO does not read the model; the text names the operators.
    """
    import openvino

    core = openvino.Core()
    try:
        found = core.query_model(core.read_model(str(path)), "CPU", dict(options))
    except RuntimeError as error:
        raise BadModel(
            f"openvino does not load {path.name}: {_reason(error)}",
            fix="leave this backend out with --on cpu",
        ) from None
    taken: dict[str, list[str]] = {}
    for name, device in found.items():
        taken.setdefault(device, []).append(name)
    return {f"{PROVIDER} {device}": tuple(names) for device, names in taken.items()}


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
    import openvino

    try:
        openvino.save_model(openvino.Core().read_model(str(path)), out, compress_to_fp16=False)
    except RuntimeError as error:
        raise BadModel(
            f"openvino does not convert {path.name}: {_reason(error)}",
            fix="leave this backend out with --on cpu",
        ) from None


def compiled(path: Path, options: Mapping[str, str]) -> Any:
    """Return OpenVINO's own compiled model.

    Raises:
        BadModel: OpenVINO does not accept it.
    """
    import openvino

    try:
        return openvino.Core().compile_model(str(path), "CPU", dict(options))
    except RuntimeError as error:
        raise BadModel(
            f"openvino does not load {path.name}: {_reason(error)}",
            fix="leave this backend out with --on cpu",
        ) from None
