"""onnxruntime's own CPU kernels."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from ortune.backends.runtimes.onnxruntime import checks, session
from ortune.backends.runtimes.onnxruntime import checks as op_libraries
from ortune.backends.runtimes.onnxruntime import trace as ort_record
from ortune.core.backend import Backend, GraphLevel, graph_level
from ortune.core.capabilities import Capabilities
from ortune.core.facts import Facts
from ortune.core.hardware.cpus import effective_cpus
from ortune.core.plugins import stored
from ortune.core.plugins.bounds import THREADS, Bounds
from ortune.core.session import Recording, Session
from ortune.core.workload import Workload

_KEYS: Mapping[str, tuple[str, str]] = {
    "session.intra_op.allow_spinning": ("spin", "0"),
    "session.inter_op.allow_spinning": ("spin", "0"),
    "session.intra_op.spin_duration_us": ("spin_us", ""),
    "session.inter_op.spin_duration_us": ("spin_us", ""),
    "session.intra_op.spin_backoff_max": ("spin_backoff", ""),
    "session.inter_op.spin_backoff_max": ("spin_backoff", ""),
    "session.use_env_allocators": ("arena_growth", "1"),
    "session.disable_prepacking": ("prepack", "1"),
    "session.set_denormal_as_zero": ("flush_denormals", "1"),
    "session.dynamic_block_base": ("block_base", ""),
    "session.intra_op_thread_affinities": ("affinity", ""),
    "optimization.enable_gelu_approximation": ("fast_gelu", "1"),
    "optimization.enable_cast_chain_elimination": ("cast_chains", "1"),
    "session.qdq_matmulnbits_block_size": ("nbits_block", ""),
}
"""Session key -> its field, and what is written where that is not at its default (the value)."""
_KEYS_WITH_FIELD: Mapping[str, str] = {
    **{key: name for key, (name, _) in _KEYS.items()},
    "session.execution_mode": "parallel",
    "session.intra_op_num_threads": "threads",
    "session.inter_op_num_threads": "inter_threads",
    "session.enable_cpu_mem_arena": "arena",
    "session.enable_mem_pattern": "memory_pattern",
    "session.enable_mem_reuse": "memory_reuse",
    "session.graph_optimization_level": "level",
    "optimization.disable_specified_optimizers": "disable",
}
"""Names that have a field: the runtime lists some of them without reading them as keys."""


_CPUS = r"[0-9]{1,4}(-[0-9]{1,4})?"
_AFFINITY = stored.text(rf"({_CPUS}([,;]{_CPUS})*)?", 8192)
_OPTIMIZER = stored.text(r"[A-Za-z0-9_]+", 128)
_RECURRENT = ("LSTM", "GRU", "RNN")
_SLOWER = {
    "SkipLayerNormFusion": ("LayerNormalization", "ReduceMean"),
    "BiasGeluFusion": ("Gelu", "Erf", "com.microsoft::Gelu"),
    "MatMulScaleFusion": ("Softmax",),
}
"""Graph optimizer -> operators in the model without which it does nothing."""


@dataclass(frozen=True)
class Cpu(Backend):
    """CPU execution by onnxruntime. Every default is the runtime's own, threads apart.

    Attributes:
        threads: Threads inside one operator; 0 takes the CPUs this process may really use.
        level: How far the runtime may rewrite the graph when it loads it.
        disable: Graph optimizers to leave out, by the runtime's names.
        spin: Idle threads turn in a loop for a while before they sleep: quick to find new work,
            at the cost of the CPU that they turn on. Off repairs threads beside a busy neighbour.
        spin_us: How long they turn, microseconds; 0 leaves the runtime's fixed count of turns.
        spin_backoff: Pauses between two looks for work grow up to this many; 1 is no growth.
        parallel: Run independent operators side by side, for graphs with branches.
        inter_threads: Threads that operators are spread over when `parallel`; 0 takes the CPUs.
        arena: Keep freed memory of activations for the next run.
        arena_growth: How the arena grows: in powers of two (quick), or as requested (small).
        memory_pattern: Plan all activations of a run with known shapes as one block.
        memory_reuse: Give memory that no operator needs any more to the next one's results.
        prepack: Reorder weights for the kernels at load; off saves memory and costs time.
        flush_denormals: Take floats below 1.2e-38 for 0, inputs and results. Changes numbers.
            It holds for the thread that opens the session and those started from it later.
        block_base: Split work into ever smaller blocks by this base, against threads of unequal
            speed; 0 splits evenly. The runtime's advice is 4.
        affinity: CPUs of each thread but the caller's, counted from 1: ``2;3-4`` for 3 threads.
        fast_gelu: Approximate Gelu by its tanh form. Changes numbers.
        cast_chains: Drop casts to a type and back. Changes numbers.
        nbits_block: Weights that share a step where the runtime makes a MatMulNBits of integer
            weights with one step a channel: a power of two from 16 on; 0 leaves its 32, -1 takes
            up to 256. Larger is faster; activations are rounded in these blocks. Changes numbers.
        config: Any other session key, as ``key=value``.
        custom_ops: Libraries of custom operators: paths, or Python modules that give one.
    """

    title: ClassVar[str] = "CPU"
    provider: ClassVar[str] = "CPUExecutionProvider"
    domains: ClassVar[frozenset[str]] = frozenset({"com.microsoft"})
    reads: ClassVar[tuple[str, ...]] = ("custom_ops",)

    level: GraphLevel = "all"
    disable: Annotated[tuple[str, ...], stored.items(_OPTIMIZER, 256)] = ()
    spin: bool = True
    spin_us: Annotated[int, Bounds(high=1e6)] = 0
    spin_backoff: Annotated[int, stored.integer(1, 1 << 16)] = 1
    parallel: bool = False
    inter_threads: Annotated[int, THREADS] = 0
    arena: bool = True
    arena_growth: Literal["power-of-two", "as-requested"] = "power-of-two"
    memory_pattern: bool = True
    memory_reuse: bool = True
    prepack: bool = True
    flush_denormals: bool = False
    block_base: Annotated[int, stored.integer(0, 1 << 16)] = 0
    affinity: Annotated[str, _AFFINITY] = ""
    fast_gelu: bool = False
    cast_chains: bool = False
    nbits_block: Annotated[int, Bounds(-1, 256)] = 0
    config: Annotated[tuple[str, ...], stored.pairs(checks.SESSION_KEYS)] = ()
    custom_ops: Annotated[tuple[str, ...], stored.CODE] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "level", graph_level(self.level))
        checks.check_minimum(0, threads=self.threads, inter_threads=self.inter_threads)
        checks.check_minimum(0, spin_us=self.spin_us, block_base=self.block_base)
        checks.check_minimum(1, spin_backoff=self.spin_backoff)
        checks.check_choices((-1, 0, 16, 32, 64, 128, 256), nbits_block=self.nbits_block)
        checks.parse_affinity(self.affinity)
        checks.parse_config(self.config, _KEYS_WITH_FIELD)

    def leave_out(self, optimizers: Sequence[str], level: GraphLevel | None) -> Self:
        more = tuple(name for name in optimizers if name not in self.disable)
        return replace(self, disable=(*self.disable, *more), level=level or self.level)

    @property
    def lossy(self) -> bool:
        """Flushing and approximating change numbers; what a free key does is not known."""
        free = bool(self.nbits_block or self.config)
        return self.flush_denormals or self.fast_gelu or self.cast_chains or free

    @property
    def portable(self) -> bool:
        """Threads are not bound to CPUs of this machine, nor operators spread by their number."""
        return not self.affinity and self.inter_threads <= 1

    @property
    def arithmetic(self) -> frozenset[str]:
        """Integer kernels; weight-only integers are expanded when the model loads."""
        return frozenset({"int8", "int8-dynamic"})

    def missing(self) -> str | None:
        """Return how to install onnxruntime when it is not there.

        Raises:
            BadSettings: The installed one does not know a key that is set, or a library of custom
                operators cannot be used.
        """
        reason = session.explain_missing_runtime()
        if reason is None:
            checks.demand_session_keys(self.build_config_entries())
            if self.custom_ops:
                op_libraries.demand_loadable(self.custom_ops)
        return reason

    def variants(
        self, facts: Facts, workload: Workload, capabilities: Capabilities
    ) -> Iterable[Self]:
        """Yield these options; of a transformer those without SkipLayerNormFusion too."""
        yield self
        normalized = facts.has("LayerNormalization") or facts.ops.get("ReduceMean", 0) > 1
        if normalized and facts.has("Softmax") and facts.has("MatMul", "Gemm"):
            yield from self._vary_optimizers(facts)["without SkipLayerNormFusion"]

    def coordinates(
        self, facts: Facts, capabilities: Capabilities
    ) -> Mapping[str, Sequence[Self]]:
        """Return neighbours by setting, those that are worth most first.

        Spinning comes before the number of threads: fewer would win over several that spin badly.
        """
        cpus = capabilities.effective_cpus
        several = min(self.threads or cpus, cpus) > 1
        flush = [replace(self, flush_denormals=True)]
        neighbours: dict[str, list[Self]] = {"flush_denormals": flush if facts.denormals else []}
        neighbours |= self._vary_optimizers(facts)
        if several:
            plain = replace(self, spin=True, spin_us=0, spin_backoff=1)
            neighbours["spin"] = [
                replace(plain, spin=False),
                replace(plain, spin_us=100),
                replace(plain, spin_us=1000, spin_backoff=8),
                replace(plain, spin_backoff=8),
            ]
        # With the count goes what depends on it.
        bare = replace(self, affinity="", block_base=0, parallel=False, inter_threads=0)
        alone = replace(bare, threads=1, spin=True, spin_us=0, spin_backoff=1)
        neighbours["threads"] = [
            alone if count == 1 else replace(self, threads=count, affinity="")
            for count in checks.thread_counts(cpus, self.threads)
        ]
        neighbours["level"] = [replace(self, level="extended")]
        if several:
            neighbours["block_base"] = [replace(self, block_base=4)]
            neighbours["parallel"] = [replace(self, parallel=True, inter_threads=cpus)]
            pinned = checks.affinity_of_workers(self.threads or cpus, capabilities.usable_cpus)
            neighbours["affinity"] = [replace(self, affinity=pinned)] if pinned else []
        neighbours["memory_pattern"] = [replace(self, memory_pattern=False)]
        neighbours["arena"] = [
            replace(self, arena=True, arena_growth="as-requested"),
            replace(self, arena=False, arena_growth="power-of-two"),
        ]
        neighbours["prepack"] = [replace(self, prepack=False)]
        if facts.has("Gelu", "Erf", "com.microsoft::Gelu"):
            neighbours["fast_gelu"] = [replace(self, fast_gelu=True)]
        if facts.has("Cast"):
            neighbours["cast_chains"] = [replace(self, cast_chains=True)]
        if facts.has("DequantizeLinear") and facts.has("MatMul"):
            neighbours["nbits_block"] = [replace(self, nbits_block=-1)]
        if facts.has(*_RECURRENT) and not facts.denormals:
            neighbours["flush_denormals"] = neighbours.pop("flush_denormals") + flush
        return neighbours

    def _vary_optimizers(self, facts: Facts) -> dict[str, list[Self]]:
        """Return one more graph optimizer left out: whose kernel can be slower than its parts.

        Without SkipLayerNorm MiniLM and BERT gained 7-10 % in float32 and 17-20 % in int8, without
        BiasGelu MiniLM up to 2 % more. The others are worth their place on fifteen real models.
        """
        neighbours = {}
        for name, ops in _SLOWER.items():
            more = (*self.disable, name)
            fires = facts.has(*ops) and name not in self.disable
            neighbours[f"without {name}"] = [replace(self, disable=more)] if fires else []
        return neighbours

    def build_config_entries(self) -> dict[str, str]:
        """Return the session keys of all fields that are not at the runtime's default.

        Raises:
            BadSettings: A free key is wrong.
        """
        config_entries = {
            key: text or str(getattr(self, name))
            for key, (name, text) in _KEYS.items()
            if getattr(self, name) != getattr(Cpu, name)
            and (self.parallel or not key.startswith("session.inter_op."))
        }
        return config_entries | checks.parse_config(self.config, _KEYS_WITH_FIELD)

    def open(self, path: Path, *, verbose: bool = False) -> AbstractContextManager[Session]:
        """Open a session on the CPU provider.

        Raises:
            BadSettings: The runtime does not know a key, or settings contradict each other.
        """
        return self._open_session(path, self._make_session_options(verbose))

    @contextmanager
    def _open_session(self, path: Path, options: Any) -> Iterator[Session]:
        with session.open_session(path, options, disabled=self.disable) as opened:
            if self.flush_denormals:
                checks.demand_flushed()
            yield opened

    def _make_session_options(self, verbose: bool, save_to: Path | None = None) -> Any:
        """Return the runtime's options, every key probed, else raise BadSettings."""
        checks.check_dependencies(
            (not self.inter_threads or self.parallel, "inter_threads", "parallel=true"),
            (self.arena_growth == "power-of-two" or self.arena, "arena_growth", "arena=true"),
        )
        checks.check_affinity(self.affinity, self.threads or effective_cpus())
        entries = self.build_config_entries()
        checks.demand_session_keys(entries)
        options = session.make_session_options(
            self.threads, self.level, verbose=verbose, save_to=save_to, custom_ops=self.custom_ops
        )
        options.enable_cpu_mem_arena = self.arena
        options.enable_mem_pattern = self.memory_pattern
        options.enable_mem_reuse = self.memory_reuse
        if self.parallel:
            session.side_by_side(options, self.inter_threads)
        if "session.use_env_allocators" in entries:
            session.share_small_arena()
        for key, value in entries.items():
            options.add_session_config_entry(key, value)
        return options

    def record(
        self, path: Path, folder: Path, *, verbose: bool = False
    ) -> AbstractContextManager[Recording]:
        options = self._make_session_options(verbose, save_to=folder / ort_record.GRAPH)
        return ort_record.open_recording(path, options, folder, disabled=self.disable)

    def takes(self, path: Path) -> Mapping[str, Sequence[str]]:
        """Ask with every optimizer off; what only this provider's kernels lack fails to load."""
        plain = replace(self, level="disabled", disable=())
        with session.open_session(path, plain._make_session_options(False)) as opened:
            return opened.list_assigned_nodes()

    def save(self, path: Path, out: Path) -> None:
        """Write the graph as rewritten at this level; ``all`` binds it to this CPU."""
        with self._open_session(path, self._make_session_options(False, save_to=out)):
            pass
