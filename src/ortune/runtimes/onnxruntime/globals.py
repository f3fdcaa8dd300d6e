"""Settings of onnxruntime that are no session key: its objects are called for them."""

from __future__ import annotations

from typing import Any

from ortune.core.hardware.cpus import effective_cpus


def side_by_side(made: Any, threads: int) -> None:
    """Let independent operators run at the same time, over `threads`; 0 takes the CPUs."""
    import onnxruntime as ort

    made.execution_mode = ort.ExecutionMode.ORT_PARALLEL
    made.inter_op_num_threads = threads or effective_cpus()


def share_small_arena() -> None:
    """Register an arena that grows as requested for this process's sessions.

    Sessions with ``session.use_env_allocators`` share it; one registered before is replaced. A
    session's own arena takes no such option on the CPU (OrtApi::CreateArenaCfgV2).
    """
    import onnxruntime as ort

    memory = ort.OrtMemoryInfo(
        "Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT
    )
    as_requested = ort.OrtArenaCfg({"max_mem": 0, "arena_extend_strategy": 1})
    ort.create_and_register_allocator(memory, as_requested)
