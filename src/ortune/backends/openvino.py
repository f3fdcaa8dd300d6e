"""OpenVINO: through its onnxruntime plug-in, or by its own runtime where that has no device."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from ortune.core.backend import Backend
from ortune.core.capabilities import Capabilities, State
from ortune.core.errors import BadSettings
from ortune.core.facts import Facts
from ortune.core.hardware import verified
from ortune.core.hardware.cpus import native as natively
from ortune.core.hardware.cpus import native_types
from ortune.core.plugins import stored
from ortune.core.plugins.bounds import THREADS
from ortune.core.session import Recording, Session
from ortune.core.workload import Workload
from ortune.runtimes.onnxruntime import checks
from ortune.runtimes.onnxruntime.providers import plug_in
from ortune.runtimes.openvino import native, plugin
from ortune.runtimes.openvino import properties as property_keys
from ortune.runtimes.openvino import record as openvino_record


@dataclass(frozen=True)
class Openvino(Backend):
    """Execution by OpenVINO, on the CPU, an Intel GPU or an Intel NPU.

    The plug-in provider is used where it offers the device; of CPUs it takes Intel's only.
    Elsewhere the ``openvino`` package runs the model itself. The placement says which it was.

    Attributes:
        threads: Threads inside one inference; 0 takes the CPUs this process may really use.
        device: Where it computes; there is no falling back to another. auto lets OpenVINO's own
            runtime choose when the model loads: a GPU before the CPU.
        precision: Arithmetic of float layers; always set, as OpenVINO's silent default is bf16
            where the CPU has it, and f16 on GPUs. An NPU has f16 alone.
        hint: What OpenVINO arranges its threads for.
        streams: Inferences that one session computes at a time, the threads divided among them;
            0 follows the hint. It pays where several callers share a session.
        pinning: Bind threads to CPUs.
        hyper_threading: Use both logical CPUs of a core.
        cores: Which kind of core a hybrid CPU computes on.
        flush_denormals: Take floats below 1.2e-38 for 0. Changes numbers.
        config: Any other property of OpenVINO's device, as ``NAME=value``.
    """

    provider: ClassVar[str] = plugin.PROVIDER
    added: ClassVar[frozenset[str]] = frozenset({"device"})

    device: Literal["cpu", "gpu", "npu", "auto"] = "cpu"
    precision: Literal["f32", "bf16", "f16"] = "f32"
    hint: Literal["latency", "throughput"] = "latency"
    streams: Annotated[int, THREADS] = 0
    pinning: Literal["default", "on", "off"] = "default"
    hyper_threading: Literal["default", "on", "off"] = "default"
    cores: Literal["any", "performance", "efficient"] = "any"
    flush_denormals: bool = False
    config: Annotated[tuple[str, ...], stored.pairs(property_keys.OPENVINO_PROPERTIES)] = ()

    def __post_init__(self) -> None:
        checks.at_least(0, threads=self.threads, streams=self.streams)
        checks.pairs(self.config, property_keys.OWN)
        self._demand_of_device()

    def _demand_of_device(self) -> None:
        """Refuse what the device does not have.

        Raises:
            BadSettings: A field is about CPUs, or the precision is none of the device's.
        """
        if self.device == "cpu":
            return
        of_cpus = ("pinning", "hyper_threading", "cores", "flush_denormals")
        checks.agree(
            *(
                (getattr(self, name) == getattr(Openvino, name), name, "device=cpu")
                for name in of_cpus
            ),
            (self.device != "auto" or not self.streams, "streams", "hint=throughput"),
        )
        allowed = {"gpu": ("f32", "f16"), "npu": ("f16",)}.get(self.device, (self.precision,))
        if self.precision not in allowed:
            raise BadSettings(
                f"OpenVINO's {self._name} device does not compute in {self.precision}",
                fix=f"write openvino(device={self.device}, precision={allowed[-1]})",
            )

    @property
    def _name(self) -> str:
        """The device in OpenVINO's spelling."""
        return self.device.upper()

    @classmethod
    def tried(cls) -> tuple[Self, ...]:
        """One for each kind of device, and the choice among them."""
        npu = cls(device="npu", precision="f16")
        return (cls(), cls(device="gpu"), npu, cls(device="auto"))

    @property
    def runs_on(self) -> verified.Kind:
        """What is asked for; auto is the CPU where there is no other device."""
        return "cpu" if self.device == "auto" else self.device

    @property
    def unverified(self) -> str:
        """Of auto: what it takes where there is a GPU, nobody has seen."""
        if self.device != "auto":
            return super().unverified
        reason = verified.reason(self.provider, "gpu")
        return f"{reason}, and auto takes one where it is" if reason else ""

    @property
    def lossy(self) -> bool:
        """16-bit hints and flushing change numbers; what a free property does is not known."""
        return self.precision != "f32" or self.flush_denormals or bool(self.config)

    @property
    def portable(self) -> bool:
        """Float layers compute in float32, and nothing follows this machine's cores.

        A 16-bit hint is arithmetic that the CPU may have or not: elsewhere it becomes float32, or
        f16 becomes bf16, whose answers nobody has scored.
        """
        follows = self.pinning == "on" or self.hyper_threading != "default" or self.streams > 1
        plain = self.precision == "f32" and self.cores == "any" and self.device == "cpu"
        return plain and not follows

    @property
    def arithmetic(self) -> frozenset[str]:
        """Integer kernels, and weights that stay integers until they are used."""
        own = frozenset({"int8", "int8-weights"})
        return own | {"fp16"} if self.device == "gpu" else own

    def missing(self) -> str | None:
        """Return what to install, or None when one of the two ways is open.

        Raises:
            BadSettings: The installed OpenVINO does not know a property that is set.
        """
        reason = plugin.missing(self._name)
        if reason is not None and (other := native.missing(self._name)):
            return other if native.installed() else reason
        self._probe(reason is None)
        return None

    def state(self, missing: str | None) -> State:
        return plug_in.state(missing)

    def variants(
        self, facts: Facts, workload: Workload, capabilities: Capabilities
    ) -> Iterable[Self]:
        """Yield the 16-bit precisions that the device computes in, then f32.

        f16 is 12-19 dB cleaner than bf16 and overflows on some models. It is as fast where both
        have tiles (AMX) or neither has; bf16 comes first where bf16 alone has. Without fp16
        arithmetic the f16 hint runs as bf16.
        """
        if self.device != "cpu":
            if self.device == "gpu" and self.precision == "f32":
                yield replace(self, precision="f16")
            yield self
            return
        flags = capabilities.instruction_sets
        types, units, unknown = native_types(flags), natively(flags), not flags
        half = [replace(self, precision="f16")] if "f16" in types or unknown else []
        brain = [replace(self, precision="bf16")] if "bf16" in types else []
        tiles = "bf16-amx" in units and "f16-amx" not in units
        yield from (*brain, *half) if tiles else (*half, *brain)
        yield self

    def coordinates(
        self, facts: Facts, capabilities: Capabilities
    ) -> Mapping[str, Sequence[Self]]:
        """Return neighbours by setting, those that are worth most first.

        Streams are within one session; sessions side by side are the workload's matter.
        """
        if self.device != "cpu":
            own: dict[str, list[Self]] = {"hint": [replace(self, hint="throughput")]}
            streams = [] if self.device == "auto" else [n for n in (1, 2) if n != self.streams]
            return own | {"streams": [replace(self, streams=n) for n in streams]}
        cpus = capabilities.effective_cpus
        threads = self.threads or cpus
        return {
            "flush_denormals": [replace(self, flush_denormals=True)] if facts.denormals else [],
            "threads": [
                replace(self, threads=n) for n in checks.thread_counts(cpus, self.threads)
            ],
            "pinning": [replace(self, pinning=value) for value in ("off", "on")],
            "hint": [replace(self, hint="throughput")],
            "streams": [replace(self, streams=n) for n in (1, threads) if n != self.streams],
            "hyper_threading": [replace(self, hyper_threading="off")] if cpus > 1 else [],
        }

    def properties(self) -> dict[str, str]:
        """Return OpenVINO's properties: those that matter, and all that are not at its default."""
        return property_keys.made(self, Openvino)

    def open(self, path: Path, *, verbose: bool = False) -> AbstractContextManager[Session]:
        """Open a session with every option that matters written out.

        OpenVINO's own format (``.xml``) is for its own runtime alone.

        Raises:
            BadSettings: The installed OpenVINO does not know a property.
        """
        if path.suffix != ".xml" and self._plugged():
            own = self.properties()
            return plugin.session(path, self.threads, own, verbose=verbose, device=self._name)
        return native.session(path, self.properties(), self._name)

    def record(
        self, path: Path, folder: Path, *, verbose: bool = False
    ) -> AbstractContextManager[Recording]:
        """Open the same session with the profiler, or OpenVINO's counters, on."""
        if self._plugged():
            own, name = self.properties(), self._name
            return plugin.record(path, self.threads, own, folder, verbose=verbose, device=name)
        return openvino_record.session(path, self.properties(), self._name)

    def takes(self, path: Path) -> Mapping[str, Sequence[str]]:
        """Ask the plug-in, or OpenVINO's own ``query_model`` where the plug-in has no device."""
        if self._plugged():
            return plugin.takes(path, self.threads, self.properties(), self._name)
        return native.takes(path, self.properties(), self._name)

    def compile(self, path: Path, out: Path) -> None:
        """Write the model as the plug-in compiles it: OpenVINO's own runtime opens none."""
        plugin.compile_ahead(path, out, self.threads, self.properties(), self._name)

    def compiled_for(self) -> Mapping[str, str]:
        """Return the releases and the device that the plug-in compiles for."""
        return plugin.compiled_for(self._name)

    def save(self, path: Path, out: Path) -> None:
        """Write the model in OpenVINO's own format: `out`, ending in ``.xml``, and a ``.bin``."""
        native.save(path, out)

    def _plugged(self) -> bool:
        """Return which of the two ways is taken, once it is known to take all properties."""
        plugged = plugin.missing(self._name) is None
        self._probe(plugged)
        return plugged

    def _probe(self, plugged: bool) -> None:
        """Refuse what the way that would be taken does not know; the three usual ones exist."""
        names = [name for name in self.properties() if name not in property_keys.ALWAYS]
        if names:
            property_keys.demand(names, plugged=plugged, device=self._name)
