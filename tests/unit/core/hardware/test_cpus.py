"""The effective CPU count follows affinity and cgroup quotas; flags say what is native."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ortune.core.hardware.cpus import effective_cpus, native, native_types


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
    assert native(flags.split()) == found
    assert native_types(flags.split()) == ({"int8", "bf16", "f16"} if types is None else types)
