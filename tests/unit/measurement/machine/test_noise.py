"""The noise record: counters of fake and real kernels, their difference, and what it means."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from ortune.core.trial import Interval
from ortune.measurement.machine import counters, noise
from ortune.measurement.machine.counters import Roots

QUIET = noise.Record(10, 2, 1.0, 0.0, 0.0, 0.0, 0, 0.0, 0.0, 100, (2600, 2600), 50, (1.0,), {})
linux = pytest.mark.skipif(not Path("/proc/stat").is_file(), reason="needs Linux' /proc")


def lay(root: Path, files: dict[str, str]) -> Roots:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Roots(root / "proc", root / "sys")


def cpu(name: str, user: int, idle: int, steal: int = 0) -> str:
    return f"{name} {user} 0 0 {idle} 0 0 0 {steal} 0 0\n"


def process(pid: int, parent: int, own: int, dead: int = 0) -> dict[str, str]:
    """utime is the 14th field of stat, cutime the 16th; a name may hold blanks and brackets."""
    rest = f"S {parent} " + "0 " * 9 + f"{own} 0 {dead} 0 " + "0 " * 10
    return {f"proc/{pid}/stat": f"{pid} (a) b) {rest}\n"}


@linux
class TestSnapshot:
    def test_only_cpus_of_the_mask_count(self, tmp_path: Path, monkeypatch) -> None:
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {1})
        stat = cpu("cpu", 900, 900) + cpu("cpu0", 700, 100) + cpu("cpu1", 200, 700, 100)
        roots = lay(tmp_path, {"proc/stat": stat + "ctxt 77\n"})
        seen = counters.take_snapshot(roots)
        ticks = os.sysconf("SC_CLK_TCK")
        assert (seen.cpus, seen.switches) == (1, 77)
        assert seen.busy_s == pytest.approx(200 / ticks)
        assert seen.stolen_s == pytest.approx(100 / ticks)
        assert seen.total_s == pytest.approx(1000 / ticks)

    def test_own_time_holds_living_and_dead_children(self, tmp_path: Path) -> None:
        me = os.getpid()
        tree = process(me, 1, 100, 30) | process(me + 1, me, 50, 5) | process(me + 2, me + 1, 7)
        roots = lay(tmp_path, tree | process(1, 0, 9000))
        ticks = os.sysconf("SC_CLK_TCK")
        assert counters.process_seconds(roots.proc) == pytest.approx(192 / ticks)

    def test_v2_throttling_of_a_parent_group(self, tmp_path: Path) -> None:
        files = {
            "proc/self/cgroup": "0::/a/b\n",
            "sys/fs/cgroup/a/cpu.stat": "nr_periods 50\nnr_throttled 20\nthrottled_usec 3000000\n",
            "sys/fs/cgroup/a/b/cpu.stat": "usage_usec 5\nnr_periods 0\nnr_throttled 0\n",
        }
        found = counters.read_throttles(lay(tmp_path, files))
        assert found == (counters.Throttle("/a", 50, 20, 3.0),)

    def test_v1_throttling_counts_nanoseconds(self, tmp_path: Path) -> None:
        stat = "nr_periods 10\nnr_throttled 4\nthrottled_time 2500000000\n"
        files = {"proc/self/cgroup": "3:cpu,cpuacct:/x\n"}
        files["sys/fs/cgroup/cpu,cpuacct/x/cpu.stat"] = stat
        found = counters.read_throttles(lay(tmp_path, files))
        assert found == (counters.Throttle("/cpu,cpuacct/x", 10, 4, 2.5),)

    def test_no_quota_is_not_the_same_as_not_visible(self, tmp_path: Path) -> None:
        assert counters.read_throttles(Roots(tmp_path / "proc", tmp_path / "sys")) is None
        stat = "nr_periods 0\nnr_throttled 0\n"
        roots = lay(tmp_path, {"sys/fs/cgroup/cpu.stat": stat})
        assert counters.read_throttles(roots) == ()

    def test_clocks_come_from_cpufreq_and_else_from_cpuinfo(self, tmp_path: Path) -> None:
        roots = lay(tmp_path, {"proc/cpuinfo": "cpu MHz\t\t: 2596.136\ncpu MHz : 1200.0\n"})
        assert counters.read_cpu_mhz(roots) == (2596.1, 1200.0)
        lay(tmp_path, {"sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq": "3100000\n"})
        assert counters.read_cpu_mhz(roots) == (3100.0,)

    def test_the_hottest_sensor_counts(self, tmp_path: Path) -> None:
        roots = lay(tmp_path, {"sys/class/thermal/thermal_zone0/temp": "41000\n"})
        lay(tmp_path, {"sys/class/hwmon/hwmon1/temp2_input": "93500\n"})
        assert counters.read_celsius(roots.sys) == 93.5
        assert counters.read_celsius(tmp_path / "none") is None

    def test_governor_turbo_and_siblings(self, tmp_path: Path) -> None:
        home = "sys/devices/system/cpu"
        files = {f"{home}/cpu{i}/cpufreq/scaling_governor": "powersave\n" for i in range(2)}
        files |= {f"{home}/intel_pstate/no_turbo": "1\n", f"{home}/smt/active": "1\n"}
        found = counters.read_machine_settings(lay(tmp_path, files).sys)
        assert dict(found) == {
            "frequency governor": "powersave",
            "turbo": "off",
            "sibling threads": "on",
        }

    def test_nothing_readable_is_unknown_everywhere(self, tmp_path: Path) -> None:
        roots = Roots(tmp_path / "proc", tmp_path / "sys")
        record = noise.compare_snapshots(
            counters.take_snapshot(roots), counters.take_snapshot(roots), roots
        )
        hidden = (
            record.other_cpus,
            record.stolen,
            record.throttled,
            record.waits,
            record.switches,
        )
        assert hidden == (None,) * 5
        assert record.format_readings()["stolen CPU time"] == "not visible"
        assert noise.judge_noise(record) == noise.Judgement(False, ())


@linux
def test_a_record_is_the_difference_over_the_run(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    group, ticks = {"proc/self/cgroup": "0::/\n"}, os.sysconf("SC_CLK_TCK")

    def at(seconds: int, throttled: int, mhz: int) -> counters.Snapshot:
        stat = cpu("cpu0", seconds * ticks, 0) + cpu("cpu1", seconds * ticks // 2, 0, seconds * 10)
        files = group | {"proc/stat": stat, "proc/cpuinfo": f"cpu MHz : {mhz}\n"}
        files |= process(os.getpid(), 1, seconds * ticks)
        files["sys/fs/cgroup/cpu.stat"] = f"nr_periods {seconds * 10}\nnr_throttled {throttled}\n"
        return replace(counters.take_snapshot(lay(tmp_path, files)), wall_s=float(seconds))

    record = noise.compare_snapshots(
        at(100, 7, 2600), at(110, 38, 3000), Roots(tmp_path, tmp_path)
    )
    assert record.ortune_cpus == pytest.approx(1.0)
    assert record.other_cpus == pytest.approx(0.5)
    assert record.stolen == pytest.approx(100 / (15 * ticks + 100))
    assert (record.throttled, record.periods) == (pytest.approx(0.31), 100)
    assert record.mhz == (2600, 3000)


class TestJudge:
    def test_a_quiet_machine_gets_no_advice(self) -> None:
        found = noise.judge_noise(QUIET, 0.01, Interval(1.0, 0.98, 1.02))
        assert found == noise.Judgement(False, ())

    @pytest.mark.parametrize(
        ("record", "said", "change"),
        [
            (replace(QUIET, other_cpus=0.9), "used 0.9 of 2 CPUs", "threads=1"),
            (replace(QUIET, other_cpus=1.9), "used 1.9 of 2 CPUs", "close them"),
            (replace(QUIET, throttled=0.05, periods=99), "5.0 % of its periods", "CPU limit"),
            (replace(QUIET, stolen=0.03), "3.0 % of the CPU time", "dedicated"),
            (
                replace(QUIET, settings={"frequency governor": "powersave"}),
                "powersave",
                "cpupower",
            ),
            (replace(QUIET, mhz=(2000, 3500)), "between 2000 and 3500 MHz", "turbo"),
            (replace(QUIET, celsius=96), "96 C", "cool"),
        ],
    )
    def test_causes_are_told_with_their_size_and_a_change(
        self, record: noise.Record, said: str, change: str
    ) -> None:
        found = noise.judge_noise(record)
        (advice,) = found.advice
        assert said in advice.what and change in advice.change
        assert not found.too_noisy

    def test_pinning_is_no_advice_when_no_cpu_is_free(self) -> None:
        (advice,) = noise.judge_noise(replace(QUIET, other_cpus=1.9)).advice
        assert "threads=1" not in advice.change

    @pytest.mark.parametrize(
        ("record", "disturbed", "equal", "reach"),
        [
            (replace(QUIET, other_cpus=0.9), 0.6, None, 0.02),
            (replace(QUIET, other_cpus=None), 0.6, None, 0.02),
            (QUIET, 0.0, Interval(1.02, 1.01, 1.03), 0.02),
            (QUIET, 0.0, Interval(0.97, 0.96, 0.98), 0.02),
            (QUIET, 0.0, None, 0.11),
            (replace(QUIET, throttled=0.31, periods=100), 0.0, None, 0.02),
            (replace(QUIET, stolen=0.2), 0.0, None, 0.02),
        ],
    )
    def test_too_noisy_only_where_nothing_is_claimed(
        self, record: noise.Record, disturbed: float, equal: Interval | None, reach: float
    ) -> None:
        found = noise.judge_noise(record, disturbed, equal, reach=reach)
        assert found.too_noisy and found.advice[0].severe
        claimed = noise.judge_noise(record, disturbed, equal, reach=reach, claimed=True)
        assert not claimed.too_noisy and not any(one.severe for one in claimed.advice)
        assert [str(one) for one in claimed.advice] == [str(one) for one in found.advice]

    def test_one_wide_pair_is_no_verdict_on_the_machine(self) -> None:
        assert not noise.judge_noise(QUIET, 0.0, Interval(1.0, 0.8, 1.25), reach=0.02).too_noisy

    def test_threads_that_wait_for_each_other_are_no_noise(self) -> None:
        """More threads than CPUs wait on a calm machine, too: that is what is measured."""
        found = noise.judge_noise(QUIET, 0.9)
        assert not found.too_noisy
        assert "though other processes used only 0.00 of 2" in found.advice[0].what
        assert "than there are CPUs" in found.advice[0].change

    def test_the_worst_comes_first(self) -> None:
        record = replace(QUIET, stolen=0.03, throttled=0.5, periods=9, other_cpus=0.9)
        assert [one.severe for one in noise.judge_noise(record).advice] == [True, False, False]

    def test_unknown_shares_say_nothing(self) -> None:
        assert noise.judge_noise(QUIET, float("nan"), Interval(*(float("nan"),) * 3)).advice == ()


@linux
def test_a_busy_child_is_ours() -> None:
    before = noise.take_snapshot()
    spin = [sys.executable, "-c", "import time\nt = time.process_time\nwhile t() < 0.5: pass"]
    subprocess.run(spin, check=True)
    record = noise.compare_snapshots(before, noise.take_snapshot())
    assert record.ortune_cpus * record.seconds > 0.4, "0.5 less what clock ticks hide"


GROUP = Path("/sys/fs/cgroup/cpu/ortune-test-noise")


@pytest.fixture
def quota() -> Iterator[Path]:
    """A cgroup v1 CPU group that gives a fifth of one CPU."""
    try:
        GROUP.mkdir()
        (GROUP / "cpu.cfs_period_us").write_text("20000")
        (GROUP / "cpu.cfs_quota_us").write_text("4000")
    except OSError as error:
        with suppress(OSError):
            GROUP.rmdir()
        pytest.skip(f"no cgroup v1 CPU group can be made here: {error}")
    yield GROUP
    until = time.monotonic() + 5
    while GROUP.is_dir() and time.monotonic() < until:
        with suppress(OSError):
            GROUP.rmdir()


THROTTLED = f"""
from pathlib import Path
import os, time
Path("{GROUP}/cgroup.procs").write_text(str(os.getpid()))
from ortune.measurement.machine import noise
before = noise.take_snapshot()
while time.process_time() < 0.6: pass
record = noise.compare_snapshots(before, noise.take_snapshot())
print(record.throttled, *noise.judge_noise(record).advice, sep="|")
"""


def test_a_throttled_process_is_told_so(quota: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", THROTTLED], capture_output=True, text=True, check=True
    )
    share, *advice = done.stdout.strip().split("|")
    assert float(share) > 0.5
    assert any("raise the CPU limit" in text for text in advice)
