"""The session options that the CPU backend's fields stand for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ortune.core.hardware.cpus import effective_cpus
from ortune.runtimes.onnxruntime import affinity as affinities
from ortune.runtimes.onnxruntime import checks, keys, session

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
OWN: Mapping[str, str] = {
    **{key: name for key, (name, _) in _KEYS.items()},
    "session.execution_mode": "parallel",
    "session.intra_op_num_threads": "threads",
    "session.inter_op_num_threads": "inter_threads",
    "session.enable_cpu_mem_arena": "arena",
    "session.enable_mem_pattern": "memory_pattern",
    "session.graph_optimization_level": "level",
    "optimization.disable_specified_optimizers": "disable",
}
"""Names that have a field: the runtime lists some of them without reading them as keys."""


def entries(settings: Any, default: Any) -> dict[str, str]:
    """Return the session keys of all fields that are not at the runtime's default.

    Args:
        settings: Has the fields of the backend `cpu`.
        default: Has the same fields, as the runtime has them by itself.

    Raises:
        BadSettings: A free key is wrong.
    """
    made = {
        key: text or str(getattr(settings, name))
        for key, (name, text) in _KEYS.items()
        if getattr(settings, name) != getattr(default, name)
        and (settings.parallel or not key.startswith("session.inter_op."))
    }
    return made | checks.pairs(settings.config, OWN)


def made(
    settings: Any,
    entries: Mapping[str, str],
    custom_ops: Sequence[str] = (),
    *,
    verbose: bool = False,
    save_to: Path | None = None,
) -> Any:
    """Return the runtime's SessionOptions, every key probed.

    Args:
        settings: Has the fields of the backend `cpu`.
        entries: Its session keys.
        custom_ops: Libraries of custom operators.

    Raises:
        BadSettings: The runtime does not know a key, or settings contradict each other.
    """
    checks.agree(
        (not settings.inter_threads or settings.parallel, "inter_threads", "parallel=true"),
        (settings.arena_growth == "power-of-two" or settings.arena, "arena_growth", "arena=true"),
    )
    affinities.check(settings.affinity, settings.threads or effective_cpus())
    keys.demand(entries)
    options = session.options(
        settings.threads, settings.level, verbose=verbose, save_to=save_to, custom_ops=custom_ops
    )
    options.enable_cpu_mem_arena = settings.arena
    options.enable_mem_pattern = settings.memory_pattern
    if settings.parallel:
        session.side_by_side(options, settings.inter_threads)
    if "session.use_env_allocators" in entries:
        session.share_small_arena()
    for key, value in entries.items():
        options.add_session_config_entry(key, value)
    return options
