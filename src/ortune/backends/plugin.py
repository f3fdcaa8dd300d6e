"""Any plug-in execution provider of onnxruntime, such as WebGPU or TensorRT for RTX."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from ortune.backends.runtimes.onnxruntime import checks, plug_in
from ortune.backends.runtimes.onnxruntime import session as ort
from ortune.backends.runtimes.onnxruntime import trace as ort_record
from ortune.core.backend import Backend, Kind
from ortune.core.capabilities import State
from ortune.core.plugins import stored
from ortune.core.session import Recording, Session

_DEDICATED_PACKAGES = ("onnxruntime-ep-openvino",)
"""Plug-ins that have a backend of their own."""


@dataclass(frozen=True)
class PluginProvider(Backend):
    """Execution by a plug-in provider, which onnxruntime loads from a library.

    A library is code: it is named by a person, never by a bundle or a run.

    Attributes:
        threads: Threads of what stays on the CPU; 0 takes the CPUs this process may really use.
        package: The installed package that brings the provider, such as onnxruntime-ep-webgpu.
        library: Path of its shared library, in the place of a package.
        provider: The execution provider, where a library has several.
        device: Kind of device that must compute; any takes the first that it offers.
        options: The provider's own options, as ``NAME=value``.
    """

    title: ClassVar[str] = "plugin provider"
    automatic: ClassVar[bool] = False
    reads: ClassVar[tuple[str, ...]] = ("package", "library")
    portable: ClassVar[bool] = False
    """It needs a library and, mostly, a device."""

    package: Annotated[str, stored.CODE] = ""
    library: Annotated[str, stored.CODE] = ""
    # of a class elsewhere, here what is asked for
    provider: Annotated[str, stored.text(r"[\w.]*", 128)] = ""  # type: ignore[misc]
    device: plug_in.Kind = "any"
    options: Annotated[tuple[str, ...], stored.CODE] = ()

    def __post_init__(self) -> None:
        checks.check_minimum(0, threads=self.threads)
        checks.parse_config(self.options, {})

    @classmethod
    def tried(cls) -> tuple[Self, ...]:
        """Every plug-in provider that is installed and has no backend of its own."""
        names = plug_in.list_installed_plug_ins(_DEDICATED_PACKAGES)
        return tuple(cls(package=name) for name in names) or (cls(),)

    @property
    def lossy(self) -> bool:
        """What a provider's arithmetic is, and what its options do, is not known."""
        return bool(self.package or self.library)

    @property
    def runs_on(self) -> Kind:
        """The kind that is asked for; a GPU where any is."""
        return "gpu" if self.device == "any" else self.device

    def missing(self) -> str | None:
        """Return what to install, that the library does not load, or that it offers no device.

        Raises:
            BadSettings: Both a package and a library are named, or no such library is there.
        """
        request = self._make_request()
        return ort.explain_missing_runtime() or plug_in.explain_missing_provider(request)

    def state(self, missing: str | None) -> State:
        return plug_in.classify_state(missing)

    def open(self, path: Path, *, verbose: bool = False) -> AbstractContextManager[Session]:
        """Open a session of which the provider takes a part.

        Raises:
            BackendMissing: It is not installed, does not load, offers no device, or took no node.
        """
        session_options, provider = self._make_session_options(verbose)
        return ort.open_session(path, session_options, provider=provider)

    def record(
        self, path: Path, folder: Path, *, verbose: bool = False
    ) -> AbstractContextManager[Recording]:
        """Open the same session with the profiler on; a graph of compiled nodes is not saved."""
        session_options, provider = self._make_session_options(verbose)
        return ort_record.open_recording(path, session_options, folder, provider=provider)

    def takes(self, path: Path) -> Mapping[str, Sequence[str]]:
        """Ask with onnxruntime's own rewriting off."""
        session_options, provider = self._make_session_options(verbose=False, level="disabled")
        with ort.open_session(path, session_options, provider=provider) as opened:
            return opened.list_assigned_nodes()

    def _make_request(self) -> plug_in.PlugIn:
        return plug_in.PlugIn(self.package, self.library, self.provider, self.device)

    def _make_session_options(self, verbose: bool, level: str = "all") -> tuple[Any, str]:
        first = plug_in.list_plug_in_devices(self._make_request())[0]
        session_options = ort.make_session_options(self.threads, level, verbose=verbose)
        session_options.add_provider_for_devices([first], checks.parse_config(self.options, {}))
        return session_options, first.ep_name
