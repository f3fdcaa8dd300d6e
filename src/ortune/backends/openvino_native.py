"""OpenVINO's own runtime, for CPUs that its onnxruntime plug-in does not take (AMD's)."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from numpy.typing import NDArray

from ortune.core.backend import Backend, Session, Tensors
from ortune.core.cpus import effective_cpus
from ortune.core.errors import BadModel
from ortune.core.facts import Facts
from ortune.core.runqueue import waited_ns
from ortune.core.workload import Workload


@dataclass(frozen=True)
class OpenvinoNative(Backend):
    """CPU execution by OpenVINO without onnxruntime.

    Attributes:
        threads: Threads inside one inference; 0 takes the CPUs this process may really use.
        precision: Arithmetic of float layers; always set, as the silent default is bf16 where the
            CPU has it.
    """

    provider: ClassVar[str] = "OpenVINO"
    stands_in_for: ClassVar[str] = "openvino"

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
        """Return the line that installs the runtime, or None when it is there."""
        return None if importlib.util.find_spec("openvino") else "pip install openvino"

    def variants(self, facts: Facts, workload: Workload) -> Iterable[Self]:
        """Yield bf16, f32 and f16; f16 runs as bf16 where the CPU has no fp16 arithmetic."""
        yield replace(self, precision="bf16")
        yield self
        yield replace(self, precision="f16")

    def tweaks(self, facts: Facts) -> Iterable[Self]:
        """Yield one thread."""
        yield replace(self, threads=1)

    def open(self, path: Path, *, verbose: bool = False) -> AbstractContextManager[Session]:
        """Compile the model for the CPU."""
        return _open(path, self.threads or effective_cpus(), self.precision)


class _Compiled:
    def __init__(self, compiled: Any) -> None:
        self._request = compiled.create_infer_request()
        self._nodes = len(compiled.get_runtime_model().get_ops())
        self._outputs = [(port.get_any_name(), port) for port in compiled.outputs]

    def run(self, feeds: Tensors) -> dict[str, NDArray[Any]]:
        """Run once; outputs by name, copied out of the runtime's buffers."""
        found = self._request.infer(dict(feeds), share_inputs=True, share_outputs=True)
        return {name: found[port].copy() for name, port in self._outputs}

    def placement(self) -> Mapping[str, int]:
        """All nodes of the compiled model run here."""
        return {OpenvinoNative.provider: self._nodes}

    def clock(self) -> int:
        """Monotonic nanoseconds."""
        return time.perf_counter_ns()

    def waited(self) -> int:
        """Run-queue time of all threads."""
        return waited_ns()


@contextmanager
def _open(path: Path, threads: int, precision: str) -> Iterator[Session]:
    import openvino

    try:
        compiled = openvino.Core().compile_model(
            str(path),
            "CPU",
            {
                "INFERENCE_NUM_THREADS": threads,
                "INFERENCE_PRECISION_HINT": precision,
                "PERFORMANCE_HINT": "LATENCY",
            },
        )
    except RuntimeError as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        raise BadModel(
            f"openvino does not load {path.name}: {lines[-1][:300] if lines else error}",
            fix="leave this backend out with --on cpu",
        ) from None
    yield _Compiled(compiled)
