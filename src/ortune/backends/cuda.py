"""NVIDIA GPUs by onnxruntime's CUDA provider."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, TypeAlias

from ortune.backends.runtimes.onnxruntime import checks, device_session, plug_in, session
from ortune.backends.runtimes.onnxruntime import checks as op_libraries
from ortune.backends.runtimes.onnxruntime import trace as ort_record
from ortune.core.backend import Backend, GraphLevel, Kind, graph_level
from ortune.core.capabilities import Capabilities, State
from ortune.core.facts import Facts
from ortune.core.plugins import stored
from ortune.core.plugins.bounds import Bounds
from ortune.core.session import Recording, Session
from ortune.core.workload import Workload

_GRAPH = "enable_cuda_graph"
_ARENA = {"power-of-two": "kNextPowerOfTwo", "as-requested": "kSameAsRequested"}
_OPTIONS_WITH_FIELD: Mapping[str, str] = {
    "device_id": "device",
    "gpu_mem_limit": "memory_limit",
    "arena_extend_strategy": "arena_growth",
    "cudnn_conv_algo_search": "search",
    "use_tf32": "tf32",
    _GRAPH: "cuda_graph",
    "prefer_nhwc": "prefer_nhwc",
    "fuse_conv_bias": "fuse_conv_bias",
    "has_user_compute_stream": "nothing: streams are the session's own",
    "user_compute_stream": "nothing: streams are the session's own",
}
"""Options of the CUDA provider that have a field, or none for a reason."""

CUDA_OPTIONS: Mapping[str, stored.FieldRule] = {
    "cudnn_conv1d_pad_to_nc1d": stored.SWITCH,
    "cudnn_conv_use_max_workspace": stored.SWITCH,
    "do_copy_in_default_stream": stored.SWITCH,
    "enable_skip_layer_norm_strict_mode": stored.SWITCH,
    "sdpa_kernel": stored.integer(0, 255),
    "use_ep_level_unified_stream": stored.SWITCH,
}
"""Options of the CUDA provider that a file may set, beyond those that have a field.

Left out on purpose: addresses (``gpu_external_*``, ``user_compute_stream``), and what tunes
kernels at run time and keeps it in files (``tunable_op_*``).
"""

Search: TypeAlias = Literal["exhaustive", "heuristic", "default"]
_OPEN_SEARCHES: tuple[Search, ...] = ("heuristic", "default")
"""How cuDNN's algorithm of a convolution is found where shapes change, the best bet first.

