"""OpenVINO: through its onnxruntime plug-in, or by its own runtime where that has no device."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal, Self

from ortune.backends import _openvino_native as native
from ortune.backends import _openvino_plugin as plugin
from ortune.core.backend import Backend, Session
from ortune.core.cpus import effective_cpus, instruction_sets
from ortune.core.facts import Facts
from ortune.core.workload import Workload

_BF16 = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
_FP16 = frozenset({"avx512_fp16", "amx_fp16", "asimdhp"})


@dataclass(frozen=True)
class Openvino(Backend):
    """CPU execution by OpenVINO.

    The plug-in provider is used where it offers a device; it takes Intel CPUs only. Elsewhere the
    ``openvino`` package runs the model itself. The placement says which of the two it was.

    Attributes:
        threads: Threads inside one inference; 0 takes the CPUs this process may really use.
        precision: Arithmetic of float layers; always set, as OpenVINO's silent default is bf16
            where the CPU has it.
    """

    provider: ClassVar[str] = plugin.PROVIDER

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
        """Return what to install, or None when one of the two ways is open."""
        reason = plugin.missing()
        return None if reason is None or native.installed() else reason

    def variants(self, facts: Facts, workload: Workload) -> Iterable[Self]:
        """Yield the 16-bit precisions that this CPU computes in, then f32.

        f16 is as fast as bf16 and 12-19 dB cleaner, but overflows on some models. Without fp16
        arithmetic the f16 hint runs as bf16.
        """
        sets = instruction_sets()
        if sets & _FP16 or not sets:
            yield replace(self, precision="f16")
        if sets & _BF16 and not sets & _FP16:
            yield replace(self, precision="bf16")
        yield self
        if sets & _BF16 and sets & _FP16:
            yield replace(self, precision="bf16")

    def tweaks(self, facts: Facts) -> Iterable[Self]:
        """Yield one thread."""
        yield replace(self, threads=1)

    def open(self, path: Path, *, verbose: bool = False) -> AbstractContextManager[Session]:
        """Open a session with every option that matters written out."""
        threads = self.threads or effective_cpus()
        options = {
            "INFERENCE_NUM_THREADS": str(threads),
            "INFERENCE_PRECISION_HINT": self.precision,
            "PERFORMANCE_HINT": "LATENCY",
        }
        if plugin.missing() is None:
            return plugin.session(path, threads, options, verbose=verbose)
        return native.session(path, options)
