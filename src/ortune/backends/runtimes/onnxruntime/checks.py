"""Checks of settings' values and keys, and of libraries of custom operators, which are code.

onnxruntime takes most wrong values without a word.
A session key that the runtime reads must be written in its library. The libraries are searched for
the text with no letter, digit, dot or underscore beside it; a compiler may build a text from
pieces, so a key that is not found may, rarely, exist. It is refused all the same.
"""

import difflib
import importlib.util
import mmap
import platform
import re
import signal
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ortune.backends.runtimes import own_process
from ortune.core import regular_file, wording
from ortune.core.errors import BadSettings, OrtuneError, summarize_error
from ortune.core.hardware.cpus import usable_cpus
from ortune.core.plugins import stored, user_file, user_function
from ortune.core.plugins.bounds import THREADS

_CPU = r"\d{1,4}(-\d{1,4})?"
_TEXT = re.compile(rf"{_CPU}(,{_CPU})*(;{_CPU}(,{_CPU})*)*")


def parse_affinity(text: str) -> list[set[int]]:
    """Return the CPUs of each thread but the first, counted from 0.

    Raises:
        BadSettings: The text is not of that form.
    """
    if not text:
        return []
    if not _TEXT.fullmatch(text):
        raise BadSettings(f'affinity="{text}" cannot be read', fix='write CPUs from 1, as "2;3-4"')
    cpu_sets = []
    for part in text.split(";"):
        ends = [[int(end) for end in span.split("-")] for span in part.split(",")]
        cpu_sets.append(
            {cpu - 1 for low, *upper in ends for cpu in range(low, (upper or [low])[0] + 1)}
        )
    if any(not cpus or -1 in cpus for cpus in cpu_sets):
        raise BadSettings(f'affinity="{text}" is not allowed', fix="count CPUs from 1, upwards")
    return cpu_sets


def check_affinity(text: str, threads: int) -> None:
    """Refuse an affinity that does not fit the threads or the CPUs of this process.

    The runtime logs a CPU that it may not use and goes on without it.

    Raises:
        BadSettings: A thread has no entry or too many, or a CPU may not be used.
    """
    cpu_sets = parse_affinity(text)
    if not cpu_sets:
        return
    if len(cpu_sets) != threads - 1:
        raise BadSettings(
            f'affinity="{text}" binds {wording.format_count(len(cpu_sets), "thread")}, not the '
            f"{threads - 1} beside the caller's",
            fix="give one entry for each thread but the first, separated by ;",
        )
    usable = usable_cpus()
    if usable and (foreign := sorted(set().union(*cpu_sets) - set(usable))):
        raise BadSettings(
            f'affinity="{text}" names CPU {foreign[0] + 1}, which this process may not use',
            fix=f"use {', '.join(str(cpu + 1) for cpu in usable)}",
        )


def affinity_of_workers(threads: int, usable: Sequence[int]) -> str:
    """Return an affinity that gives each thread but the caller's a CPU of its own.

    Empty where that cannot be done: too few usable CPUs, or a system that does not tell them.
    """
    if threads < 2 or len(usable) < threads:
        return ""
    return ";".join(str(cpu + 1) for cpu in usable[1:threads])


_OF_THREADS = "NUM_THREADS"
"""In the name of a key that counts threads, such as OpenVINO's COMPILATION_NUM_THREADS."""


def check_minimum(least: int, **fields: int) -> None:
    """Refuse values below a limit. Raises BadSettings: one is below it."""
    for name, value in fields.items():
        if value < least:
            raise BadSettings(f"{name}={value} is not allowed", fix=f"give {least} or more")


def check_choices(allowed: Sequence[int], **fields: int) -> None:
    """Refuse values that are not in a list. Raises BadSettings: one is not in it."""
    for name, value in fields.items():
        if value not in allowed:
            choices = ", ".join(map(str, allowed))
            raise BadSettings(f"{name}={value} is not allowed", fix=f"give one of {choices}")


def check_dependencies(*rules: tuple[bool, str, str]) -> None:
    """Refuse a field that says nothing without another one: (holds, field, what it needs).

    Raises:
        BadSettings: A rule does not hold.
    """
    for holds, name, needed in rules:
        if not holds:
            raise BadSettings(f"{name} has no effect", fix=f"set {needed}, or leave {name} out")


def parse_config(config: Sequence[str], fields: Mapping[str, str]) -> dict[str, str]:
    """Read ``key=value`` texts.

    Raises:
        BadSettings: One is not of that form, is given twice, has a field of its own, or asks for
            more threads than twice the CPUs.
    """
    entries: dict[str, str] = {}
    for text in config:
        key, sign, value = (part.strip() for part in text.partition("="))
        if not key or not sign or not value:
            raise BadSettings(f"cannot read the setting '{text}'", fix="write key=value")
        if key in fields:
            raise BadSettings(f"'{key}' has a field of its own", fix=f"set {fields[key]}")
        if key in entries:
            raise BadSettings(f"'{key}' is given twice", fix="keep one")
        if _OF_THREADS in key.upper() and value.lstrip("+-").isdecimal():
            THREADS.check(int(value[:12]), here=True)
        entries[key] = value
    return entries


