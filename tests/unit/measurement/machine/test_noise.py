"""The noise record: counters of fake and real kernels, their difference, and what it means."""

import math
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
from ortune.measurement.machine.counters import Roots, Snapshot, Throttle

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
        assert counters.take_snapshot(roots).own_s == pytest.approx(192 / ticks)

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
        assert counters.take_snapshot(roots).mhz == (2596.1, 1200.0)
        lay(tmp_path, {"sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq": "3100000\n"})
        assert counters.take_snapshot(roots).mhz == (3100.0,)

    def test_the_hottest_sensor_counts(self, tmp_path: Path) -> None:
        roots = lay(tmp_path, {"sys/class/thermal/thermal_zone0/temp": "41000\n"})
        lay(tmp_path, {"sys/class/hwmon/hwmon1/temp2_input": "93500\n"})
        assert counters.take_snapshot(roots).celsius == 93.5
        assert counters.take_snapshot(Roots(tmp_path, tmp_path / "none")).celsius is None

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


# From which reading on a machine gets advice, and from which it is too noisy.


QUIET_JUDGE = noise.Record(
    10, 4, 1.0, 0.0, 0.0, 0.0, 0, 0.0, 0.0, 100, (2600, 2600), 50, (1.0,), {}
)
EQUAL = Interval(1.0, 0.98, 1.02)
BLIND = replace(QUIET_JUDGE, other_cpus=None, stolen=None, throttled=None, celsius=None, mhz=())


def words(record: noise.Record = QUIET_JUDGE, *more: object, **named: object) -> list[str]:
    """Return for each advice whether it alone prevents a verdict, and how it begins."""
    found = noise.judge_noise(record, *more, **named)  # type: ignore[arg-type]
    assert found.too_noisy is any(one.severe for one in found.advice)
    return [f"{'severe' if one.severe else 'word'}: {one.what}" for one in found.advice]


def test_a_quiet_machine_and_one_that_shows_nothing_get_none() -> None:
    assert words(QUIET_JUDGE, 0.05, EQUAL, reach=0.05) == []
    assert words(BLIND, math.nan, None) == []


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"throttled": 0.01}, ""),
        ({"throttled": 0.011}, "word: the CPU quota ran out in 1.1 %"),
        ({"throttled": 0.1}, "word: the CPU quota ran out in 10 %"),
        ({"throttled": 0.11}, "severe: the CPU quota ran out in 11 %"),
        ({"stolen": 0.01}, ""),
        ({"stolen": 0.011}, "word: the hypervisor gave 1.1 %"),
        ({"stolen": 0.05}, "word: the hypervisor gave 5.0 %"),
        ({"stolen": 0.051}, "severe: the hypervisor gave 5.1 %"),
        ({"other_cpus": 0.4}, ""),
        ({"other_cpus": 0.41}, "word: other processes used 0.4 of 4 CPUs"),
        ({"mhz": (2000, 2200)}, ""),
        ({"mhz": (2000, 2201)}, "word: the CPU's clock moved between 2000 and 2201"),
        ({"celsius": 89.9}, ""),
        ({"celsius": 90.0}, "word: the hottest sensor shows 90"),
        ({"settings": {"frequency governor": "performance"}}, ""),
        *(
            ({"settings": {"frequency governor": name}}, f"word: the frequency governor is {name}")
            for name in ("powersave", "conservative", "ondemand")
        ),
    ],
)
def test_from_where_on_a_cause_is_worth_a_word(fields: dict[str, object], said: str) -> None:
    found = words(replace(QUIET_JUDGE, **fields))  # type: ignore[arg-type]
    assert len(found) == bool(said)
    assert not said or found[0].startswith(said)


