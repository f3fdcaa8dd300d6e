"""Time that is kept back for the end of a search."""

from dataclasses import replace

import pytest
from tests.unit import studies

from ortune.backends.openvino import Openvino
from ortune.core.step import Recipe
from ortune.core.trial import Block, Burst, Interval, Measurement, Pair, Plan, Trial
from ortune.measurement.timing import stats
from ortune.quantizers.int8_dynamic import Int8Dynamic
from ortune.search.reserve import Reserve
from ortune.transforms.simplify import Simplify

MS = 1_000_000
SAMPLES = 100


def trial(key: str, ratio: float, run_ms: int, *, seconds: float, load_ms: int = 200) -> Trial:
    """A trial of one block of two runs a side."""
    base, own = Burst((10 * MS,) * 2, (0.0,) * 2), Burst((run_ms * MS,) * 2, (0.0,) * 2)
    taken = Measurement((Pair((Block(base, own),)),), load_ms * MS, 10 * MS, 1)
    found = replace(studies.baseline(), key=key, ratio=Interval(ratio, ratio, ratio))
    return replace(found, measurement=taken, seconds=seconds)


HERE, OTHER = studies.baseline().plan.backend, Openvino()
EXACT, LOSSY = Simplify(), Int8Dynamic()
TOLD = Plan(Recipe("given", (EXACT, LOSSY)), OTHER)
"""A plan whose history has two rows."""
BASE = trial("base", 1.0, 10, seconds=3.04)
FAST = replace(trial("fast", 0.5, 5, seconds=6.0, load_ms=1200), plan=TOLD)
NEXT = replace(trial("next", 0.51, 5, seconds=4.0), plan=TOLD)
FAR = trial("far", 0.8, 8, seconds=5.0)


def test_a_start_is_half_of_what_the_originals_pair_cost_beside_timing() -> None:
    assert Reserve([BASE], 4.0, 0).start_s == pytest.approx(1.5)
    assert Reserve([replace(BASE, measurement=None)], 4.0, 0).start_s == 0
    assert Reserve([replace(BASE, seconds=0.5)], 4.0, 0).start_s == pytest.approx(0.23)
    assert Reserve([replace(BASE, seconds=0.01)], 4.0, 0).start_s == 0
    assert Reserve([BASE], 4.0, 0).closing_s == pytest.approx(3.0), "two such processes"


def test_what_was_not_measured_takes_as_long_as_a_trial_of_the_search() -> None:
    untimed = replace(FAST, measurement=None)
    reserve = Reserve([BASE, FAST], 4.0, SAMPLES)
    assert reserve.compute_fixed_s(untimed, stats.PAIRS) == 6.0
    blind = Reserve([replace(BASE, measurement=None), FAST], 4.0, SAMPLES)
    assert blind.compute_fixed_s(FAST, stats.PAIRS) == 6.0
    left = 6.0 + reserve.closing_s + 1.0 * stats.PAIRS
    assert reserve.seconds_each(untimed, left) == pytest.approx(1.0), "no block is known of"


def test_a_row_of_the_history_is_a_mean_trial_of_the_search_that_was_timed() -> None:
    assert Reserve([BASE], 4.0, 0).row_s == 0
    final = replace(FAST, part="final", seconds=17.0)
    died = replace(NEXT, seconds=1.0, ratio=None)
    assert Reserve([BASE, FAST, NEXT, final, died], 4.0, 0).row_s == 5.0


@pytest.mark.parametrize(("load_ms", "start_s"), [(1200, 1.0), (200, 0.0), (100, -0.1), (0, -0.2)])
def test_what_loads_quicker_than_the_original_starts_quicker(load_ms: int, start_s: float) -> None:
    loads = trial("loads", 0.5, 5, seconds=6.0, load_ms=load_ms)
    fixed = stats.PAIRS * (2 * 1.5 + start_s)
    assert Reserve([BASE], 4.0, 0).compute_fixed_s(loads, stats.PAIRS) == pytest.approx(fixed)
    long = replace(BASE, measurement=trial("", 1.0, 10, seconds=0, load_ms=9000).measurement)
    fixed = stats.PAIRS * 1.5 * 1.5
    assert Reserve([long], 4.0, 0).compute_fixed_s(loads, stats.PAIRS) == pytest.approx(fixed), (
        "half of it at least"
    )


