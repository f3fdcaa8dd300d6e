"""What a file from elsewhere may set of backends for NVIDIA GPUs: a part of `allowed`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

_Rule: TypeAlias = Mapping[str, Any]

_FLAG: _Rule = {"rule": "flag"}
_SWITCH: _Rule = {"rule": "word", "of": ["0", "1"]}
_THREADS: _Rule = {"rule": "integer", "least": 0, "most": 1_000_000, "cpus": True}
_SHAPE = r"[0-9]{1,9}([x,][0-9]{1,9}){0,15}"


def _integer(least: int, most: int) -> _Rule:
    return {"rule": "integer", "least": least, "most": most}


def _word(*words: str) -> _Rule:
    return {"rule": "word", "of": list(words)}


CUDA_OPTIONS: Mapping[str, _Rule] = {
    "cudnn_conv1d_pad_to_nc1d": _SWITCH,
    "cudnn_conv_use_max_workspace": _SWITCH,
    "do_copy_in_default_stream": _SWITCH,
    "enable_skip_layer_norm_strict_mode": _SWITCH,
    "sdpa_kernel": _integer(0, 255),
    "use_ep_level_unified_stream": _SWITCH,
}
"""Options of the CUDA provider beyond those that have a field.

Left out on purpose: addresses (``gpu_external_*``, ``user_compute_stream``), and what tunes
kernels at run time and keeps it in files (``tunable_op_*``).
"""
TENSORRT_OPTIONS: Mapping[str, _Rule] = {
    "trt_auxiliary_streams": _integer(-1, 64),
    "trt_context_memory_sharing_enable": _SWITCH,
    "trt_force_sequential_engine_build": _SWITCH,
    "trt_layer_norm_fp32_fallback": _SWITCH,
    "trt_max_partition_iterations": _integer(0, 1 << 16),
    "trt_min_subgraph_size": _integer(1, 1 << 16),
    "trt_sparsity_enable": _SWITCH,
}
"""Options of the TensorRT provider beyond those that have a field.

Left out on purpose: what names a file, a folder or a library (``*_path``, ``*_paths``, ``*_name``,
``trt_dump_*``, ``trt_ep_context_*``, ``trt_engine_decryption_*``), addresses (``*_bytestream``)
and logging.
"""

_GPU: Mapping[str, _Rule] = {
    "threads": _THREADS,
    "device": _integer(0, 1023),
    "cuda_graph": _FLAG,
    "io_binding": _FLAG,
}
_MB = _integer(0, 1 << 24)
_PROFILE: _Rule = {
    "rule": "text",
    "pattern": rf"[^\r\n]{{1,512}}[:=]{_SHAPE}(\.\.{_SHAPE}){{0,2}}",
    "most": 2048,
}

GPU_BACKENDS: Mapping[str, Mapping[str, _Rule]] = {
    "cuda": {
        **_GPU,
        "level": _word("disabled", "disable", "basic", "extended", "all"),
        "search": _word("exhaustive", "heuristic", "default"),
        "tf32": _FLAG,
        "memory_limit": _MB,
        "arena_growth": _word("power-of-two", "as-requested"),
        "prefer_nhwc": _FLAG,
        "fuse_conv_bias": _FLAG,
        "config": {"rule": "pairs", "keys": CUDA_OPTIONS},
        "custom_ops": {"rule": "code"},
    },
    "tensorrt": {
        **_GPU,
        "precision": _word("graph", "fp16", "bf16"),
        "workspace": _MB,
        "profiles": {"rule": "list", "of": _PROFILE, "most": 256},
        "timing_cache": _FLAG,
        "cache": _FLAG,
        "builder_level": _integer(0, 5),
        "heuristics": _FLAG,
        "config": {"rule": "pairs", "keys": TENSORRT_OPTIONS},
    },
}
"""Backend -> field -> rule: every field of both."""
