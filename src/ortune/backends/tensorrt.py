"""NVIDIA GPUs by TensorRT, as a provider of onnxruntime."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from ortune.backends.cpu import Cpu
from ortune.backends.cuda import Cuda
from ortune.backends.runtimes.onnxruntime import (
    checks,
    device_session,
    engine_cache,
    plug_in,
    session,
)
from ortune.backends.runtimes.tensorrt import profiles
from ortune.core.backend import Backend, Kind
from ortune.core.capabilities import Capabilities, State
from ortune.core.errors import BadSettings
from ortune.core.facts import Facts
from ortune.core.hardware import gpu
from ortune.core.outputs import find_cache_folder
from ortune.core.plugins import stored
from ortune.core.plugins.bounds import Bounds
from ortune.core.session import Recording, Session
from ortune.core.workload import Workload
from ortune.graph.io.protobuf import read_identity

_GRAPH = "trt_cuda_graph_enable"
_OPTIONS_WITH_FIELD: Mapping[str, str] = {
    "device_id": "device",
    "trt_fp16_enable": "precision=fp16",
    "trt_bf16_enable": "precision=bf16",
    "trt_int8_enable": "nothing: int8 comes by Q/DQ pairs in the model",
    "trt_max_workspace_size": "workspace",
    "trt_profile_min_shapes": "profiles",
    "trt_profile_max_shapes": "profiles",
    "trt_profile_opt_shapes": "profiles",
    "trt_timing_cache_enable": "timing_cache",
    "trt_timing_cache_path": "timing_cache",
    "trt_engine_cache_enable": "cache",
    "trt_engine_cache_path": "cache",
    "trt_engine_cache_prefix": "cache",
    "trt_builder_optimization_level": "builder_level",
    "trt_build_heuristics_enable": "heuristics",
    _GRAPH: "cuda_graph",
}
"""Options of the TensorRT provider that have a field, or none for a reason."""

TENSORRT_OPTIONS: Mapping[str, stored.FieldRule] = {
    "trt_auxiliary_streams": stored.integer(-1, 64),
    "trt_context_memory_sharing_enable": stored.SWITCH,
    "trt_force_sequential_engine_build": stored.SWITCH,
    "trt_layer_norm_fp32_fallback": stored.SWITCH,
    "trt_max_partition_iterations": stored.integer(0, 1 << 16),
    "trt_min_subgraph_size": stored.integer(1, 1 << 16),
    "trt_sparsity_enable": stored.SWITCH,
}
"""Options of the TensorRT provider that a file may set, beyond those that have a field.

