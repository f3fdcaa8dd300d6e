"""What a file from elsewhere may set: names, types and bounds a backend, as plain data.

A bundle, a run's folder and a settings file carry data, not power: nothing that they set writes a
file, loads code, names a path or an interpreter, or asks for more than this machine has. All of
it that may be set stands here and nowhere else; what does not stand here is refused. Every reader
asks `ortune.core.plugins.stored`. The table is JSON as it is, so that a reader in a single file
can carry it along.

What a person types on a command line, or writes in Python, is not held to it: it is that person's
machine. A search is the exception: its results are written to be read again, so that what
`optimize` is given must stand here too.

A rule is a mapping with ``rule``:

- ``flag``: true or false.
- ``integer``, ``number``: from ``least`` to ``most``; with ``cpus`` it is a count of threads, and
  lowered to the CPUs at hand by whoever opens a session.
- ``word``: one of ``of``.
- ``text``: of at most ``most`` characters that match ``pattern`` as a whole.
- ``list``: of at most ``most`` items, each by the rule ``of``.
- ``either``: by one of the rules ``of``.
- ``pairs``: a list of ``key=value`` texts, each key by its rule in ``keys``, at most once.
- ``plugin``: a plugin of a folder, by this same table.
- ``code``: names of libraries or functions. They are kept and shown, and run only where a person
  says so by name (`ortune.engine.consent`).
- ``nothing``: a field that names a file: it must be empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from ortune.core.plugins.allowed_gpu import GPU_BACKENDS

Rule: TypeAlias = Mapping[str, Any]


def _integer(least: int, most: int) -> Rule:
    return {"rule": "integer", "least": least, "most": most}


def _word(*words: str) -> Rule:
    return {"rule": "word", "of": list(words)}


def _list(of: Rule, most: int) -> Rule:
    return {"rule": "list", "of": of, "most": most}


def _text(pattern: str, most: int) -> Rule:
    return {"rule": "text", "pattern": pattern, "most": most}


_FLAG: Rule = {"rule": "flag"}
_SWITCH = _word("0", "1")
_YES = _word("YES", "NO")
_CODE: Rule = {"rule": "code"}
_NOTHING: Rule = {"rule": "nothing"}
_THREADS: Rule = {**_integer(0, 1_000_000), "cpus": True}
_NAME = _text(r"(?s).*", 4096)
"""A tensor's name: a key in a mapping and nothing else, whatever is in it."""
_SHARE: Rule = {"rule": "number", "least": 0, "most": 1}

SESSION_KEYS: Mapping[str, Rule] = {
    "mlas.disable_kleidiai": _SWITCH,
    "mlas.enable_gemm_fastmath_arm64_bfloat16": _SWITCH,
    "mlas.kleidiai.conv_igemm_max_work": _integer(0, 1 << 31),
    "mlas.nchwc_depthwise_sliding": _SWITCH,
    "mlas.nchwc_pointwise_conv_max_input_channel_batch": _integer(0, 1 << 16),
    "mlas.qnbit.force_fp32": _SWITCH,
    "mlas.use_lut_gemm": _SWITCH,
    "optimization.constant_folding_max_output_size_in_bytes": _integer(0, 1 << 30),
    "session.disable_aot_function_inlining": _SWITCH,
    "session.disable_cpu_ep_fallback": _SWITCH,
    "session.disable_double_qdq_remover": _SWITCH,
    "session.disable_qdq_constant_folding": _SWITCH,
    "session.disable_quant_qdq": _SWITCH,
    "session.enable_dq_matmulnbits_fusion": _SWITCH,
    "session.enable_quant_qdq_cleanup": _SWITCH,
    "session.force_spinning_stop": _SWITCH,
    "session.graph_optimizations_loop_level": _word("0", "1", "2"),
    "session.prepack.enable_parallel": _SWITCH,
    "session.qdq_matmulnbits_accuracy_level": _integer(0, 4),
    "session.qdqisint8allowed": _SWITCH,
    "session.strict_shape_type_inference": _SWITCH,
    "session.use_deterministic_compute": _SWITCH,
    "session.use_device_allocator_for_initializers": _SWITCH,
    "session.x64quantprecision": _SWITCH,
}
"""Keys of onnxruntime's sessions beyond those that have a field.

Left out on purpose, with their kin in versions to come: what writes or reads a file or names a
folder (``session.collect_node_memory_stats_to_file``, ``session.optimized_model_*``,
``session.debug_layout_transformation``, ``ep.context_*``, ``session.*_file``), what reads the
model in another format (``session.load_model_format``, ``session.use_ort_model_bytes_*``), what
switches a protection of the runtime off (``session.function_expansion_*``), logging, and what
nobody has a use for here.
"""

