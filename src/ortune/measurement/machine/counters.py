"""Counters of the kernel about this machine and this process at one moment.

Every reader takes the roots of /proc and /sys, and answers "unknown" (None, empty) for what is not
there: containers and virtual machines hide much of it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ortune.core.hardware.cpus import EMULATED, find_emulator, list_cgroups, usable_cpus

_BUSY = (0, 1, 2, 5, 6)
"""Fields of /proc/stat that count work: user, nice, system, irq, softirq (man 5 proc_stat)."""
_STEAL = 7
_ALL = 8


@dataclass(frozen=True)
class Roots:
    """Where the kernel's files are; tests lay out their own."""

    proc: Path = Path("/proc")
    sys: Path = Path("/sys")


LIVE = Roots()


@dataclass(frozen=True)
class Throttle:
    """CPU bandwidth control of one cgroup (Linux kernel, sched-bwc documentation).

    Attributes:
        periods: Enforcement intervals that have elapsed.
        throttled: Those in which the group ran out of its quota.
        stopped_s: Seconds its CPUs were held back, summed over CPUs.
    """

    group: str
    periods: int
    throttled: int
    stopped_s: float


@dataclass(frozen=True)
class Snapshot:
    """The counters at one moment.

    Attributes:
        wall_s: ``time.monotonic``.
        busy_s: CPU seconds that all processes together have spent on those CPUs, None if hidden.
        stolen_s: Seconds in which the hypervisor ran something else on them.
        total_s: Seconds of those CPUs, idle included.
        own_s: CPU seconds of this process and its children, dead ones included.
        waits_s: Seconds in which some task stood ready without a CPU (pressure stall information).
        throttles: The process's CPU cgroups that have a quota; None if none can be read.
    """

    wall_s: float
    cpus: int
    busy_s: float | None
    stolen_s: float | None
    total_s: float | None
    own_s: float
    switches: int | None
    waits_s: float | None
    throttles: tuple[Throttle, ...] | None
    mhz: tuple[float, ...]
    celsius: float | None
    load: tuple[float, ...]


def take_snapshot(roots: Roots = LIVE) -> Snapshot:
    """Read everything once; takes a few milliseconds."""
    mask = frozenset(usable_cpus())
    busy, stolen, total = read_cpu_seconds(roots, mask)
    waits: float | None = None  # pressure stall information, microseconds
    for line in _read_text(roots.proc / "pressure/cpu").splitlines():
        if line.startswith("some"):
            waits = int(line.rpartition("total=")[2]) / 1e6
    load: tuple[float, ...] = ()
    if hasattr(os, "getloadavg"):
        with suppress(OSError):
            load = tuple(round(x, 2) for x in os.getloadavg())
    return Snapshot(
        time.monotonic(),
        len(mask) or os.cpu_count() or 1,
        busy,
        stolen,
        total,
        process_seconds(roots.proc),
        _parse_counters(_read_text(roots.proc / "stat")).get("ctxt"),
        waits,
        read_throttles(roots),
        read_cpu_mhz(roots),
        read_celsius(roots.sys),
        load,
    )


def process_seconds(proc: Path) -> float:
    """Return CPU seconds of this process and all below it, ended ones included."""
    me, table = os.getpid(), dict(_list_processes(proc))
    if me not in table:
        used = os.times()
        return used.user + used.system + used.children_user + used.children_system
    below = {me}
    while more := {pid for pid, (parent, _) in table.items() if parent in below} - below:
        below |= more
    return sum(table[pid][1] for pid in below)


def read_throttles(roots: Roots) -> tuple[Throttle, ...] | None:
    """Return the counters of the process's CPU cgroup and its parents, where they have a quota."""
    base = roots.sys / "fs" / "cgroup"
    stats = {
        group: _parse_counters(_read_text(group / "cpu.stat"))
        for group in list_cgroups(base, roots.proc / "self")
    }
    if not any(stats.values()):
        return None
    return tuple(
        Throttle(
            f"/{folder.relative_to(base).as_posix()}".removesuffix("."),
            counts["nr_periods"],
            counts.get("nr_throttled", 0),
            counts.get("throttled_usec", 0) / 1e6 + counts.get("throttled_time", 0) / 1e9,
        )
        for folder, counts in stats.items()
        if counts.get("nr_periods")
    )


