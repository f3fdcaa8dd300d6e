"""OpenVINO: through its onnxruntime plug-in, or by its own runtime where that has no device.

The plug-in does not compile a graph that reads overridable initializers ("OpenVINO input has no
ONNX binding", plug-in 1.8): it is given the model with them as constants, which they are to
ortune.
"""

import difflib
import importlib.util
import json
import mmap
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from ortune.backends.runtimes import own_process
from ortune.backends.runtimes.onnxruntime import checks, engine_cache, plug_in
from ortune.backends.runtimes.onnxruntime import session as ort
from ortune.backends.runtimes.onnxruntime import trace as ort_record
from ortune.backends.runtimes.openvino import native
from ortune.backends.runtimes.openvino.native import DRIVERS
from ortune.core import regular_file
from ortune.core.backend import Backend, Kind, explain_unverified
from ortune.core.capabilities import Capabilities, State
from ortune.core.errors import BackendMissing, BadModel, BadSettings, OrtuneError
from ortune.core.facts import Facts
from ortune.core.hardware.cpus import effective_cpus, list_native_units, native_types
from ortune.core.plugins import stored
from ortune.core.plugins.bounds import THREADS
from ortune.core.session import Recording, Session
from ortune.core.temporary_folder import open_temporary_folder
from ortune.core.workload import Workload
from ortune.graph.io.protobuf import Malformed, drop_initializer_inputs, list_locations


@contextmanager
def replace_links(path: Path) -> Iterator[Path]:
    """Give a model as regular files: as it is, else in a folder that lasts for the block.

    Download caches keep a model and its external data as links into a folder of blobs.
    onnxruntime follows them; OpenVINO's and onnx's own readers refuse such data. The files in the
    folder are hard links, and copies where the disk is another.

    Raises:
        BadModel: It is no regular file.
        OrtuneError: There is no room for the copies.
    """
    with os.scandir(path.parent) as entries:
        linked = any(entry.is_symlink() for entry in entries)
    if not linked:
        yield path
        return
    files = [path, *(path.parent / place for place in _list_places(path))]
    homes = path.parent.resolve(), path.resolve().parent
    regular = all(any(f.resolve().is_relative_to(h) for h in homes) and f.is_file() for f in files)
    if not regular or not any(file.is_symlink() for file in files):
        yield path  # what leads out of the folder the runtime itself refuses
        return
    with open_temporary_folder() as folder:
        for file in files:
            target = folder / file.relative_to(path.parent)
            target.parent.mkdir(parents=True, exist_ok=True)
            _copy_file(file.resolve(), target)
        yield folder / path.name


def _list_places(path: Path) -> list[str]:
    """Return where a model's external data lies, but for what climbs out of its folder."""
    with regular_file.open_regular(path, BadModel) as file:
        if not path.stat().st_size:
            return []
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                places = list(dict.fromkeys(list_locations(data)))
            except Malformed:
                return []  # the runtime says what is wrong with it
    climbs = any(".." in Path(place).parts or Path(place).is_absolute() for place in places)
    return [] if climbs else places


