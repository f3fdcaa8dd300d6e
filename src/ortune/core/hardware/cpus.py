"""The CPUs: how many this process may really use, and what arithmetic they have."""

import math
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

_FLAGS: Mapping[str, tuple[str, ...]] = {
    "int8-vnni": ("avx512_vnni", "avx_vnni"),
    "int8-amx": ("amx_int8",),
    "int8-arm": ("asimddp", "i8mm"),
    "bf16-avx512": ("avx512_bf16",),
    "bf16-amx": ("amx_bf16",),
    "bf16-arm": ("bf16",),
    "f16-avx512": ("avx512_fp16",),
    "f16-amx": ("amx_fp16",),
    "f16-arm": ("asimdhp",),
}
"""Type and unit -> the CPU's flags, of which one is enough."""
_TASKS = Path("/proc/self/task")
EMULATED = "emulated by"
"""What a machine's description calls the emulator of its CPU; a real CPU has none."""


def effective_cpus(root: Path = Path("/sys/fs/cgroup"), proc: Path = Path("/proc/self")) -> int:
    """Return the CPUs that threads should be sized by, at least 1.

    The smallest of the affinity mask (which a cpuset narrows) and the cgroup quota rounded up,
    over the process's own cgroup and its parents (v2 ``cpu.max``, v1 ``cpu.cfs_quota_us``).
    Elsewhere than on Linux: the CPU count.
    """
    cpus = len(usable_cpus())
    if not cpus:
        return os.cpu_count() or 1
    quotas = (_read_quota(folder) for folder in list_cgroups(root, proc))
    return max(1, min([cpus, *(math.ceil(quota) for quota in quotas if quota is not None)]))


def usable_cpus() -> tuple[int, ...]:
    """Return the CPUs that this process may run on, counted from 0; empty where unknown."""
    return tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else ()


def set_usable_cpus(cpus: Collection[int]) -> None:
    """Keep the calling thread, and those that it starts, on these CPUs.

    The thread stays as it was where one was taken from the process, or the system cannot do it.
    """
    if hasattr(os, "sched_setaffinity"):
        with suppress(OSError):
            os.sched_setaffinity(0, cpus)


def divide_cpus(cpus: Sequence[int], parts: int) -> list[Sequence[int]]:
    """Divide CPUs into sets that share none; nothing is divided where they are not known."""
    size = len(cpus)
    return [cpus[place * size // parts : (place + 1) * size // parts] for place in range(parts)]


@cache
def instruction_sets() -> frozenset[str]:
    """Return the CPU's flags in Linux' spelling, such as ``avx512_vnni``; empty where unknown."""
    return frozenset(_read_cpuinfo("flags", "Features").split())


@cache
def cpu_model() -> str:
    """Return the CPU's model name, or an empty text where it cannot be read."""
    return _read_cpuinfo("model name")


@cache
def find_emulator(proc: Path = Path("/proc")) -> str:
    """Return what emulates the CPU for this process, such as ``qemu-aarch64``; else empty.

    A user-mode emulator answers for ``uname``, ``/proc/cpuinfo`` and ``/proc/self``, but not for
    ``/proc/thread-self``: there it is itself the program that runs.
    """
    try:
        program = (proc / "thread-self/exe").readlink()
        return "" if program == (proc / "self/exe").readlink() else program.name
    except OSError:
        return ""


CPUINFO = Path("/proc/cpuinfo")
"""Where Linux tells what the CPU is."""


def _read_cpuinfo(*keys: str) -> str:
    try:
        lines = CPUINFO.read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    pairs = (line.partition(":") for line in lines)
    return next((value.strip() for key, _, value in pairs if key.strip() in keys), "")


def list_cgroups(
    root: Path = Path("/sys/fs/cgroup"), proc: Path = Path("/proc/self")
) -> list[Path]:
    """Return the folders of the process's own CPU cgroup and its parents, v1 and v2."""
    try:
        lines = (proc / "cgroup").read_text().splitlines()
    except OSError:
        lines = []
    folders = [root, root / "cpu"]
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "cpu", "cpu,cpuacct", "cpuacct,cpu"):
            continue
        top = root / controllers if controllers else root
        here = top / path.lstrip("/")
        folders += [here, *(p for p in here.parents if p.is_relative_to(top))]
    return list(dict.fromkeys(folders))


def _read_quota(folder: Path) -> float | None:
    try:
        quota, period = (folder / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota = (folder / "cpu.cfs_quota_us").read_text().strip()
            period = (folder / "cpu.cfs_period_us").read_text().strip()
        except OSError:
            return None
    if quota == "max" or int(quota) <= 0:
        return None
    return int(quota) / int(period)


def list_native_units(flags: Iterable[str]) -> frozenset[str]:
    """Return type and unit of what is computed natively, such as ``int8-vnni`` or ``bf16-amx``.

    Args:
        flags: The CPU's, in Linux' spelling; of none nothing is known.
    """
    available = frozenset(flags)
    return frozenset(
        name for name, alternatives in _FLAGS.items() if available.intersection(alternatives)
    )


def native_types(flags: Iterable[str]) -> frozenset[str]:
    """Return the types alone: of ``int8``, ``bf16`` and ``f16`` those with a unit of their own."""
    return frozenset(name.partition("-")[0] for name in list_native_units(flags))


def read_queue_wait_ns(tasks: Path = _TASKS) -> int:
    """Return nanoseconds all living threads have spent in the run queue, -1 where unreadable.

    Second field of ``/proc/<pid>/task/<tid>/schedstat`` (Linux kernel, sched-stats documentation).
    A thread that ends takes its share along: between two readings whose difference is to count,
    let threads live. Of several threads the waits add up, so that a share of wall time may pass 1.
    """
    return read_scheduled_ns(tasks)[1]


def read_scheduled_ns(tasks: Path = _TASKS) -> tuple[int, int]:
    """Return nanoseconds that all living threads ran and that they spent in the run queue.

    As of `read_queue_wait_ns`; (-1, -1) where unreadable.
    """
    ran = waited = 0
    try:
        for task in tasks.iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):  # ended since it was listed
                times = _read_task_times(task)
                ran, waited = ran + times[0], waited + times[1]
    except (OSError, IndexError, ValueError):
        return -1, -1
    return ran, waited


def _read_task_times(task: Path) -> tuple[int, int]:
    try:
        ran, waited = (task / "schedstat").read_text().split()[:2]
    except FileNotFoundError:
        if task.exists():  # a kernel without scheduler statistics
            raise PermissionError(f"{task} has no schedstat") from None
        raise
    return int(ran), int(waited)