Left out on purpose: what names a file, a folder or a library (``*_path``, ``*_paths``, ``*_name``,
``trt_dump_*``, ``trt_ep_context_*``, ``trt_engine_decryption_*``), addresses (``*_bytestream``)
and logging.
"""
_SHAPE = r"[0-9]{1,9}([x,][0-9]{1,9}){0,15}"
_PROFILE = stored.text(rf"[^\r\n]{{1,512}}[:=]{_SHAPE}(\.\.{_SHAPE}){{0,2}}", 2048)


@dataclass(frozen=True)
class Tensorrt(Backend):
    """Execution on an NVIDIA GPU by TensorRT 10; what it lacks runs by CUDA, then on the CPU.

    It takes the package onnxruntime-gpu, CUDA, cuDNN, TensorRT 10 and a driver. The engine is
    built when a session opens, which takes seconds to minutes. TensorRT computes float32 layers
    in TF32 where that is faster, and the provider has no option against it.

    Attributes:
        threads: Threads of what runs on the CPU; 0 takes the CPUs this process may really use.
        device: Which GPU, as ``nvidia-smi`` counts them.
        precision: `graph` computes every layer in the type that the model gives it; `fp16` and
            `bf16` let TensorRT narrow layers as it likes. That changes numbers.
        cuda_graph: Record a run once and replay it: fixed shapes, nothing on the CPU.
        workspace: Most that a layer's tactic may take while the engine is built, MB; 0 for the
            runtime's own limit.
        profiles: Shapes of inputs with open sizes, ``NAME:MIN..MAX`` or ``NAME:MIN..MAX..BEST``,
            such as ``image:1x3x224x224..8x3x224x224``; none follows the shapes that are seen.
        timing_cache: Keep the times of tactics, so that a similar engine is built sooner.
        cache: Keep built engines for the next session of the same model, device and versions.
        builder_level: How long the builder looks for tactics, 0 to 5.
        heuristics: Let the builder guess among tactics instead of timing all.
        io_binding: Keep inputs and outputs in buffers on the GPU, one set for every shape.
        config: Any other option of the provider, as ``key=value``.
    """

    title: ClassVar[str] = "TensorRT"
    provider: ClassVar[str] = plug_in.TENSORRT
    runs_on: ClassVar[Kind] = "gpu"
    lossy: ClassVar[bool] = True
    """Always: TF32 is TensorRT's to choose, and tactics differ from build to build."""

    device: Annotated[int, Bounds(high=1023)] = 0
    precision: Literal["graph", "fp16", "bf16"] = "graph"
    cuda_graph: bool = False
    workspace: Annotated[int, Bounds(high=1 << 24)] = 0
    profiles: Annotated[tuple[str, ...], stored.items(_PROFILE, 256)] = ()
    timing_cache: bool = True
    cache: bool = True
    builder_level: Annotated[int, Bounds(high=5)] = 3
    heuristics: bool = False
    io_binding: bool = True
    config: Annotated[tuple[str, ...], stored.pairs(TENSORRT_OPTIONS)] = ()

    def __post_init__(self) -> None:
        checks.check_dependencies(
            (self.io_binding or not self.cuda_graph, "cuda_graph", "io_binding=true")
        )
        self.provider_options("")

    @property
    def portable(self) -> bool:
        """The first GPU is there wherever one is; the engine is built on each anew."""
        return self.device == 0

    @property
    def arithmetic(self) -> frozenset[str]:
        """Static Q/DQ pairs and 16-bit files, all of them explicit in the graph."""
        return frozenset({"int8", "fp16", "bf16"})

    def builds_with(self, capabilities: Capabilities) -> Backend:
        """Compiled nodes cannot be saved: CUDA rewrites for it, or the CPU what suits all.

        On the CPU no more than the basic level: what it fuses beyond are operators that no other
        provider has.
        """
        if capabilities.state == "works":
            return Cuda(device=self.device, level="basic")
        return Cpu(level="basic")

    def missing(self) -> str | None:
        """Return why no session starts on this GPU, or None.

        Raises:
            BadSettings: The provider does not know an option that is set.
        """
        if why := plug_in.explain_failed_probe(self.provider, self.device):
            return why
        plug_in.demand_provider_options(self.provider, self.provider_options("."))
        return None

    def state(self, missing: str | None) -> State:
        return plug_in.probe_provider(self.provider, self.device).state

    def variants(
        self, facts: Facts, workload: Workload, capabilities: Capabilities
    ) -> Iterable[Self]:
        """Yield the graph's own precision, fp16 where it is float32, a CUDA graph if it fits."""
        yield self
        if facts.precisions.get("float32"):
            yield replace(self, precision="fp16")
        if not facts.dynamic and self.io_binding:
            yield replace(self, cuda_graph=True)

    def coordinates(
        self, facts: Facts, capabilities: Capabilities
    ) -> Mapping[str, Sequence[Self]]:
        return {
            "builder_level": [replace(self, builder_level=level) for level in (5, 2)],
            "precision": [replace(self, precision=kind) for kind in ("fp16", "bf16")],
        }

    def open(self, path: Path, *, verbose: bool = False) -> AbstractContextManager[Session]:
        """Open a session on the GPU, its buffers bound there; the engine may be built first.

        Raises:
            BackendMissing: The provider does not start, or takes no node of the model.
            BadSettings: A CUDA graph is asked for, and the model does not allow one.
        """
        return self._open_session(path, self._make_session_options(verbose), verbose)

    def record(
        self, path: Path, folder: Path, *, verbose: bool = False
    ) -> AbstractContextManager[Recording]:
        """Open the same session with the profiler on; compiled nodes are timed as one each."""
        plain = replace(self, cuda_graph=False)
        options, chain = plain._make_session_options(verbose), plain._make_provider_chain("")
        return device_session.open_device_recording(
            path, options, folder, chain, self.device, verbose=verbose
        )

    def takes(self, path: Path) -> Mapping[str, Sequence[str]]:
        """Ask with onnxruntime's own optimizers off."""
        plain = replace(self, cuda_graph=False)
        with plain._open_session(
            path, plain._make_session_options(False, level="disabled")
        ) as opened:
            return opened.list_assigned_nodes()

    def _open_session(
        self, path: Path, options: Any, verbose: bool = False
    ) -> AbstractContextManager[session.OrtSession]:
        """Open with the engines of this model, device and versions; see `engine_cache`."""
        plug_in.preload_libraries(self.provider)

        def opening(folder: Path | str) -> AbstractContextManager[session.OrtSession]:
            return device_session.open_device_session(
                path,
                options,
                self._make_provider_chain(str(folder)),
                device="cuda",
                index=self.device,
                io_binding=self.io_binding,
                graph=_GRAPH if self.cuda_graph else "",
                verbose=verbose,
            )

        if self.cache and self.provider in session.list_providers():
            return engine_cache.open_with_engines(self._make_engine_key(path), opening)
        return opening("")

    def compile(self, path: Path, out: Path) -> None:
        """Write the model with its engines inside; nodes of CUDA and the CPU stay."""
        plug_in.preload_libraries(self.provider)
        session_options = self._make_session_options(False)
        for provider, options in self._make_provider_chain(""):
            session_options.add_provider(provider, options)
        engine_cache.compile_model(path, session_options, out, self.provider)

    def compiled_for(self) -> Mapping[str, str]:
        """Return the releases and the GPU that engines are built for."""
        device, capability = self._read_board()
        more = {**gpu.read_driver_versions(), "device": device, "compute capability": capability}
        return engine_cache.describe_build_environment(
            self.provider, None, "onnxruntime-gpu", more=more
        )

    def _read_board(self) -> tuple[str, str]:
        """Return name and compute capability of the GPU; empty where the driver does not tell."""
        boards = gpu.list_gpus()
        if self.device >= len(boards):
            return "", ""
        return boards[self.device].name, boards[self.device].compute_capability

    def _make_engine_key(self, path: Path) -> engine_cache.EngineKey:
        model, nodes = read_identity(path)
        device, capability = self._read_board()
        return engine_cache.EngineKey(
            model,
            nodes,
            self.provider,
            options=self.provider_options(""),
            versions={"onnxruntime": session.version_here(), **gpu.read_driver_versions()},
            device=device,
            compute_capability=capability,
            profile=",".join(self.profiles),
        )

    def _make_provider_chain(self, cache: str) -> list[device_session.Provider]:
        """TensorRT, then CUDA; onnxruntime adds the CPU."""
        options = self.provider_options(cache)
        cuda = Cuda(device=self.device).provider_options()
        return [(self.provider, options), (Cuda.provider, cuda)]

    def provider_options(self, cache: str) -> dict[str, str]:
        """Return the options of the provider, by onnxruntime's "TensorRT Execution Provider".

        Without a flag of precision the network is strongly typed: every layer computes in the type
        that the graph gives it (tensorrt_execution_provider.cc, ``kSTRONGLY_TYPED``).

        Args:
            cache: Folder of its engines; empty to keep none. The times of tactics are kept for all
                models together: TensorRT itself leaves those of another device or release out.

        Raises:
            BadSettings: A profile or a free option is wrong.
        """
        home = find_cache_folder()
        timings = home / "tensorrt-timings" if home and self.timing_cache else None
        cache = cache if self.cache else ""
        options = {
            "device_id": str(self.device),
            "trt_fp16_enable": str(int(self.precision == "fp16")),
            "trt_bf16_enable": str(int(self.precision == "bf16")),
            "trt_builder_optimization_level": str(self.builder_level),
            "trt_build_heuristics_enable": str(int(self.heuristics)),
            "trt_engine_cache_enable": str(int(bool(cache))),
            "trt_timing_cache_enable": str(int(timings is not None)),
            _GRAPH: str(int(self.cuda_graph)),
            **_make_shape_options(self.profiles),
        }
        if self.workspace:
            options["trt_max_workspace_size"] = str(self.workspace << 20)
        if cache:
            options["trt_engine_cache_path"] = cache
        if timings:
            options["trt_timing_cache_path"] = str(timings)
        return options | checks.parse_config(self.config, _OPTIONS_WITH_FIELD)

    def _make_session_options(self, verbose: bool, level: str = "all") -> Any:
        options = session.make_session_options(self.threads, level, verbose=verbose)
        # TensorRT reads the pairs as they are; rewritten for the CPU, biases become int32 again.
        options.add_session_config_entry("session.disable_quant_qdq", "1")
        if not verbose:  # what is logged while it opens is read: see `messages`
            session.log_warnings(options)
        return options


def _make_shape_options(spelled: Sequence[str]) -> dict[str, str]:
    """Return the options of optimization profiles: an input is listed once for each."""
    parsed = profiles.parse_profiles(spelled)
    ranges = [shape_range for profile in parsed for shape_range in profile.values()]
    if value_inputs := [shape_range.name for shape_range in ranges if shape_range.values]:
        raise BadSettings(
            f"profiles: '{value_inputs[0]}' is given values, and the provider takes shapes alone",
            fix="leave it out, or pack --for tensorrt-engine",
        )
    ends = {"min": "least", "max": "most", "opt": "best"}
    return {
        f"trt_profile_{end}_shapes": ",".join(
            f"{shape_range.name}:{'x'.join(map(str, getattr(shape_range, field)))}"
            for shape_range in ranges
        )
        for end, field in ends.items()
        if ranges
    }
