"""Energy counters of the machine: RAPL for CPU packages, NVML for GPUs.

They count for the whole package or board, neighbours included: read them around runs of an
otherwise idle machine.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

_POWERCAP = Path("/sys/class/powercap")
_NVML = ("libnvidia-ml.so.1", "nvml.dll")


@dataclass(frozen=True)
class Energy:
    """The counters that can be read here.

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