_PRECISION = _word("f32", "f16", "bf16", "u8", "i8", "u4", "i4", "dynamic")

OPENVINO_PROPERTIES: Mapping[str, Rule] = {
    "CPU_SPARSE_WEIGHTS_DECOMPRESSION_RATE": _SHARE,
    "DYNAMIC_QUANTIZATION_GROUP_SIZE": _integer(0, 1 << 16),
    "ENABLE_CPU_RESERVATION": _YES,
    "ENABLE_TENSOR_PARALLEL": _YES,
    "EXECUTION_MODE_HINT": _word("PERFORMANCE", "ACCURACY"),
    "KEY_CACHE_GROUP_SIZE": _integer(0, 1 << 16),
    "KEY_CACHE_PRECISION": _PRECISION,
    "KV_CACHE_PRECISION": _PRECISION,
    "MODEL_DISTRIBUTION_POLICY": _word("TENSOR_PARALLEL", "PIPELINE_PARALLEL"),
    "PERFORMANCE_HINT_NUM_REQUESTS": _integer(0, 1024),
    "TBB_PARTITIONER": _word("NONE", "STATIC", "AUTO"),
    "VALUE_CACHE_GROUP_SIZE": _integer(0, 1 << 16),
    "VALUE_CACHE_PRECISION": _PRECISION,
}
"""Properties of OpenVINO's CPU device beyond those that have a field.

Left out on purpose: ``CACHE_DIR``, ``CACHE_MODE``, ``WEIGHTS_PATH``, ``ENABLE_WEIGHTLESS`` and
whatever else names a place, ``DEVICE_ID``, logging and counters. The provider's own options
(``load_config``, ``cache_dir``, ``device_type``) have no field that could hold them.
"""

ENVIRONMENT: Mapping[str, Rule] = {}
"""Environment variables: none. Nothing that is stored sets one."""

INTERPRETERS: tuple[str, ...] = ("here",)
"""Names of environments that a run may ask its workers to run in, looked up on this machine."""

_OPTIMIZERS = _list(_text(r"[A-Za-z0-9_]+", 128), 256)
_CPUS = r"[0-9]{1,4}(-[0-9]{1,4})?"
_AFFINITY = _text(rf"({_CPUS}([,;]{_CPUS})*)?", 8192)
_LEVELS = _word("disabled", "disable", "basic", "extended", "all")
_DEFAULT = _word("default", "on", "off")