onnxruntime asks anew for every input shape of every convolution. Until 1.19 `exhaustive` ran each
algorithm of cuDNN and kept the fastest, `heuristic` asked cuDNN for a guess, and `default` took
one that works for all; from 1.20 on they are modes B, A and FALLBACK of cuDNN's frontend
(microsoft/onnxruntime#22705). Measured by others, on GPUs: 16 new shapes took 10.1 s by
`exhaustive` and 31 ms by `heuristic`, and runs of a shape that had been seen were no slower
(PaddlePaddle/PaddleX#5057). `default` was 48 times slower in steady runs where its algorithm does
not fit (PaddlePaddle/PaddleOCR#17970), 3.3 times slower on conformers, and up to 3 times faster
where shapes change (christopherthompson81/vernacula#192). Here, ResNet-18 on an H200: 1 to 8 rows
drawn at random took 70, 37 and 15 ms a run, always one row 1.4, 1.5 and 4.5 (docs/gpu.md).
"""


@dataclass(frozen=True)
class Cuda(Backend):
    """Execution on an NVIDIA GPU by onnxruntime's CUDA provider; what it lacks runs on the CPU.

    It takes the package onnxruntime-gpu, CUDA, cuDNN and a driver.

    Attributes:
        threads: Threads of what runs on the CPU; 0 takes the CPUs this process may really use.
        device: Which GPU, as ``nvidia-smi`` counts them.
        level: How far the runtime may rewrite the graph when it loads it.
        search: How cuDNN's algorithm of a convolution is found: `exhaustive` tries all anew for
            every shape, `heuristic` asks cuDNN, `default` takes one that always works.
        cuda_graph: Record a run once and replay it: fixed shapes, nothing on the CPU.
        tf32: Round float32 products to 10 bits of mantissa (Ampere and later). Changes numbers.
        io_binding: Keep inputs and outputs in buffers on the GPU, one set for every shape.
        memory_limit: Most that the arena may take, MB; 0 for all of the GPU's.
        arena_growth: How the arena grows: in powers of two (quick), or as requested (small).
        prefer_nhwc: Lay tensors of convolutions out with the channels last.
        fuse_conv_bias: Let cuDNN add a convolution's bias and activation in one kernel.
        config: Any other option of the provider, as ``key=value``.
        custom_ops: Libraries of custom operators: paths, or Python modules that give one.
    """

    title: ClassVar[str] = "CUDA"
    provider: ClassVar[str] = plug_in.CUDA
    domains: ClassVar[frozenset[str]] = frozenset({"com.microsoft"})
    reads: ClassVar[tuple[str, ...]] = ("custom_ops",)
    runs_on: ClassVar[Kind] = "gpu"

    device: Annotated[int, Bounds(high=1023)] = 0
    level: GraphLevel = "all"
    search: Search = "exhaustive"
    cuda_graph: bool = False
    tf32: bool = False
    io_binding: bool = True
    memory_limit: Annotated[int, Bounds(high=1 << 24)] = 0
    arena_growth: Literal["power-of-two", "as-requested"] = "power-of-two"
    prefer_nhwc: bool = False
    fuse_conv_bias: bool = False
    config: Annotated[tuple[str, ...], stored.pairs(CUDA_OPTIONS)] = ()
    custom_ops: Annotated[tuple[str, ...], stored.CODE] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "level", graph_level(self.level))
        checks.check_dependencies(
            (self.io_binding or not self.cuda_graph, "cuda_graph", "io_binding=true")
        )
        self.provider_options()

    @property
    def lossy(self) -> bool:
        """TF32 changes numbers; what a free option does is not known."""
        return self.tf32 or bool(self.config)

    @property
    def portable(self) -> bool:
        """The first GPU is there wherever one is; others, and a limit for one, are this box's."""
        return self.device == 0 and not self.memory_limit

    @property
    def arithmetic(self) -> frozenset[str]:
        """16-bit files; int8 is TensorRT's: the CUDA provider has no kernel for Q/DQ pairs."""
        return frozenset({"fp16", "bf16"})

    @property
    def planned_by_shape(self) -> frozenset[str]:
        """Convolutions, which cuDNN plans.

        On an H200 (onnxruntime 1.31.1, ResNet-18) 1 and 8 rows in turns took 51 ms a run, by
        themselves 1.4 and 2.3 ms (docs/gpu.md).
        """
        return frozenset({"Conv", "ConvTranspose", "FusedConv", "NhwcConv", "NhwcFusedConv"})

    def missing(self) -> str | None:
        """Return why no session starts on this GPU, or None.

        Raises:
            BadSettings: The provider does not know an option that is set, or a library of custom
                operators cannot be used.
        """
        if why := plug_in.explain_failed_probe(self.provider, self.device):
            return why
        plug_in.demand_provider_options(self.provider, self.provider_options())
        if self.custom_ops:
            op_libraries.demand_loadable(self.custom_ops)
        return None

    def state(self, missing: str | None) -> State:
        return plug_in.probe_provider(self.provider, self.device).state

    def variants(
        self, facts: Facts, workload: Workload, capabilities: Capabilities
    ) -> Iterable[Self]:
        """Yield cuDNN's searches that are worth a try, and a CUDA graph where shapes are fixed."""
        searched: tuple[Search, ...] = (self.search,)
        if facts.has("Conv", "ConvTranspose"):
            searched = _OPEN_SEARCHES if facts.dynamic else ("exhaustive",)
        for mode in searched:
            yield replace(self, search=mode)
        if not facts.dynamic and self.io_binding:
            yield replace(self, search=searched[0], cuda_graph=True)

    def coordinates(
        self, facts: Facts, capabilities: Capabilities
    ) -> Mapping[str, Sequence[Self]]:
        neighbours: dict[str, list[Self]] = {}
        if facts.has("Conv", "ConvTranspose"):
            neighbours["prefer_nhwc"] = [replace(self, prefer_nhwc=True)]
            neighbours["fuse_conv_bias"] = [replace(self, fuse_conv_bias=True)]
        neighbours["tf32"] = [replace(self, tf32=True)]
        neighbours["level"] = [replace(self, level="extended")]
        neighbours["arena_growth"] = [replace(self, arena_growth="as-requested")]
        return neighbours

    def open(self, path: Path, *, verbose: bool = False) -> AbstractContextManager[Session]:
        """Open a session on the GPU, its buffers bound there.

        Raises:
            BackendMissing: The provider does not start, or takes no node of the model.
            BadSettings: A CUDA graph is asked for, and the model does not allow one.
        """
        return self._open_session(path, self._make_session_options(verbose), verbose)

    def _open_session(
        self, path: Path, options: Any, verbose: bool = False
    ) -> AbstractContextManager[session.OrtSession]:
        plug_in.preload_libraries(self.provider)
        return device_session.open_device_session(
            path,
            options,
            self._make_provider_chain(),
            device="cuda",
            index=self.device,
            io_binding=self.io_binding,
            graph=_GRAPH if self.cuda_graph else "",
            verbose=verbose,
        )

    def record(
        self, path: Path, folder: Path, *, verbose: bool = False
    ) -> AbstractContextManager[Recording]:
        """Open the same session with the profiler on; a replayed graph has no nodes to time."""
        plain = replace(self, cuda_graph=False)
        options = plain._make_session_options(verbose, save_to=folder / ort_record.GRAPH)
        chain = plain._make_provider_chain()
        return device_session.open_device_recording(
            path, options, folder, chain, self.device, verbose=verbose
        )

    def takes(self, path: Path) -> Mapping[str, Sequence[str]]:
        """Ask with every optimizer off."""
        plain = replace(self, level="disabled", cuda_graph=False)
        with plain._open_session(path, plain._make_session_options(False)) as opened:
            return opened.list_assigned_nodes()

    def save(self, path: Path, out: Path) -> None:
        """Write the graph as rewritten at this level; ``all`` binds it to this provider."""
        plain = replace(self, cuda_graph=False)
        with plain._open_session(path, plain._make_session_options(False, save_to=out)):
            pass

    def _make_provider_chain(self) -> list[device_session.Provider]:
        return [(self.provider, self.provider_options())]

    def provider_options(self) -> dict[str, str]:
        """Return the options of the provider, by onnxruntime's page "CUDA Execution Provider".

        Every default that matters is written out; the runtime's own is TF32 on.

        Raises:
            BadSettings: A free option is wrong.
        """
        options = {
            "device_id": str(self.device),
            "arena_extend_strategy": _ARENA[self.arena_growth],
            "cudnn_conv_algo_search": self.search.upper(),
            "use_tf32": str(int(self.tf32)),
            _GRAPH: str(int(self.cuda_graph)),
            "prefer_nhwc": str(int(self.prefer_nhwc)),
            "fuse_conv_bias": str(int(self.fuse_conv_bias)),
        }
        if self.memory_limit:
            options["gpu_mem_limit"] = str(self.memory_limit << 20)
        return options | checks.parse_config(self.config, _OPTIONS_WITH_FIELD)

    def _make_session_options(self, verbose: bool, save_to: Path | None = None) -> Any:
        options = session.make_session_options(
            self.threads, self.level, verbose=verbose, save_to=save_to, custom_ops=self.custom_ops
        )
        if not verbose:  # what is logged while it opens is read: see `messages`
            session.log_warnings(options)
        return options
