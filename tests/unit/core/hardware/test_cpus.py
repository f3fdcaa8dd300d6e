"""The effective CPU count follows affinity and cgroup quotas; flags say what is native."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from ortune.core.errors import BadSettings
from ortune.core.hardware import cpus
from ortune.core.hardware.cpus import (
    effective_cpus,
    find_emulator,
    list_native_units,
    native_types,
)
from ortune.core.hardware.instances import (
    InstanceGroup,
    count_instances,
    read_device,
    read_instances,
)
from ortune.measurement.arrivals import lanes as lane_threads


def fake(tmp_path: Path, files: dict[str, str], cgroup: str) -> tuple[Path, Path]:
    root, proc = tmp_path / "cgroup", tmp_path / "proc"
    proc.mkdir()
    (proc / "cgroup").write_text(cgroup)
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root, proc


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="Linux only")
class TestQuota:
    def test_without_limits_the_affinity_counts(self, tmp_path: Path) -> None:
        root, proc = fake(tmp_path, {"cpu.max": "max 100000\n"}, "0::/\n")
        assert effective_cpus(root, proc) == len(os.sched_getaffinity(0))

    def test_v2_quota_rounds_up(self, tmp_path: Path) -> None:
        root, proc = fake(tmp_path, {"a/b/cpu.max": "50000 100000\n"}, "0::/a/b\n")
        assert effective_cpus(root, proc) == 1

    def test_a_parent_group_limits_too(self, tmp_path: Path) -> None:
        root, proc = fake(
            tmp_path, {"a/cpu.max": "100000 100000", "a/b/cpu.max": "max 100000"}, "0::/a/b\n"
        )
        assert effective_cpus(root, proc) == 1

    def test_v1_quota(self, tmp_path: Path) -> None:
        files = {"cpu/x/cpu.cfs_quota_us": "100000", "cpu/x/cpu.cfs_period_us": "100000"}
        root, proc = fake(tmp_path, files, "3:cpu:/x\n")
        assert effective_cpus(root, proc) == 1

    def test_v1_without_quota(self, tmp_path: Path) -> None:
        files = {"cpu/x/cpu.cfs_quota_us": "-1", "cpu/x/cpu.cfs_period_us": "100000"}
        root, proc = fake(tmp_path, files, "3:cpu:/x\n")
        assert effective_cpus(root, proc) == len(os.sched_getaffinity(0))

    def test_affinity_narrows(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0})
        root, proc = fake(tmp_path, {}, "")
        assert effective_cpus(root, proc) == 1


def test_other_systems_have_a_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert effective_cpus() >= 1


@pytest.mark.parametrize(
    ("flags", "found", "types"),
    [
        ("", set(), set()),
        ("avx2 avx512f", set(), set()),
        ("avx2 avx_vnni", {"int8-vnni"}, {"int8"}),
        ("avx512_vnni avx512_bf16", {"int8-vnni", "bf16-avx512"}, {"int8", "bf16"}),
        ("amx_int8 amx_bf16 avx512_fp16", {"int8-amx", "bf16-amx", "f16-avx512"}, None),
        ("amx_fp16", {"f16-amx"}, {"f16"}),
        ("asimddp i8mm bf16 asimdhp", {"int8-arm", "bf16-arm", "f16-arm"}, None),
    ],
)
def test_flags_say_what_is_native(flags: str, found: set[str], types: set[str] | None) -> None:
    assert list_native_units(flags.split()) == found
    assert native_types(flags.split()) == ({"int8", "bf16", "f16"} if types is None else types)


def test_numbers_and_groups() -> None:
    assert read_instances(3) == read_instances(" 3 ") == (InstanceGroup(3),)
    groups = read_instances("2@gpu0, 2@gpu1,1@cpu")
    assert groups == (InstanceGroup(2, "gpu"), InstanceGroup(2, "gpu", 1), InstanceGroup(1, "cpu"))
    assert count_instances(groups) == 5
    assert ",".join(map(str, groups)) == "2@gpu0,2@gpu1,1@cpu"
    assert read_instances("2,1@npu", "gpu7") == (InstanceGroup(2, "gpu", 7), read_device("npu0"))


@pytest.mark.parametrize(
    "given", [0, "0", "-1", "", "two", "1@", "1@GPU0", "2@gpu-0", "1@gpu1000"]
)
def test_what_cannot_be_read(given: int | str) -> None:
    with pytest.raises(BadSettings, match=r"instances=.* cannot be read") as no:
        read_instances(given)
    assert "2@gpu0,2@gpu1" in no.value.fix


@pytest.mark.parametrize("name", ["tpu", "cpu1", "cuda0"])
def test_a_device_of_no_known_kind(name: str) -> None:
    for read in (read_device, lambda text: read_instances(f"1@{text}")):
        with pytest.raises(BadSettings, match=f"no device is called '{name.rstrip('0')}"):
            read(name)


def task(root: Path, tid: int, waited: int | None) -> None:
    (root / str(tid)).mkdir()
    if waited is not None:
        (root / str(tid) / "schedstat").write_text(f"1000 {waited} 7\n")


def test_waits_of_all_threads_add_up(tmp_path: Path) -> None:
    task(tmp_path, 1, 30)
    task(tmp_path, 2, 12)
    assert cpus.read_queue_wait_ns(tmp_path) == 42


def test_a_kernel_without_statistics_is_unknown_and_not_calm(tmp_path: Path) -> None:
    task(tmp_path, 1, None)
    assert cpus.read_queue_wait_ns(tmp_path) == -1
    assert cpus.read_queue_wait_ns(tmp_path / "none") == -1


def test_a_thread_that_ends_while_it_is_listed_spoils_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task(tmp_path, 1, 30)
    listed = [tmp_path / "1", tmp_path / "2"]
    monkeypatch.setattr(Path, "iterdir", lambda self: iter(listed))
    assert cpus.read_queue_wait_ns(tmp_path) == 30


class Lane:
    """A lane whose process counts 10 ns of waiting for each of its living threads."""

    def __init__(self, idle: int) -> None:
        self._idle = idle
        self.now = 0

    def calls(self, position: int) -> list[Any]:
        return []

    def clock(self) -> int:
        return self.now

    def until(self, moment: int) -> None:
        self.now = moment

    def waited(self) -> int:
        return 10 * (threading.active_count() - self._idle)


def test_what_lanes_waited_is_read_while_their_threads_live() -> None:
    lanes = [Lane(threading.active_count()) for _ in range(3)]
    waiting = lane_threads.RunQueueMeter(lanes[0])
    lanes[0].now = 100
    lane_threads.run_lanes(lanes, lambda lane: None, waiting)
    assert waiting.share() == pytest.approx(20 / (100 * 3), abs=1e-4)


def test_an_error_on_a_lane_is_raised_and_no_thread_is_left() -> None:
    lanes = [Lane(0) for _ in range(3)]
    before = threading.active_count()

    def work(lane: Lane) -> None:
        if lane is lanes[2]:
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        lane_threads.run_lanes(lanes, work)
    assert threading.active_count() == before


def test_an_emulator_is_the_program_that_runs(tmp_path: Path) -> None:
    assert find_emulator(tmp_path / "none") == ""
    for name, target in (("self", "python3"), ("thread-self", "qemu-aarch64")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "exe").symlink_to(target)
    assert find_emulator(tmp_path) == "qemu-aarch64"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_this_process_is_not_emulated() -> None:
    assert find_emulator() == ""