BACKENDS: Mapping[str, Mapping[str, Rule]] = {
    "cpu": {
        "threads": _THREADS,
        "level": _LEVELS,
        "disable": _OPTIMIZERS,
        "spin": _FLAG,
        "spin_us": _integer(0, 10_000_000),
        "spin_backoff": _integer(1, 1 << 16),
        "parallel": _FLAG,
        "inter_threads": _THREADS,
        "arena": _FLAG,
        "arena_growth": _word("power-of-two", "as-requested"),
        "memory_pattern": _FLAG,
        "prepack": _FLAG,
        "flush_denormals": _FLAG,
        "block_base": _integer(0, 1 << 16),
        "affinity": _AFFINITY,
        "fast_gelu": _FLAG,
        "cast_chains": _FLAG,
        "nbits_block": _integer(-1, 256),
        "config": {"rule": "pairs", "keys": SESSION_KEYS},
        "custom_ops": _CODE,
    },
    "openvino": {
        "threads": _THREADS,
        "device": _word("cpu", "gpu", "npu", "auto"),
        "precision": _word("f32", "bf16", "f16"),
        "hint": _word("latency", "throughput"),
        "streams": _THREADS,
        "pinning": _DEFAULT,
        "hyper_threading": _DEFAULT,
        "cores": _word("any", "performance", "efficient"),
        "flush_denormals": _FLAG,
        "config": {"rule": "pairs", "keys": OPENVINO_PROPERTIES},
    },
    "directml": {
        "threads": _THREADS,
        "device": _integer(0, 64),
        "level": _LEVELS,
        "metacommands": _FLAG,
        "graph_fusion": _FLAG,
    },
    "plugin": {
        "threads": _THREADS,
        "package": _CODE,
        "library": _CODE,
        "provider": _text(r"[\w.]*", 128),
        "device": _word("any", "cpu", "gpu", "npu"),
        "options": _CODE,
    },
    **GPU_BACKENDS,
    "bucketed": {
        "threads": _THREADS,
        "inner": {"rule": "plugin", "folder": "backends"},
        "mask": _NAME,
        "inputs": _list(_NAME, 4096),
        "outputs": _list(_NAME, 4096),
        "lengths": _list(_integer(1, 1 << 40), 4096),
        "side": _word("right", "left"),
        "custom_ops": _CODE,
    },
    "reference": {"threads": _THREADS},
    "simulated": {
        "threads": _THREADS,
        "isa": _word("avx2"),
        "report": _NOTHING,
        "custom_ops": _CODE,
    },
    "tensorrt-engine": {
        "threads": _THREADS,
        "device": _integer(0, 1024),
        "profiles": _list(_NAME, 4096),
        "workspace": _integer(0, 1 << 24),
        "builder_level": _integer(0, 5),
        "tf32": _FLAG,
        "timing_cache": _FLAG,
        "plugins": _NOTHING,
    },
    "torch": {
        "threads": _THREADS,
        "source": _CODE,
        "weights": _CODE,
        "compile": _FLAG,
        "mode": _word("default", "reduce-overhead", "max-autotune"),
        "precision": _word("f32", "bf16"),
    },
}
"""Backend -> field -> rule: every field of every backend that ortune has."""

OTHER: Mapping[str, Rule] = {
    "flag": _FLAG,
    "integer": _integer(-(1 << 31), 1 << 31),
    "number": {"rule": "number", "least": -1e300, "most": 1e300},
    "text": _text(r"[\w-]*", 64),
    "list": {"rule": "list", "most": 4096},
}
"""Fields of a backend from another package, by what their value is: a text is a plain word."""

METRICS: Mapping[str, Mapping[str, Rule]] = {
    "function": {"path": _CODE, "share": _SHARE},
    "map": {"decode": _CODE},
    "score": {"path": _CODE, "share": _SHARE},
}
"""Metrics that a function of the user's is part of; all others hold names of tensors alone."""

_SIZE: Rule = {"rule": "either", "of": [_integer(1, 16384), _list(_integer(1, 16384), 2)]}
_FACTOR: Rule = {"rule": "number", "least": -1e9, "most": 1e9}
_SPREAD: Rule = {"rule": "number", "least": 1e-9, "most": 1e9}

PREPROCESS: Mapping[str, Rule] = {
    "input": _NAME,
    "resize": _SIZE,
    "crop": _SIZE,
    "interpolation": _word("nearest", "bilinear", "bicubic", "lanczos", "box"),
    "channels": _word("rgb", "bgr", "gray"),
    "scale": _FACTOR,
    "mean": {"rule": "either", "of": [_FACTOR, _list(_FACTOR, 3)]},
    "std": {"rule": "either", "of": [_SPREAD, _list(_SPREAD, 3)]},
    "layout": _word("NCHW", "NHWC"),
    "dtype": _word("", "float32", "float16", "float64", "uint8", "int8", "int32", "int64"),
}
"""Keys of a bundle's ``preprocess.toml``: how its engine makes tensors of pictures."""

SERVING: Mapping[str, Rule] = {
    "instances": {**_integer(1, 1024), "cpus": True},
    "max_batch": _integer(1, 1 << 20),
    "max_delay_us": _integer(0, 10_000_000),
    "preferred": _list(_integer(1, 1 << 20), 64),
    "threads": _THREADS,
}
"""Keys of a bundle's ``serving.json``: how its engine shares CPUs among sessions, and runs."""
