"""Energy counters: a made-up powercap tree and a made-up driver."""

import ctypes
from pathlib import Path
from typing import Any

import pytest

from ortune.measurement.machine.counters import find_energy_counters


def zone(root: Path, folder: str, name: str, microjoules: int, wraps: int = 1000) -> Path:
    path = root / folder
    path.mkdir(parents=True)
    (path / "name").write_text(f"{name}\n")
    (path / "energy_uj").write_text(f"{microjoules}\n")
    (path / "max_energy_range_uj").write_text(f"{wraps}\n")
    return path


def test_packages_and_their_memory_are_read_and_parts_are_not_counted_twice(
    tmp_path: Path,
) -> None:
    zone(tmp_path, "intel-rapl:0", "package-0", 100)
    zone(tmp_path, "intel-rapl:0:0", "core", 60)
    zone(tmp_path, "intel-rapl:0:1", "dram", 7)
    zone(tmp_path, "intel-rapl:1", "package-1", 200)
    zone(tmp_path, "intel-rapl:2", "psys", 900)
    zone(tmp_path, "intel-rapl-mmio:0", "package-0", 100)
    found = find_energy_counters(tmp_path, libraries=())
    assert found.read() == {"package-0": 100, "package-0-dram": 7, "package-1": 200}


def test_a_counter_that_wrapped_still_gives_what_was_spent(tmp_path: Path) -> None:
    path = zone(tmp_path, "intel-rapl:0", "package-0", 999_000_000, wraps=1_000_000_000)
    found = find_energy_counters(tmp_path, libraries=())
    before = found.read()
    (path / "energy_uj").write_text("2000000\n")
    assert found.compute_joules(before, found.read()) == {"package-0": 3.0}


def test_what_cannot_be_read_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = find_energy_counters(tmp_path, libraries=("no-such-library.so",))
    assert found.counters == () and found.read() == {}
    assert len(found.why) == 2 and "RAPL" in found.why[0] and "NVML" in found.why[1]

    zone(tmp_path, "intel-rapl:0", "package-0", 5)
    read = Path.read_text

    def denied(path: Path, *args: Any) -> str:
        if path.name == "energy_uj":
            raise PermissionError
        return read(path, *args)

    monkeypatch.setattr(Path, "read_text", denied)
    assert "root" in find_energy_counters(tmp_path, libraries=()).why[0]


def test_a_broken_zone_is_left_out(tmp_path: Path) -> None:
    (zone(tmp_path, "intel-rapl:0", "package-0", 5) / "energy_uj").write_text("")
    zone(tmp_path, "intel-rapl:1", "package-1", 6)
    assert find_energy_counters(tmp_path, libraries=()).read() == {"package-1": 6}


class Driver:
    """Two boards that count millijoules; the calls that NVML documents."""

    def __init__(self, fails: int = 0) -> None:
        self.fails = fails
        self.spent = 40

    def nvmlInit_v2(self) -> int:  # noqa: N802
        return self.fails

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:  # noqa: N802
        count._obj.value = 2
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: int, handle: Any) -> int:  # noqa: N802
        handle._obj.value = index + 1
        return 0

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: Any, spent: Any) -> int:  # noqa: N802
        spent._obj.value = self.spent * handle.value
        return 0


def test_boards_are_read_through_the_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver()
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver)
    found = find_energy_counters(tmp_path, libraries=("driver",))
    before = found.read()
    assert before == {"gpu-0": 40_000, "gpu-1": 80_000}
    driver.spent = 1040
    assert found.compute_joules(before, found.read()) == {"gpu-0": 1.0, "gpu-1": 2.0}


def test_a_driver_that_refuses_is_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Driver(fails=9))
    found = find_energy_counters(tmp_path, libraries=("driver",))
    assert found.counters == () and "error 9" in found.why[1]
