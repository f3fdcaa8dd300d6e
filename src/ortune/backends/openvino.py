"""Intel's OpenVINO as a plug-in provider of stock onnxruntime."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from ortune.backends import _ort
from ortune.core.backend import Backend, Session
from ortune.core.cpus import effective_cpus
from ortune.core.errors import BackendMissing
from ortune.core.facts import Facts
from ortune.core.workload import Workload

_PACKAGE = "onnxruntime-ep-openvino"
_NO_DEVICE = (
    "use --on cpu: the installed plug-in takes Intel CPUs only (microsoft/onnxruntime PR#31981)"
)


@dataclass(frozen=True)
class Openvino(Backend):
    """CPU execution by OpenVINO.

    Attributes:
        threads: Threads inside one inference; 0 takes the CPUs this process may really use.
        precision: Arithmetic of float layers; always set, as OpenVINO's silent default is bf16
            where the CPU has it.
    """

    provider: ClassVar[str] = "OpenVINOExecutionProvider"

    precision: Literal["f32", "bf16", "f16"] = "f32"

    @property
    def lossy(self) -> bool:
        """16-bit hints change numbers."""
        return self.precision != "f32"

    @property
    def arithmetic(self) -> frozenset[str]:
        """Integer kernels, and weights that stay integers until they are used."""
        return frozenset({"int8", "int8-weights"})

    def missing(self) -> str | None:
        """Return the line that installs the plug-in, or None when it is there."""
        if reason := _ort.missing():
            return reason
        if importlib.util.find_spec("onnxruntime_ep_openvino") is None:
            return f"pip install {_PACKAGE}"
        return _probe()

    def variants(self, facts: Facts, workload: Workload) -> Iterable[Self]:
        """Yield the three precisions: f16 is 12-19 dB cleaner than bf16, but may overflow."""
        yield replace(self, precision="f16")
        yield self
        yield replace(self, precision="bf16")

    def tweaks(self, facts: Facts) -> Iterable[Self]:
        """Yield one thread."""
        yield replace(self, threads=1)

    def open(self, path: Path, *, verbose: bool = False) -> AbstractContextManager[Session]:
        """Open a session whose options go through ``load_config``; elsewhere they are ignored."""
        made = _ort.options(self.threads, "all", verbose=verbose)
        made.add_provider_for_devices(
            self._devices()[:1], {"load_config": json.dumps(self._load())}
        )
        return _ort.session(path, made, provider=self.provider)

    def _load(self) -> dict[str, dict[str, str]]:
        return {
            "CPU": {
                "INFERENCE_NUM_THREADS": str(self.threads or effective_cpus()),
                "INFERENCE_PRECISION_HINT": self.precision,
                "PERFORMANCE_HINT": "LATENCY",
            }
        }

    def _devices(self) -> list[Any]:
        try:
            import onnxruntime_ep_openvino as plugin
        except ImportError:
            raise BackendMissing(
                "backend 'openvino' is not installed", fix=f"pip install {_PACKAGE}"
            ) from None
        found = _ort.plugin_devices(
            "openvino", plugin.get_library_path, plugin.get_ep_name(), "CPU"
        )
        if not found:
            raise BackendMissing("the OpenVINO plug-in offers no device here", fix=_NO_DEVICE)
        return found


@cache
def _probe() -> str | None:
    """Register the plug-in in a process of its own and ask for its devices.

    A registration holds for the life of a process, and a broken library could end it.
    """
    code = (
        "from ortune.backends.openvino import Openvino\n"
        "from ortune.core.errors import OrtuneError\n"
        "try:\n    Openvino()._devices()\n"
        "except OrtuneError as error:\n    print(error.fix)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return f"the installed plug-in does not load: {last}"
    return done.stdout.strip() or None
