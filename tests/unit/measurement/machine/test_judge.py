"""From which reading on a machine gets advice, and from which it is too noisy."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from ortune.core.trial import Interval
from ortune.measurement.machine import noise
from ortune.measurement.machine.counters import Roots, Snapshot, Throttle

QUIET = noise.Record(10, 4, 1.0, 0.0, 0.0, 0.0, 0, 0.0, 0.0, 100, (2600, 2600), 50, (1.0,), {})
EQUAL = Interval(1.0, 0.98, 1.02)
BLIND = replace(QUIET, other_cpus=None, stolen=None, throttled=None, celsius=None, mhz=())


def words(record: noise.Record = QUIET, *more: object, **named: object) -> list[str]:
    """Return for each advice whether it alone prevents a verdict, and how it begins."""
    found = noise.judge_noise(record, *more, **named)  # type: ignore[arg-type]
    assert found.too_noisy is any(one.severe for one in found.advice)
    return [f"{'severe' if one.severe else 'word'}: {one.what}" for one in found.advice]


def test_a_quiet_machine_and_one_that_shows_nothing_get_none() -> None:
    assert words(QUIET, 0.05, EQUAL, reach=0.05) == []
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
    found = words(replace(QUIET, **fields))  # type: ignore[arg-type]
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
    found = words(replace(QUIET, other_cpus=others), disturbed)
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
    found = words(QUIET, 0.0, equal)
    assert len(found) == noisy and all(one.startswith("severe: the original") for one in found)


@pytest.mark.parametrize(("reach", "noisy"), [(0.1, False), (0.101, True), (math.nan, False)])
def test_an_interval_that_would_hide_a_gain_worth_having(reach: float, noisy: bool) -> None:
    found = words(QUIET, 0.0, EQUAL, reach=reach)
    assert len(found) == noisy and all(
        one.startswith("severe: differences below") for one in found
    )


def test_beside_a_claim_nothing_is_too_noisy_and_all_is_said() -> None:
    loud = replace(QUIET, stolen=0.2, throttled=0.3, other_cpus=3.0)
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
    (advice,) = noise.judge_noise(replace(QUIET, cpus=cpus, other_cpus=others)).advice
    assert ("threads=1" in advice.change) is one_thread
    (waited,) = (
        one
        for one in noise.judge_noise(replace(QUIET, cpus=cpus, other_cpus=others), 0.2).advice
        if "had to wait" in one.what
    )
    assert ("threads=1" in waited.change) is (cpus > 1)


def test_what_prevents_a_verdict_is_said_first() -> None:
    found = words(replace(QUIET, throttled=0.05, stolen=0.2))
    assert [one.partition(":")[0] for one in found] == ["severe", "word"]


def test_advice_is_a_cause_and_a_change() -> None:
    assert str(noise.Advice("it is hot", "let it cool down")) == "it is hot: let it cool down"


def test_runs_that_waited_for_each_other_say_that_others_were_few() -> None:
    (advice,) = noise.judge_noise(replace(QUIET, other_cpus=0.25), 0.2).advice
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