def read_cpu_mhz(roots: Roots) -> tuple[float, ...]:
    """Return the clock of every CPU, from cpufreq or else from /proc/cpuinfo; empty if hidden."""
    files = sorted((roots.sys / "devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_cur_freq"))
    clocks = [float(text) / 1000 for file in files if (text := _read_text(file).strip()).isdigit()]
    if not clocks:
        lines = _read_text(roots.proc / "cpuinfo").splitlines()
        clocks = [float(line.partition(":")[2]) for line in lines if line.startswith("cpu MHz")]
    return tuple(round(clock, 1) for clock in clocks)


def read_celsius(sys: Path) -> float | None:
    """Return the hottest sensor of thermal zones and hardware monitors."""
    files = [*(sys / "class/thermal").glob("thermal_zone*/temp")]
    files += (sys / "class/hwmon").glob("hwmon*/temp*_input")
    texts = (_read_text(file).strip() for file in files)
    temperatures = [int(text) / 1000 for text in texts if text.removeprefix("-").isdigit()]
    return max(temperatures, default=None)


def read_machine_settings(sys: Path = Path("/sys")) -> Mapping[str, str]:
    """Return governor, turbo, sibling threads and emulator: what stays while one measures."""
    cpu = sys / "devices/system/cpu"
    governors = {
        _read_text(file).strip() for file in cpu.glob("cpu[0-9]*/cpufreq/scaling_governor")
    }
    no_turbo, boost = _read_text(cpu / "intel_pstate/no_turbo"), _read_text(cpu / "cpufreq/boost")
    turbo = {"0": "on", "1": "off"}.get(no_turbo.strip()) or {"0": "off", "1": "on"}.get(
        boost.strip(), "not visible"
    )
    smt = {"0": "off", "1": "on"}.get(_read_text(cpu / "smt/active").strip(), "not visible")
    shown = " ".join(sorted(governors - {""}))
    return {
        "frequency governor": shown or "not visible",
        "turbo": turbo,
        "sibling threads": smt,
        **({EMULATED: emulator} if (emulator := find_emulator()) else {}),
    }


def _list_processes(proc: Path) -> Iterable[tuple[int, tuple[int, float]]]:
    """Yield pid, (parent, CPU seconds of its own and of its ended children)."""
    for folder in proc.glob("[0-9]*"):
        fields = _read_text(folder / "stat").rpartition(")")[2].split()
        if len(fields) > 14:
            yield (
                int(folder.name),
                (int(fields[1]), sum(map(int, fields[11:15])) / _ticks_per_second()),
            )


def read_cpu_seconds(
    roots: Roots, mask: frozenset[int]
) -> tuple[float | None, float | None, float | None]:
    """Return busy, stolen and all seconds of the CPUs in the mask (of all, if it is empty)."""
    busy = stolen = total = 0
    seen = False
    for line in _read_text(roots.proc / "stat").splitlines():
        name, *columns = line.split()
        if not name.startswith("cpu") or name == "cpu" or (mask and int(name[3:]) not in mask):
            continue
        counts = [*map(int, columns), *([0] * _ALL)][:_ALL]
        seen = True
        busy += sum(counts[i] for i in _BUSY)
        stolen += counts[_STEAL]
        total += sum(counts)
    if not seen:
        return None, None, None
    return busy / _ticks_per_second(), stolen / _ticks_per_second(), total / _ticks_per_second()


def _parse_counters(text: str) -> dict[str, int]:
    words = (line.split() for line in text.splitlines())
    return {w[0]: int(w[1]) for w in words if len(w) == 2 and w[1].isdigit()}


def _ticks_per_second() -> int:
    return int(os.sysconf("SC_CLK_TCK")) if hasattr(os, "sysconf") else 100


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
