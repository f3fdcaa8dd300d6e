"""Counters of the kernel about this machine and this process at one moment.

Every reader takes the roots of /proc and /sys, and answers "unknown" (None, empty) for what is not
there: containers and virtual machines hide much of it.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

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
    clock_files = roots.sys.glob("devices/system/cpu/cpu[0-9]*/cpufreq/scaling_cur_freq")
    khz = (_read_text(file).strip() for file in sorted(clock_files))
    clocks = [float(text) / 1000 for text in khz if text.isdigit()]
    if not clocks:
        lines = _read_text(roots.proc / "cpuinfo").splitlines()
        clocks = [float(line.partition(":")[2]) for line in lines if line.startswith("cpu MHz")]
    sensors = [*roots.sys.glob("class/thermal/thermal_zone*/temp")]
    sensors += roots.sys.glob("class/hwmon/hwmon*/temp*_input")
    milli = (_read_text(file).strip() for file in sensors)
    celsius = [int(text) / 1000 for text in milli if text.removeprefix("-").isdigit()]
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
        _count_own_seconds(roots.proc),
        _parse_counters(_read_text(roots.proc / "stat")).get("ctxt"),
        waits,
        read_throttles(roots),
        tuple(round(clock, 1) for clock in clocks),
        max(celsius, default=None),
        load,
    )


def _count_own_seconds(proc: Path) -> float:
    """Return CPU seconds of this process and all below it, ended ones included."""
    me, table = os.getpid(), {}
    for folder in proc.glob("[0-9]*"):  # parent, and seconds of its own and of its ended children
        fields = _read_text(folder / "stat").rpartition(")")[2].split()
        if len(fields) > 14:
            seconds = sum(map(int, fields[11:15])) / _ticks_per_second()
            table[int(folder.name)] = int(fields[1]), seconds
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


_POWERCAP = Path("/sys/class/powercap")
_NVML = ("libnvidia-ml.so.1", "nvml.dll")


@dataclass(frozen=True)
class Energy:
    """The energy counters that can be read here: RAPL for CPU packages, NVML for GPUs.

    They count for the whole package or board, neighbours included: read them around runs of an
    otherwise idle machine.

    Attributes:
        why: Why there is none of a kind; one text for each kind that is missing.
    """

    counters: tuple[Counter, ...]
    why: tuple[str, ...]

    def read(self) -> dict[str, int]:
        """Return microjoules of every counter."""
        return {counter.name: counter.read() for counter in self.counters}

    def compute_joules(
        self, before: Mapping[str, int], after: Mapping[str, int]
    ) -> dict[str, float]:
        """Return joules of every counter between two readings, less than one wrap apart."""
        used = {counter: after[counter.name] - before[counter.name] for counter in self.counters}
        return {
            counter.name: (n + counter.wraps if n < 0 else n) / 1e6 for counter, n in used.items()
        }


@dataclass(frozen=True)
class _Zone:
    """A powercap zone: ``energy_uj`` and ``max_energy_range_uj`` (Linux power capping docs)."""

    name: str
    path: Path
    wraps: int

    def read(self) -> int:
        return int((self.path / "energy_uj").read_text())


def find_energy_counters(root: Path = _POWERCAP, libraries: Sequence[str] = _NVML) -> Energy:
    """Find what can be read on this machine."""
    zones, no_zone = _find_zones(root)
    boards, no_board = _find_boards(libraries)
    return Energy((*zones, *boards), tuple(why for why in (no_zone, no_board) if why))


def _find_zones(root: Path) -> tuple[list[Counter], str]:
    """Packages and their memory; the parts of a package are in its own count already."""
    readable: list[Counter] = []
    denied = False
    for folder in sorted(root.glob("intel-rapl:*")):
        try:
            name = (folder / "name").read_text().strip()
            if not name.startswith("package") and name != "dram":
                continue
            wraps = int((folder / "max_energy_range_uj").read_text())
            owner = ""
            if name == "dram":  # its zone lies in its package's: intel-rapl:0:1 in intel-rapl:0
                package = folder.parent / folder.name.rpartition(":")[0] / "name"
                owner = f"{package.read_text().strip()}-" if package.exists() else ""
            zone = _Zone(f"{owner}{name}", folder, wraps)
            zone.read()
        except PermissionError:
            denied = True
            continue
        except (OSError, ValueError):
            continue
        readable.append(zone)
    if readable:
        return readable, ""
    if denied:
        return [], "RAPL: energy_uj may be read by root alone"
    return [], "RAPL: no CPU package shows a counter here (virtual machines seldom do)"


class _Board:
    """A GPU's counter in millijoules (nvmlDeviceGetTotalEnergyConsumption, Volta and later)."""

    wraps = 0

    def __init__(self, library: Any, index: int) -> None:
        self.name = f"gpu-{index}"
        self._library = library
        self._handle = ctypes.c_void_p()
        _check_status(library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(self._handle)))
        self.read()

    def read(self) -> int:
        millijoules = ctypes.c_ulonglong()
        _check_status(
            self._library.nvmlDeviceGetTotalEnergyConsumption(
                self._handle, ctypes.byref(millijoules)
            )
        )
        return millijoules.value * 1000


Counter: TypeAlias = _Zone | _Board
"""Has a name and reads microjoules since some start; starts anew after ``wraps``, 0: never."""


def _find_boards(libraries: Sequence[str]) -> tuple[list[Counter], str]:
    for name in libraries:
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        try:
            _check_status(library.nvmlInit_v2())
            count = ctypes.c_uint()
            _check_status(library.nvmlDeviceGetCount_v2(ctypes.byref(count)))
            return [_Board(library, index) for index in range(count.value)], ""
        except (OSError, AttributeError) as error:
            return [], f"NVML: {error}"
    return [], "NVML: no NVIDIA driver"


def _check_status(code: int) -> None:
    if code:
        raise OSError(f"the driver answers with error {code}")
