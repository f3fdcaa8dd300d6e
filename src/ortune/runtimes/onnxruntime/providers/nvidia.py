"""The provider options that the fields of `cuda` and `tensorrt` stand for.

Names and meanings: onnxruntime's pages "CUDA Execution Provider", "TensorRT Execution Provider".
Every default that matters is written out; the runtime's own is TF32 on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ortune.core.errors import BadSettings
from ortune.core.outputs import caches
from ortune.runtimes.onnxruntime import checks, keys
from ortune.runtimes.onnxruntime.providers.probe import CUDA, TENSORRT

_MB = 1 << 20
_ARENA = {"power-of-two": "kNextPowerOfTwo", "as-requested": "kSameAsRequested"}
CUDA_GRAPH, TENSORRT_GRAPH = "enable_cuda_graph", "trt_cuda_graph_enable"

CUDA_OWN: Mapping[str, str] = {
    "device_id": "device",
    "gpu_mem_limit": "memory_limit",
    "arena_extend_strategy": "arena_growth",
    "cudnn_conv_algo_search": "search",
    "use_tf32": "tf32",
    CUDA_GRAPH: "cuda_graph",
    "prefer_nhwc": "prefer_nhwc",
    "fuse_conv_bias": "fuse_conv_bias",
    "has_user_compute_stream": "nothing: streams are the session's own",
    "user_compute_stream": "nothing: streams are the session's own",
}
"""Options of the CUDA provider that have a field, or none for a reason."""
TENSORRT_OWN: Mapping[str, str] = {
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
    TENSORRT_GRAPH: "cuda_graph",
}
"""The same of the TensorRT provider."""


def cuda(settings: Any) -> dict[str, str]:
    """Return the options of the CUDA provider.

    Args:
        settings: Has the fields of the backend `cuda`.

    Raises:
        BadSettings: A free option is wrong.
    """
    made = {
        "device_id": str(settings.device),
        "arena_extend_strategy": _ARENA[settings.arena_growth],
        "cudnn_conv_algo_search": settings.search.upper(),
        "use_tf32": _switch(settings.tf32),
        CUDA_GRAPH: _switch(settings.cuda_graph),
        "prefer_nhwc": _switch(settings.prefer_nhwc),
        "fuse_conv_bias": _switch(settings.fuse_conv_bias),
    }
    if settings.memory_limit:
        made["gpu_mem_limit"] = str(settings.memory_limit * _MB)
    return made | checks.pairs(settings.config, CUDA_OWN)


def tensorrt(settings: Any, shapes: Mapping[str, str], cache: str) -> dict[str, str]:
    """Return the options of the TensorRT provider.

    Without a flag of precision the network is strongly typed: every layer computes in the type
    that the graph gives it (onnxruntime, tensorrt_execution_provider.cc, ``kSTRONGLY_TYPED``).

    Args:
        settings: Has the fields of the backend `tensorrt`.
        shapes: Options of its optimization profiles.
        cache: Folder of its engines; empty to keep none. The times of tactics are kept for all
            models together: TensorRT itself leaves those of another device or release out.

    Raises:
        BadSettings: A free option is wrong.
    """
    home = caches()
    timings = home / "tensorrt-timings" if home else None
    made = {
        "device_id": str(settings.device),
        "trt_fp16_enable": _switch(settings.precision == "fp16"),
        "trt_bf16_enable": _switch(settings.precision == "bf16"),
        "trt_builder_optimization_level": str(settings.builder_level),
        "trt_build_heuristics_enable": _switch(settings.heuristics),
        "trt_engine_cache_enable": _switch(settings.cache and bool(cache)),
        "trt_timing_cache_enable": _switch(settings.timing_cache and timings is not None),
        TENSORRT_GRAPH: _switch(settings.cuda_graph),
        **shapes,
    }
    if settings.workspace:
        made["trt_max_workspace_size"] = str(settings.workspace * _MB)
    if cache and settings.cache:
        made["trt_engine_cache_path"] = cache
    if timings and settings.timing_cache:
        made["trt_timing_cache_path"] = str(timings)
    return made | checks.pairs(settings.config, TENSORRT_OWN)


def demand(provider: str, names: Iterable[str]) -> None:
    """Refuse options that a provider of the installed onnxruntime does not know.

    Raises:
        BadSettings: One is not written in its library.
    """
    word = {CUDA: "providers_cuda", TENSORRT: "providers_tensorrt"}[provider]
    found = [library for library in keys.libraries() if word in library.name]
    for name in names:
        if found and not any(keys.written(library, name) for library in found):
            raise BadSettings(
                f"{provider} has no option '{name}'", fix="look its name up, or leave it out"
            )


def _switch(on: bool) -> str:
    return "1" if on else "0"