@pytest.mark.parametrize(
    ("disturbed", "others", "said"),
    [
        (0.1, None, ""),
        (0.11, None, "word: CPU was busy: 11 %"),
        (0.5, 2.0, "word: CPU was busy: 50 %"),
        (0.51, 2.0, "severe: CPU was busy: 51 %"),
        (0.51, None, "severe: CPU was busy: 51 %"),
        (0.51, 0.41, "severe: CPU was busy: 51 %"),
        (0.51, 0.4, "word: CPU was busy: 51 %"),
        (math.nan, 2.0, ""),
    ],
)
def test_runs_that_waited_for_others_and_not_only_for_each_other(
    disturbed: float, others: float | None, said: str
) -> None:
    found = words(replace(QUIET_JUDGE, other_cpus=others), disturbed)
    waited = [one for one in found if "had to wait" in one]
    assert len(waited) == bool(said) and all(one.startswith(said) for one in waited)


@pytest.mark.parametrize(
    ("equal", "noisy"),
    [
        (Interval(1.02, 1.0, 1.04), False),
        (Interval(1.02, 1.001, 1.04), True),
        (Interval(0.98, 0.96, 1.0), False),
        (Interval(0.98, 0.96, 0.999), True),
        (Interval(1.0, 0.5, 2.0), False),
        (Interval(math.nan, math.nan, math.nan), False),
    ],
)
def test_an_original_that_differs_from_itself(equal: Interval, noisy: bool) -> None:
    found = words(QUIET_JUDGE, 0.0, equal)
    assert len(found) == noisy and all(one.startswith("severe: the original") for one in found)


@pytest.mark.parametrize(("reach", "noisy"), [(0.1, False), (0.101, True), (math.nan, False)])
def test_an_interval_that_would_hide_a_gain_worth_having(reach: float, noisy: bool) -> None:
    found = words(QUIET_JUDGE, 0.0, EQUAL, reach=reach)
    assert len(found) == noisy and all(
        one.startswith("severe: differences below") for one in found
    )


def test_beside_a_claim_nothing_is_too_noisy_and_all_is_said() -> None:
    loud = replace(QUIET_JUDGE, stolen=0.2, throttled=0.3, other_cpus=3.0)
    found = words(loud, 0.9, Interval(1.1, 1.05, 1.15), reach=0.3)
    claimed = words(loud, 0.9, Interval(1.1, 1.05, 1.15), reach=0.3, claimed=True)
    assert [one.startswith("severe") for one in found] == [True] * 5 + [False]
    assert sorted(one.partition(": ")[2] for one in found) == sorted(
        one.partition(": ")[2] for one in claimed
    )
    assert not any(one.startswith("severe") for one in claimed)


@pytest.mark.parametrize(
    ("cpus", "others", "one_thread"),
    [(4, 3.4, True), (4, 3.5, False), (2, 1.4, True), (1, 0.4, False)],
)
def test_one_thread_is_advised_where_a_cpu_is_left_for_it(
    cpus: int, others: float, one_thread: bool
) -> None:
    (advice,) = noise.judge_noise(replace(QUIET_JUDGE, cpus=cpus, other_cpus=others)).advice
    assert ("threads=1" in advice.change) is one_thread
    (waited,) = (
        one
        for one in noise.judge_noise(
            replace(QUIET_JUDGE, cpus=cpus, other_cpus=others), 0.2
        ).advice
        if "had to wait" in one.what
    )
    assert ("threads=1" in waited.change) is (cpus > 1)


def test_what_prevents_a_verdict_is_said_first() -> None:
    found = words(replace(QUIET_JUDGE, throttled=0.05, stolen=0.2))
    assert [one.partition(":")[0] for one in found] == ["severe", "word"]


def test_advice_is_a_cause_and_a_change() -> None:
    assert str(noise.Advice("it is hot", "let it cool down")) == "it is hot: let it cool down"


def test_runs_that_waited_for_each_other_say_that_others_were_few() -> None:
    (advice,) = noise.judge_noise(replace(QUIET_JUDGE, other_cpus=0.25), 0.2).advice
    assert advice.what.endswith("though other processes used only 0.25 of 4 CPUs")


GROUPS = (Throttle("/a", 100, 10, 1.0), Throttle("/b", 50, 0, 0.0))
BEFORE = Snapshot(100.0, 4, 50.0, 1.0, 400.0, 10.0, 1000, 2.0, GROUPS, (2500.0,), 40.0, (1.0,))
AFTER = Snapshot(
    *(110.0, 4, 75.0, 3.0, 440.0, 20.0, 3000, 7.0),
    (Throttle("/a", 200, 15, 1.5), Throttle("/b", 60, 6, 0.2), Throttle("/c", 0, 0, 0.0)),
    *((2600.0, 2400.0), 45.0, (2.0,)),
)