@pytest.mark.parametrize(
    ("pairs", "room", "each"),
    [(5, 99.0, 2.4), (5, 1.0, 1.0), (4, 0.5, 0.5), (2, 0.5, 0.5), (2, -9.0, 0.1)],
)
def test_pairs_get_less_timing_and_then_there_are_fewer_where_time_is_short(
    pairs: int, room: float, each: float
) -> None:
    reserve = Reserve([BASE, FAST], 4.0, SAMPLES)
    left = reserve.compute_fixed_s(FAST, pairs) + reserve.closing_s + room * pairs
    assert reserve.seconds_each(FAST, left) == pytest.approx(each)


def test_a_pair_whose_fewest_blocks_do_not_fit_takes_twice_its_seconds() -> None:
    slow = trial("slow", 0.9, 400, seconds=9.0)
    reserve = Reserve([BASE, slow], 1.0, 0)
    pairs = stats.FEWEST_PAIRS
    left = reserve.compute_fixed_s(slow, pairs) + reserve.closing_s + 1.0 * pairs
    assert reserve.seconds_each(slow, left) == pytest.approx(0.5)


def test_what_follows_the_history_is_a_row_and_the_end() -> None:
    reserve = Reserve([BASE, FAST], 4.0, 0)
    assert reserve.history_row_s == pytest.approx(6.0 + 3.0)


def test_a_final_takes_four_times_the_trial_until_one_was_measured() -> None:
    built = replace(FAST, building=2.0)
    assert Reserve([BASE, built], 4.0, SAMPLES).final_s(built) == 4 * 4.0
    final = replace(FAST, part="final", seconds=17.0)
    died = replace(NEXT, part="final", seconds=1.0, error="it crashed")
    reserve = Reserve([BASE, FAST, final, died], 4.0, SAMPLES)
    assert reserve.final_s(NEXT) == 17.0 * stats.PAIRS, "it had one pair"
    assert reserve.final_s(NEXT, 3.5 * 17.0) == pytest.approx(3.5 * 17.0), "as many as fit"
    assert reserve.final_s(NEXT, 1.0) == 17.0 * stats.FEWEST_PAIRS


def test_kept_back_are_the_first_finalist_and_those_near_it() -> None:
    reserve = Reserve([BASE, FAST, NEXT, FAR], 4.0, SAMPLES)
    one, long = reserve.final_s(FAST) + reserve.closing_s, 10_000.0
    edge = trial("edge", 0.525, 5, seconds=4.0)
    for alone in ([FAST], [FAST, FAR], [FAST, edge]):
        assert reserve.compute_reserve_s(alone, 3, long) == pytest.approx(one)
    both = one + reserve.final_s(NEXT)
    assert reserve.compute_reserve_s([FAST, NEXT, FAR], 3, long) == pytest.approx(both)
    assert reserve.compute_reserve_s([FAST] * 9, 3, long) == pytest.approx(
        one + 2 * reserve.final_s(FAST)
    )
    assert reserve.compute_reserve_s([], 3, long) == pytest.approx(
        reserve.final_s(BASE) + reserve.closing_s
    )


def test_three_fifths_hold_further_finalists_whole_or_not_at_all() -> None:
    reserve = Reserve([BASE, FAST, NEXT, FAR], 4.0, SAMPLES)
    one = reserve.final_s(FAST) + reserve.closing_s
    both = one + reserve.final_s(NEXT)
    assert reserve.compute_reserve_s([FAST, NEXT], 3, both / 0.6 + 1e-6) == pytest.approx(both)
    assert reserve.compute_reserve_s([FAST, NEXT], 3, both / 0.6 - 1e-6) == pytest.approx(one)
    assert reserve.compute_reserve_s([FAST, NEXT], 3, 20.0) == pytest.approx(12.0), "and no more"


@pytest.mark.parametrize(("tried", "kept"), [(0, 50.0), (1, 50.0), (2, 50.0), (3, 90.0)])
def test_half_of_what_is_left_is_for_the_first_three_plans(
    tried: int, kept: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Searches on slow machines ended after 14 of 60 s: the finals, of nothing in one, and of the
    untouched model at 0.8 of its time in another, were to take the rest."""
    monkeypatch.setattr(Reserve, "final_s", lambda *_: 87.0)
    for screened in ([replace(FAR, effort="screen")] * 2, []):
        reserve = Reserve([BASE, *screened, *[FAR] * tried], 4.0, SAMPLES)
        assert reserve.compute_reserve_s([FAST], 1, 200.0, 100.0) == pytest.approx(kept)
        assert reserve.compute_reserve_s([FAST], 1, 200.0, 190.0) == pytest.approx(90.0), "no more"