def _copy_file(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        try:
            shutil.copyfile(source, target)
        except OSError as error:
            raise OrtuneError(
                f"cannot copy {source} for a runtime that follows no links: {error.strerror}",
                fix="free space in the temporary folder, or set TMPDIR",
            ) from error


PACKAGE = "onnxruntime-ep-openvino"
PROVIDER = "OpenVINOExecutionProvider"


def list_openvino_devices(device: str = "CPU") -> list[Any]:
    """Register the plug-in and return its devices of one kind.

    Args:
        device: In OpenVINO's spelling; AUTO is its own runtime's matter.

    Raises:
        BackendMissing: It is not installed, or offers none.
    """
    if device == "AUTO":
        raise BackendMissing("the plug-in is not asked for AUTO", fix="pip install openvino")
    try:
        import onnxruntime_ep_openvino as plugin
    except ImportError:
        raise BackendMissing(
            "the OpenVINO plug-in is not installed", fix=f"pip install {PACKAGE}"
        ) from None
    import onnxruntime

    plug_in.register_library(Path(plugin.get_library_path()), PACKAGE)
    kind = getattr(onnxruntime.OrtHardwareDeviceType, device)
    devices = [d for d in onnxruntime.get_ep_devices() if d.ep_name == PROVIDER]
    if matches := [candidate for candidate in devices if candidate.device.type == kind]:
        return matches
    if device == "CPU":
        raise BackendMissing(
            "the installed OpenVINO plug-in takes Intel CPUs only (onnxruntime PR#31981)",
            fix="pip install openvino, the runtime without the plug-in",
        )
    raise BackendMissing(
        f"the installed OpenVINO plug-in {plug_in.NO_DEVICE} {device} here", fix=DRIVERS[device]
    )


@cache
def explain_missing_plugin(device: str = "CPU") -> str | None:
    """Return what keeps the plug-in from a device here and how to fix it, or None.

    Asked in a process of its own: a registration holds for the life of a process, and a broken
    library could end it.
    """
    if importlib.util.find_spec("onnxruntime_ep_openvino") is None:
        return f"pip install {PACKAGE}"
    if device == "AUTO":
        return "AUTO is chosen by OpenVINO's own runtime; pip install openvino"
    code = (
        "import sys\n"
        "from ortune.backends import openvino\n"
        "from ortune.core.errors import OrtuneError\n"
        "try:\n    openvino.list_openvino_devices(sys.argv[1])\n"
        "except OrtuneError as error:\n    print(f'{error.what}; {error.fix}')"
    )
    return own_process.find_load_failure("the installed plug-in", code, device)


_STAYS: Mapping[str, str] = {"ENABLE_STARTUP_FALLBACK": "NO", "ENABLE_RUNTIME_FALLBACK": "NO"}
"""AUTO else computes on the CPU until its device has compiled, and goes on there if that fails."""
_COMMON = ("INFERENCE_NUM_THREADS", "INFERENCE_PRECISION_HINT", "PERFORMANCE_HINT")
_EXPLICIT_PROPERTIES: Mapping[str, tuple[str, ...]] = {
    "cpu": _COMMON,
    "gpu": ("INFERENCE_PRECISION_HINT", "PERFORMANCE_HINT"),
    "npu": ("PERFORMANCE_HINT",),
    "auto": _COMMON,
}
"""Device -> what is always said: a GPU left alone computes in f16. An NPU has no choice."""
_ALWAYS = frozenset({*_COMMON, *_STAYS})
"""Properties that every OpenVINO has."""
_TEXTS = {
    "True": "YES",
    "on": "YES",
    "off": "NO",
    "performance": "PCORE_ONLY",
    "efficient": "ECORE_ONLY",
}
"""Values of fields as OpenVINO spells them; all others are written as they are."""
_PROPERTIES_WITH_FIELD: Mapping[str, str] = {
    "INFERENCE_NUM_THREADS": "threads",
    "INFERENCE_PRECISION_HINT": "precision",
    "PERFORMANCE_HINT": "hint",
    "NUM_STREAMS": "streams",
    "ENABLE_CPU_PINNING": "pinning",
    "ENABLE_HYPER_THREADING": "hyper_threading",
    "SCHEDULING_CORE_TYPE": "cores",
    "CPU_DENORMALS_OPTIMIZATION": "flush_denormals",
}
"""Properties that have a field."""
_YES_NO = stored.word("YES", "NO")
_PRECISION = stored.word("f32", "f16", "bf16", "u8", "i8", "u4", "i4", "dynamic")
OPENVINO_PROPERTIES: Mapping[str, stored.FieldRule] = {
    "CPU_SPARSE_WEIGHTS_DECOMPRESSION_RATE": stored.number(0, 1),
    "DYNAMIC_QUANTIZATION_GROUP_SIZE": stored.integer(0, 1 << 16),
    "ENABLE_CPU_RESERVATION": _YES_NO,
    "ENABLE_TENSOR_PARALLEL": _YES_NO,
    "EXECUTION_MODE_HINT": stored.word("PERFORMANCE", "ACCURACY"),
    "KEY_CACHE_GROUP_SIZE": stored.integer(0, 1 << 16),
    "KEY_CACHE_PRECISION": _PRECISION,
    "KV_CACHE_PRECISION": _PRECISION,
    "MODEL_DISTRIBUTION_POLICY": stored.word("TENSOR_PARALLEL", "PIPELINE_PARALLEL"),
    "PERFORMANCE_HINT_NUM_REQUESTS": stored.integer(0, 1024),
    "TBB_PARTITIONER": stored.word("NONE", "STATIC", "AUTO"),
    "VALUE_CACHE_GROUP_SIZE": stored.integer(0, 1 << 16),
    "VALUE_CACHE_PRECISION": _PRECISION,
}
"""Properties of OpenVINO's CPU device that a file may set, beyond those that have a field.

Left out on purpose: ``CACHE_DIR``, ``CACHE_MODE``, ``WEIGHTS_PATH``, ``ENABLE_WEIGHTLESS`` and
whatever else names a place, ``DEVICE_ID``, logging and counters. The provider's own options
(``load_config``, ``cache_dir``, ``device_type``) have no field that could hold them.
"""


@cache
def list_writable_properties(device: str = "CPU") -> tuple[str, ...]:
    """Return what a device of the installed runtime lets be set; AUTO passes on the CPU's."""
    core, names = native.import_openvino().Core(), set[str]()
    for queried_device in ("AUTO", "CPU") if device == "AUTO" else (device,):
        access_by_name = core.get_property(queried_device, "SUPPORTED_PROPERTIES")
        names |= {name for name, access in access_by_name.items() if str(access) != "RO"}
    return tuple(sorted(names))


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

    title: ClassVar[str] = "OpenVINO"
    provider: ClassVar[str] = PROVIDER
    added: ClassVar[frozenset[str]] = frozenset({"device"})

    device: Literal["cpu", "gpu", "npu", "auto"] = "cpu"
    precision: Literal["f32", "bf16", "f16"] = "f32"
    hint: Literal["latency", "throughput"] = "latency"
    streams: Annotated[int, THREADS] = 0
    pinning: Literal["default", "on", "off"] = "default"
    hyper_threading: Literal["default", "on", "off"] = "default"
    cores: Literal["any", "performance", "efficient"] = "any"
    flush_denormals: bool = False
    config: Annotated[tuple[str, ...], stored.pairs(OPENVINO_PROPERTIES)] = ()

    def __post_init__(self) -> None:
        checks.check_minimum(0, threads=self.threads, streams=self.streams)
        checks.parse_config(self.config, _PROPERTIES_WITH_FIELD)
        if self.device == "cpu":
            return
        of_cpus = ("pinning", "hyper_threading", "cores", "flush_denormals")
        rules = [
            (getattr(self, name) == getattr(Openvino, name), name, "device=cpu")
            for name in of_cpus
        ]
        streams = self.device != "auto" or not self.streams
        checks.check_dependencies(*rules, (streams, "streams", "device=cpu or device=gpu"))
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
    def runs_on(self) -> Kind:
        """What is asked for; auto is the CPU where there is no other device."""
        return "cpu" if self.device == "auto" else self.device

    @property
    def unverified(self) -> str:
        """Why ``device=auto`` is unverified: nobody has seen what it takes beside a GPU."""
        if self.device != "auto":
            return super().unverified
        reason = explain_unverified(self.provider, "gpu")
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
        kinds = frozenset({"int8", "int8-weights"})
        return kinds | {"fp16"} if self.device == "gpu" else kinds

    def missing(self) -> str | None:
        """Return what to install, or None when one of the two ways is open.

        Raises:
            BadSettings: The installed OpenVINO does not know a property that is set.
        """
        reason = explain_missing_plugin(self._name)
        if reason is not None and (other := native.explain_missing_device(self._name)):
            return other if native.is_openvino_installed() else reason
        self._check_properties(reason is None)
        return None

    def state(self, missing: str | None) -> State:
        return plug_in.classify_state(missing)

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
        types, units, unknown = native_types(flags), list_native_units(flags), not flags
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
            neighbours: dict[str, list[Self]] = {"hint": [replace(self, hint="throughput")]}
            streams = [] if self.device == "auto" else [n for n in (1, 2) if n != self.streams]
            return neighbours | {"streams": [replace(self, streams=n) for n in streams]}
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

    def build_properties(self) -> dict[str, str]:
        """Return OpenVINO's properties: those that matter, and all that are not at its default.

        Raises:
            BadSettings: A free property is wrong.
        """
        always = {
            "INFERENCE_NUM_THREADS": str(self.threads or effective_cpus()),
            "INFERENCE_PRECISION_HINT": self.precision,
            "PERFORMANCE_HINT": self.hint.upper(),
        }
        properties = {key: always[key] for key in _EXPLICIT_PROPERTIES[self.device]}
        if self.device == "auto":
            properties |= _STAYS
        for key, name in _PROPERTIES_WITH_FIELD.items():
            value = getattr(self, name)
            if key not in always and value != getattr(Openvino, name):
                properties[key] = _TEXTS.get(str(value), str(value))
        return properties | checks.parse_config(self.config, _PROPERTIES_WITH_FIELD)

    @contextmanager
    def open(self, path: Path, *, verbose: bool = False) -> Iterator[Session]:
        """Open a session with every option that matters written out.

        OpenVINO's own format (``.xml``) is for its own runtime alone.

        Raises:
            BadSettings: The installed OpenVINO does not know a property.
        """
        with _replace_links(path) as plain:
            session: AbstractContextManager[Session]
            if path.suffix != ".xml" and self._uses_plugin():
                options = self._make_plugin_options(verbose=verbose)
                content = drop_initializer_inputs(plain)
                session = ort.open_session(plain, options, provider=self.provider, content=content)
            else:
                session = native.open_native_session(plain, self.build_properties(), self._name)
            with session as opened:
                yield opened

    @contextmanager
    def record(self, path: Path, folder: Path, *, verbose: bool = False) -> Iterator[Recording]:
        """Open the same session with OpenVINO's counters on.

        Its own runtime records it wherever that is installed and has the device: of what the
        plug-in took, onnxruntime's profiler sees one node.
        """
        with _replace_links(path) as plain:
            if self._uses_plugin() and native.explain_missing_device(self._name) is not None:
                options = self._make_plugin_options(verbose=verbose)
                content = drop_initializer_inputs(plain)
                recording = ort_record.open_recording(
                    plain, options, folder, provider=self.provider, content=content
                )
            else:
                properties = self.build_properties()
                recording = native.open_native_recording(plain, properties, self._name)
            with recording as opened:
                yield opened

    def takes(self, path: Path) -> Mapping[str, Sequence[str]]:
        """Ask the plug-in, or OpenVINO's own ``query_model`` where the plug-in has no device."""
        with _replace_links(path) as plain:
            if not self._uses_plugin():
                return native.query_nodes_by_device(plain, self.build_properties(), self._name)
            options = self._make_plugin_options("disabled")
            content = drop_initializer_inputs(plain)
            with ort.open_session(
                plain, options, provider=self.provider, content=content
            ) as opened:
                return opened.list_assigned_nodes()

    def compile(self, path: Path, out: Path) -> None:
        """Write the model as the plug-in compiles it: OpenVINO's own runtime opens none."""
        with _replace_links(path) as plain:
            options, content = self._make_plugin_options(), drop_initializer_inputs(plain)
            engine_cache.compile_model(plain, options, out, self.provider, content)

    def compiled_for(self) -> Mapping[str, str]:
        """Return the releases and the device that the plug-in compiles for."""
        device = list_openvino_devices(self._name)[0]
        return engine_cache.describe_build_environment(self.provider, device, PACKAGE)

    def _make_plugin_options(self, level: str = "all", *, verbose: bool = False) -> Any:
        """Return onnxruntime's; properties in another place than ``load_config`` it ignores."""
        options = ort.make_session_options(self.threads, level, verbose=verbose)
        config = {"load_config": json.dumps({self._name: self.build_properties()})}
        options.add_provider_for_devices(list_openvino_devices(self._name)[:1], config)
        return options

    def save(self, path: Path, out: Path) -> None:
        """Write the model in OpenVINO's own format: `out`, ending in ``.xml``, and a ``.bin``."""
        with _replace_links(path) as plain:
            native.write_ir(plain, out)

    def _uses_plugin(self) -> bool:
        """Return which of the two ways is taken, once it is known to take all properties."""
        plugged = explain_missing_plugin(self._name) is None
        self._check_properties(plugged)
        return plugged

    def _check_properties(self, plugged: bool) -> None:
        """Refuse what the way that would be taken does not know; AUTO itself takes any silently.

        Its own runtime is asked. The plug-in brings libraries of its own, which are searched: it
        ignores what it does not know. The three usual properties exist.
        """
        libraries = checks.list_libraries("onnxruntime_ep_openvino", "") if plugged else ()
        for name in self.build_properties():
            if name in _ALWAYS:
                continue
            if plugged:
                has = not libraries or any(checks.has_word(library, name) for library in libraries)
            else:
                has = name in list_writable_properties(self._name)
            if not has:
                close: list[str] = []
                with suppress(ImportError, RuntimeError):
                    close = difflib.get_close_matches(
                        name, list_writable_properties(self._name), n=3, cutoff=0.6
                    )
                raise BadSettings(
                    f"OpenVINO's {self._name} device has no property '{name}'",
                    fix=f"use one that it has, such as {', '.join(close)}"
                    if close
                    else "leave it out",
                )


def _replace_links(path: Path) -> AbstractContextManager[Path]:
    return nullcontext(path) if path.suffix == ".xml" else replace_links(path)
