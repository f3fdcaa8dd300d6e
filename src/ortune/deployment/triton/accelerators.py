"""Execution accelerators: Triton takes any name and any option, and fails when it loads."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ortune.core.errors import BadSettings

_FLAG = r"0|1|true|false"
_COUNT = r"-?\d{1,20}"
_TEXT = r"[^\x00-\x1f\x7f]{1,4096}"
_SHAPES = r"[^\s,:]+:\d+(x\d+)*(,[^\s,:]+:\d+(x\d+)*)*"

_TENSORRT = {
    "precision_mode": "FP32|FP16|BF16|INT8",
    "max_workspace_size_bytes": r"\d{1,20}",
    "int8_calibration_table_name": _TEXT,
    "int8_use_native_calibration_table": _FLAG,
    "trt_auxiliary_streams": _COUNT,
    "trt_build_heuristics_enable": _FLAG,
    "trt_builder_optimization_level": _COUNT,
    "trt_context_memory_sharing_enable": _FLAG,
    "trt_cuda_graph_enable": _FLAG,
    "trt_detailed_build_log": _FLAG,
    "trt_dla_core": _COUNT,
    "trt_dla_enable": _FLAG,
    "trt_dump_ep_context_model": _FLAG,
    "trt_dump_subgraphs": _FLAG,
    "trt_engine_cache_enable": _FLAG,
    "trt_engine_cache_path": _TEXT,
    "trt_engine_cache_prefix": _TEXT,
    "trt_ep_context_embed_mode": _COUNT,
    "trt_ep_context_file_path": _TEXT,
    "trt_extra_plugin_lib_paths": _TEXT,
    "trt_force_sequential_engine_build": _FLAG,
    "trt_force_timing_cache": _FLAG,
    "trt_layer_norm_fp32_fallback": _FLAG,
    "trt_max_partition_iterations": _COUNT,
    "trt_min_subgraph_size": _COUNT,
    "trt_profile_max_shapes": _SHAPES,
    "trt_profile_min_shapes": _SHAPES,
    "trt_profile_opt_shapes": _SHAPES,
    "trt_sparsity_enable": _FLAG,
    "trt_tactic_sources": r"[+-]\w+(,[+-]\w+)*",
    "trt_timing_cache_enable": _FLAG,
    "trt_timing_cache_path": _TEXT,
}
_CUDA = {
    "arena_extend_strategy": "kNextPowerOfTwo|kSameAsRequested",
    "cudnn_conv1d_pad_to_nc1d": _FLAG,
    "cudnn_conv_algo_search": "EXHAUSTIVE|HEURISTIC|DEFAULT",
    "cudnn_conv_use_max_workspace": _FLAG,
    "do_copy_in_default_stream": _FLAG,
    "enable_cuda_graph": _FLAG,
    "enable_skip_layer_norm_strict_mode": _FLAG,
    "fuse_conv_bias": _FLAG,
    "gpu_mem_limit": r"\d{1,20}",
    "prefer_nhwc": _FLAG,
    "sdpa_kernel": _COUNT,
    "tunable_op_enable": _FLAG,
    "tunable_op_max_tuning_duration_ms": _COUNT,
    "tunable_op_tuning_enable": _FLAG,
    "use_ep_level_unified_stream": _FLAG,
    "use_tf32": _FLAG,
}
ACCELERATORS: Mapping[str, Mapping[str, str]] = {"tensorrt": _TENSORRT, "cuda": _CUDA}
"""Accelerator of a GPU -> its options, each with the pattern of its value: what Triton's
onnxruntime backend reads, and for ``cuda`` the options of onnxruntime's provider. Devices and
streams are left out, as Triton sets them."""


def options(accelerator: str, given: Sequence[str]) -> dict[str, str]:
    """Return ``key=value`` texts as a mapping.

    Raises:
        BadSettings: The accelerator has no such option, a value is none that it takes, or there
            is no accelerator.
    """
    if given and not accelerator:
        raise BadSettings(
            f"'{given[0]}' is an option of an accelerator, and none is given",
            fix="add accelerator=tensorrt or accelerator=cuda",
        )
    known = ACCELERATORS.get(accelerator, {})
    found: dict[str, str] = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or key not in known:
            raise BadSettings(
                f"{accelerator} has no option '{key}'", fix=f"use one of: {', '.join(known)}"
            )
        if key in found:
            raise BadSettings(f"option '{key}' is given twice", fix="keep one")
        if re.fullmatch(known[key], value) is None:
            raise BadSettings(
                f"'{value}' is no value of {accelerator}'s '{key}'",
                fix=f"give {_named(known[key])}",
            )
        found[key] = value
    return found


def _named(pattern: str) -> str:
    names = {_TEXT: "a text", _SHAPES: "INPUT:1x3x224x224", _COUNT: "a number", _FLAG: "0 or 1"}
    return names.get(pattern, pattern.replace("|", ", "))
