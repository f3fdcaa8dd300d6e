"""Which properties the installed OpenVINO knows: its plug-in for onnxruntime ignores others."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from ortune.core.errors import BadSettings
from ortune.core.hardware.cpus import effective_cpus
from ortune.core.plugins import stored
from ortune.runtimes.onnxruntime import checks, keys
from ortune.runtimes.openvino import package

_STAYS: Mapping[str, str] = {"ENABLE_STARTUP_FALLBACK": "NO", "ENABLE_RUNTIME_FALLBACK": "NO"}
"""AUTO else computes on the CPU until its device has compiled, and goes on there if that fails."""
_COMMON = ("INFERENCE_NUM_THREADS", "INFERENCE_PRECISION_HINT", "PERFORMANCE_HINT")
_SAID: Mapping[str, tuple[str, ...]] = {
    "cpu": _COMMON,
    "gpu": ("INFERENCE_PRECISION_HINT", "PERFORMANCE_HINT"),
    "npu": ("PERFORMANCE_HINT",),
    "auto": _COMMON,
}
"""Device -> what is always said: a GPU left alone computes in f16. An NPU has no choice."""
ALWAYS = frozenset({*_COMMON, *_STAYS})
"""Properties that every OpenVINO has."""
_TEXTS = {
    "True": "YES",
    "on": "YES",
    "off": "NO",
    "performance": "PCORE_ONLY",
    "efficient": "ECORE_ONLY",
}
"""Values of fields as OpenVINO spells them; all others are written as they are."""
OWN: Mapping[str, str] = {
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


def made(settings: Any, default: Any) -> dict[str, str]:
    """Return OpenVINO's properties: those that matter, and all that are not at its default.

    Args:
        settings: Has the fields of the backend `openvino`.
        default: Has the same fields, as OpenVINO has them by itself.

    Raises:
        BadSettings: A free property is wrong.
    """
    always = {
        "INFERENCE_NUM_THREADS": str(settings.threads or effective_cpus()),
        "INFERENCE_PRECISION_HINT": settings.precision,
        "PERFORMANCE_HINT": settings.hint.upper(),
    }
    found = {key: always[key] for key in _SAID[settings.device]}
    if settings.device == "auto":
        found |= _STAYS
    for key, name in OWN.items():
        value = getattr(settings, name)
        if key not in always and value != getattr(default, name):
            found[key] = _TEXTS.get(str(value), str(value))
    return found | checks.pairs(settings.config, OWN)


def demand(names: Sequence[str], *, plugged: bool, device: str = "CPU") -> None:
    """Refuse properties that OpenVINO's device does not take. AUTO itself takes any silently.

    Its own runtime is asked. The plug-in brings libraries of its own, which are searched.

    Raises:
        BadSettings: One of them is unknown.
    """
    for name in names:
        if not (_in_plugin(name) if plugged else name in writable(device)):
            raise BadSettings(
                f"OpenVINO's {device} device has no property '{name}'", fix=_nearest(name, device)
            )


@cache
def writable(device: str = "CPU") -> tuple[str, ...]:
    """Return what a device of the installed runtime lets be set; AUTO passes on the CPU's."""
    core, names = package.load().Core(), set[str]()
    for one in ("AUTO", "CPU") if device == "AUTO" else (device,):
        found = core.get_property(one, "SUPPORTED_PROPERTIES")
        names |= {name for name, access in found.items() if str(access) != "RO"}
    return tuple(sorted(names))


def _in_plugin(name: str) -> bool:
    found = keys.libraries("onnxruntime_ep_openvino", "")
    return not found or any(keys.written(library, name) for library in found)


def _nearest(name: str, device: str) -> str:
    try:
        close = difflib.get_close_matches(name, writable(device), n=3, cutoff=0.6)
    except (ImportError, RuntimeError):
        close = []
    return f"use one that it has, such as {', '.join(close)}" if close else "leave it out"