def thread_counts(cpus: int, present: int) -> list[int]:
    """Return the thread counts to try beside the present one: 1, powers of two, 0 for all CPUs."""
    counts = [2**k for k in range(cpus.bit_length()) if 2**k < cpus]
    return [n for n in (*counts, 0) if (n or cpus) != (present or cpus)]


def demand_flushed() -> None:
    """Refuse a process in which this thread still computes with denormals.

    onnxruntime switches the calling thread's mode once in the life of a process, at its first
    session, whatever that one asked for.

    Raises:
        BadSettings: An earlier session has fixed the mode.
    """
    if float(np.float32(1e-40) * np.float32(1)) != 0:
        raise BadSettings(
            "flush_denormals=true has no effect: an earlier session of this process has fixed it",
            fix="open this model first, or in a process of its own",
        )


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


_MACHINES = {3: "x86", 40: "arm", 62: "x86_64", 183: "aarch64", 243: "riscv64"}
"""ELF's ``e_machine``."""


def find_library(text: str) -> Path:
    """Return the shared library; a Python file or module is run and asked for it.

    Raises BadSettings: it is not there, gives no library, or was built for another machine.
    """
    path = Path(text)
    if not user_function.is_path(text) or text.endswith(".py"):
        module: Any
        if text.endswith(".py"):
            module = user_file.run_file(Path(text))
        else:
            try:
                module = user_function.import_local(text.replace("-", "_"))
            except Exception as error:
                raise BadSettings(
                    f"no library of custom operators '{text}': "
                    f"{user_function.describe_error(error)}",
                    fix=f"pip install {text}, or give the path of a library",
                ) from error
        try:
            path = Path(module.get_library_path())
        except OrtuneError:
            raise
        except Exception as error:
            raise BadSettings(
                f"'{text}' gives no library of custom operators: "
                f"{user_function.describe_error(error)}",
                fix="define get_library_path() in it, as onnxruntime_extensions does",
            ) from error
    if not path.is_file():
        raise BadSettings(
            f"no library of custom operators '{path}'", fix="build it first, or correct the path"
        )
    if other := find_foreign_platform(path):
        here = f"{platform.machine()} {platform.system()}"
        raise BadSettings(
            f"'{path}' was built for {other}, and this is {here}", fix="build it on this machine"
        )
    return path


def register(options: Any, libraries: Sequence[str]) -> None:
    """Add libraries to a session's options, each once, whoever names it.

    Raises BadSettings: one does not load, or holds no custom operators.
    """
    spellings: dict[Path, str] = {}
    for text in libraries:
        spellings.setdefault(find_library(text).resolve(), text)
    for path, text in spellings.items():
        try:
            options.register_custom_ops_library(str(path))
        except Exception as error:
            reason = summarize_error(str(error).rpartition("failed:")[2].strip() or error)
            raise BadSettings(
                f"'{text}' does not load as a library of custom operators: {reason}",
                fix="check that it exports RegisterCustomOps, and that the libraries it links to "
                "are installed",
            ) from error


@cache
def demand_loadable(libraries: tuple[str, ...]) -> None:
    """Load libraries in a process of its own: a broken one could end this one.

    Raises BadSettings: one cannot be used.
    """
    code = (
        "import sys, onnxruntime\n"
        "from ortune.backends.runtimes.onnxruntime import checks\n"
        "from ortune.core.errors import OrtuneError\n"
        "try:\n    checks.register(onnxruntime.SessionOptions(), sys.argv[1:])\n"
        "except OrtuneError as error:\n    print(f'{error.what}\\n{error.fix}')"
    )
    done, names = own_process.run_code(code, *libraries), ", ".join(libraries)
    if done is None:
        problem = f"{names}: loading takes more than {own_process.LIMIT_S} s"
        raise BadSettings(problem, fix="repair the library")
    if done.returncode:
        how = f"ends with exit code {done.returncode}"
        if done.returncode < 0:
            how = f"is killed by {signal.Signals(-done.returncode).name}"
        raise BadSettings(
            f"{names}: a process that loads this {how}",
            fix="rebuild the library for an API version that this onnxruntime has",
        )
    if lines := done.stdout.strip().splitlines()[-2:]:
        raise BadSettings(lines[0], fix=lines[-1])


def find_foreign_platform(path: Path) -> str:
    """Return the machine or system of a library that is of another one than this; else empty."""
    with regular_file.open_regular(path) as file:
        head = file.read(20)
    if head[:4] == b"\x7fELF":
        order = "little" if head[5] == 1 else "big"
        machine = int.from_bytes(head[18:20], order)  # type: ignore[arg-type]
        name = _MACHINES.get(machine, f"machine {machine}")
        host_machine = platform.machine().lower().replace("amd64", "x86_64")
        if sys.platform != "linux":
            return f"{name} Linux"
        return name if name != host_machine and host_machine in _MACHINES.values() else ""
    if head[:2] == b"MZ":
        return "" if sys.platform == "win32" else "Windows"
    if head[:4] in (b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe"):
        return "" if sys.platform == "darwin" else "macOS"
    return ""