def between(tmp_path: Path, before: Snapshot = BEFORE, after: Snapshot = AFTER) -> noise.Record:
    return noise.compare_snapshots(before, after, Roots(tmp_path, tmp_path))


def test_a_record_is_what_happened_between_two_snapshots(tmp_path: Path) -> None:
    assert replace(between(tmp_path), settings={}) == noise.Record(
        seconds=10.0,
        cpus=4,
        ortune_cpus=1.0,
        other_cpus=1.5,
        stolen=0.05,
        throttled=0.6,
        periods=10,
        stopped_s=pytest.approx(0.2),
        waits=0.5,
        switches=200.0,
        mhz=(2400.0, 2600.0),
        celsius=45.0,
        load=(2.0,),
    )


def test_a_group_that_is_new_counts_from_nothing(tmp_path: Path) -> None:
    found = between(tmp_path, replace(BEFORE, throttles=None))
    assert (found.throttled, found.periods, found.stopped_s) == (0.1, 60, 0.2)
    found = between(tmp_path, after=replace(AFTER, throttles=GROUPS))
    assert (found.throttled, found.periods, found.stopped_s) == (0.0, 0, 0.0)


def test_throttling_before_the_run_is_left_out(tmp_path: Path) -> None:
    found = between(tmp_path, after=replace(AFTER, throttles=(Throttle("/a", 200, 15, 1.5),)))
    assert (found.throttled, found.periods, found.stopped_s) == (0.05, 100, 0.5)
    found = between(tmp_path, after=replace(AFTER, throttles=(Throttle("/b", 51, 1, 0.1),)))
    assert (found.throttled, found.periods, found.stopped_s) == (1.0, 1, 0.1)


@pytest.mark.parametrize("name", ["busy_s", "stolen_s", "total_s", "waits_s", "switches"])
def test_what_is_hidden_at_either_end_is_unknown(tmp_path: Path, name: str) -> None:
    told = {"busy_s": "other_cpus", "stolen_s": "stolen", "total_s": "stolen", "waits_s": "waits"}
    whole = between(tmp_path)
    for before, after in (
        (replace(BEFORE, **{name: None}), AFTER),
        (BEFORE, replace(AFTER, **{name: None})),
    ):
        found = between(tmp_path, before, after)
        hidden = told.get(name, name)
        assert getattr(found, hidden) is None
        assert replace(found, **{hidden: getattr(whole, hidden)}) == whole


def test_hidden_throttling_and_clocks(tmp_path: Path) -> None:
    found = between(tmp_path, after=replace(AFTER, throttles=None))
    assert (found.throttled, found.periods, found.stopped_s) == (None, 0, 0.0)
    bare = between(tmp_path, replace(BEFORE, mhz=()), replace(AFTER, mhz=()))
    assert bare.mhz == ()


def test_readings_of_unlike_clocks_never_go_below_nothing(tmp_path: Path) -> None:
    found = between(tmp_path, after=replace(AFTER, busy_s=51.0, own_s=9.0, waits_s=60.0))
    assert (found.ortune_cpus, found.waits) == (0.0, 1.0)
    assert found.other_cpus == pytest.approx(0.1)
    assert between(tmp_path, after=replace(AFTER, busy_s=51.0)).other_cpus == 0.0
    assert between(tmp_path, after=replace(AFTER, total_s=400.0)).stolen is None
    assert between(tmp_path, AFTER, AFTER).ortune_cpus == 0.0


def test_an_emulated_cpu_gives_no_verdict_beside_a_claim_either() -> None:
    emulated = replace(QUIET, settings={"emulated by": "qemu-aarch64"})
    judged = noise.judge_noise(emulated, claimed=True)
    assert judged.too_noisy and "emulated by qemu-aarch64" in str(judged.advice[0])
    assert emulated.format_readings()["emulated by"] == "qemu-aarch64"
