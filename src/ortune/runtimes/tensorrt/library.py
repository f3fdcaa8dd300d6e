"""TensorRT's Python package: whether it is there, its messages, its plug-in libraries.

Read in the documentation and in the signatures of NVIDIA's own bindings, 10.16 and 11.4; never run
on a GPU here.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from typing import Any

from ortune.core.errors import BackendMissing, BadModel, BadSettings, gist
from ortune.runtimes.tensorrt import cuda

INSTALL = "pip install tensorrt-cu13 cuda-bindings"
"""What both packages come by; `ortune env add tensorrt` puts them into an environment."""
_LEAST = 10


def installed() -> bool:
    """Say whether TensorRT's own package is there."""
    return importlib.util.find_spec("tensorrt") is not None


def missing() -> str | None:
    """Return what to do so that engines can be built and run here, None where they can."""
    if not installed() or not cuda.installed():
        return f"`ortune env add tensorrt`, or {INSTALL}"
    return cuda.no_device()


def load() -> Any:
    """Return the module.

    Raises:
        BackendMissing: It is not installed, does not load, or is older than TensorRT 10.
    """
    try:
        import tensorrt
    except ImportError as error:
        raise BackendMissing(
            f"TensorRT's Python package does not load: {gist(error)}", fix=INSTALL
        ) from None
    if int(tensorrt.__version__.partition(".")[0]) < _LEAST:
        raise BackendMissing(
            f"TensorRT {tensorrt.__version__} is too old: engines need TensorRT {_LEAST}",
            fix=INSTALL,
        )
    return tensorrt


def logger(trt: Any) -> Any:
    """Return a logger that keeps errors as lines, in ``errors``, and drops everything else."""

    class Log(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.errors: list[str] = []

        def log(self, severity: Any, msg: str) -> None:
            if severity in (trt.ILogger.Severity.INTERNAL_ERROR, trt.ILogger.Severity.ERROR):
                self.errors.append(msg)

    return Log()


def said(log: Any) -> str:
    """Return the first error that was logged, in one line; a word where there is none."""
    return gist(log.errors[0]) if log.errors else "it does not say why"


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
                f"TensorRT does not load the plug-in library {path}: {said(log)}",
                fix="build it with this TensorRT's headers; docs/tensorrt.md has an example",
            )


def refuse(what: str, log: Any, fix: str) -> BadModel:
    """Return the error that says what TensorRT did not do, and its own first reason."""
    return BadModel(f"{what}: {said(log)}", fix=fix)
