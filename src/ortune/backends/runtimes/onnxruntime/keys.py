"""Session keys that the installed onnxruntime knows: unknown ones it ignores silently.

A key that the runtime reads must be written in its library. The libraries are searched for the
text with no letter, digit, dot or underscore beside it; a compiler may build a text from pieces,
so a key that is not found may, rarely, exist. It is refused all the same.
"""

from __future__ import annotations

import difflib
import importlib.util
import mmap
import re
import warnings
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

from ortune.core.errors import BadSettings
from ortune.core.plugins import stored

_KEY = re.compile(rb"(?<![\w.])(?:session|optimization|ep|mlas)\.[a-z0-9_.]+[a-z0-9](?![\w.])")
_ENDINGS = (".so", ".dll", ".dylib", ".pyd")
SESSION_KEYS: Mapping[str, stored.FieldRule] = {
    "mlas.disable_kleidiai": stored.SWITCH,
    "mlas.enable_gemm_fastmath_arm64_bfloat16": stored.SWITCH,
    "mlas.kleidiai.conv_igemm_max_work": stored.integer(0, 1 << 31),
    "mlas.nchwc_depthwise_sliding": stored.SWITCH,
    "mlas.nchwc_pointwise_conv_max_input_channel_batch": stored.integer(0, 1 << 16),
    "mlas.qnbit.force_fp32": stored.SWITCH,
    "mlas.use_lut_gemm": stored.SWITCH,
    "optimization.constant_folding_max_output_size_in_bytes": stored.integer(0, 1 << 30),
    "session.disable_aot_function_inlining": stored.SWITCH,
    "session.disable_cpu_ep_fallback": stored.SWITCH,
    "session.disable_double_qdq_remover": stored.SWITCH,
    "session.disable_qdq_constant_folding": stored.SWITCH,
    "session.disable_quant_qdq": stored.SWITCH,
    "session.enable_dq_matmulnbits_fusion": stored.SWITCH,
    "session.enable_quant_qdq_cleanup": stored.SWITCH,
    "session.force_spinning_stop": stored.SWITCH,
    "session.graph_optimizations_loop_level": stored.word("0", "1", "2"),
    "session.prepack.enable_parallel": stored.SWITCH,
    "session.qdq_matmulnbits_accuracy_level": stored.integer(0, 4),
    "session.qdqisint8allowed": stored.SWITCH,
    "session.strict_shape_type_inference": stored.SWITCH,
    "session.use_deterministic_compute": stored.SWITCH,
    "session.use_device_allocator_for_initializers": stored.SWITCH,
    "session.x64quantprecision": stored.SWITCH,
}
"""Session keys that a file may set, beyond those that have a field of `cpu`.

Left out on purpose, with their kin in versions to come: what writes or reads a file or names a
folder (``session.collect_node_memory_stats_to_file``, ``session.optimized_model_*``,
``session.debug_layout_transformation``, ``ep.context_*``, ``session.*_file``), what reads the
model in another format (``session.load_model_format``, ``session.use_ort_model_bytes_*``), what
switches a protection of the runtime off (``session.function_expansion_*``), logging, and what
nobody has a use for here.
"""


@cache
def list_libraries(package: str = "onnxruntime", folder: str = "capi") -> tuple[Path, ...]:
    """Return the shared libraries of an installed package, the largest first; none if unknown.

    ``x.so.1.2`` counts; nothing is imported.
    """
    spec = importlib.util.find_spec(package)
    places = (spec.submodule_search_locations if spec else None) or []
    paths = {
        path.resolve()
        for place in places
        for path in (Path(place) / folder).glob("*")
        if any(end in path.name for end in _ENDINGS) and path.is_file()
    }
    return tuple(sorted(paths, key=lambda path: path.stat().st_size, reverse=True))


@cache
def has_word(library: Path, text: str) -> bool:
    """Say whether a library holds a text as a word of its own; about 30 ms for 30 MB."""
    word = re.escape(text.encode())
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        # The text first: it is found faster than any byte that might stand before it.
        return re.search(rb"%b(?<![\w.]%b)(?![\w.])" % (word, word), data) is not None


def demand_session_keys(keys: Iterable[str]) -> None:
    """Refuse keys that the installed onnxruntime does not know.

    Raises:
        BadSettings: One of them is unknown.
    """
    requested_keys = list(keys)
    if not requested_keys:
        return
    library_paths = list_libraries()
    if not library_paths:
        warnings.warn(
            f"onnxruntime's library was not found, so {', '.join(requested_keys)} could not be "
            "checked",
            stacklevel=2,
        )
        return
    for key in requested_keys:
        if not any(has_word(library, key) for library in library_paths):
            import onnxruntime

            close = difflib.get_close_matches(
                key, list_session_keys(library_paths[0]), n=3, cutoff=0.7
            )
            raise BadSettings(
                f"onnxruntime {onnxruntime.__version__} has no session key '{key}'",
                fix=f"use one that it has, such as {', '.join(close)}"
                if close
                else "check its name, or leave it out",
            )


@cache
def list_session_keys(library: Path) -> tuple[str, ...]:
    """Return everything in a library that looks like a session key."""
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return tuple(sorted({match[0].decode() for match in _KEY.finditer(data)}))
