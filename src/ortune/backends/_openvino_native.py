"""OpenVINO's own runtime: the way to it on CPUs that its onnxruntime plug-in does not take."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from ortune.backends import _ort
from ortune.backends._in_process import InProcess
from ortune.core.backend import Session, Tensors
from ortune.core.errors import BadModel

PROVIDER = "OpenVINO"
"""Under this name the runtime's own nodes are shown as placed."""


def installed() -> bool:
    """Say whether the runtime's own package is there."""
    return importlib.util.find_spec("openvino") is not None


class Compiled(InProcess):
    """A compiled model behind the Session protocol."""

    def __init__(self, compiled: Any) -> None:
        self.request = compiled.create_infer_request()
        self._nodes = len(compiled.get_runtime_model().get_ops())
        self._outputs = [(port.get_any_name(), port) for port in compiled.outputs]

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
    with compiled(path, options) as found:
        yield Compiled(found)


@contextmanager
def compiled(path: Path, options: Mapping[str, str]) -> Iterator[Any]:
    """Yield OpenVINO's own compiled model.

    Raises:
        BadModel: OpenVINO does not accept it.
    """
    import openvino

    try:
        found = openvino.Core().compile_model(str(path), "CPU", dict(options))
    except RuntimeError as error:
        raise BadModel(
            f"openvino does not load {path.name}: {_ort.first_line(error)}",
            fix="leave this backend out with --on cpu",
        ) from None
    yield found
