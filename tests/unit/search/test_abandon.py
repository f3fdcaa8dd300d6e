"""When a trial is stopped part way, and how it is told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit import studies

from ortune.core.trial import Block, Burst, Interval, Pair, Status
from ortune.search.abandon import Beaten

BASE = 1_000_000


def pair(*ratios: float, waited: float = 0.0) -> Pair:
    blocks = [
        Block(
            Burst((BASE,) * 8, (waited,) * 8, alike=True),
            Burst((round(ratio * BASE),) * 8, (waited,) * 8, alike=True),
        )
        for ratio in ratios
    ]
    return Pair(tuple(blocks))


@pytest.mark.parametrize(
    ("done", "limit", "said"),
    [
        (0, 3.0, "a warm-up run"),
        (0.5, 1.5, "its first burst"),
        (1, 1.35, "1 block"),
        (2, 1.22, "2 blocks"),
        (3, 1.1, "3 blocks"),
        (7, 1.1, "7 blocks"),
    ],
)
def test_the_more_is_timed_the_less_behind_a_plan_may_be(
    done: float, limit: float, said: str
) -> None:
    whole = max(1, int(done))
    for best in (1.0, 0.3):
        rule = Beaten(best)
        assert rule(pair(*[limit * best * 0.999] * whole), done) == ""
        text = rule(pair(*[limit * best * 1.001] * whole), done)
        assert text == f"stopped after {said}: {limit * 1.001:.2f} times the best so far"


def test_blocks_are_counted_unless_told() -> None:
    assert Beaten()(pair(1.3)) == ""
    assert Beaten()(pair(1.3, 1.3))
    assert Beaten()(Pair(())) == ""


def test_what_neighbours_disturbed_must_be_twice_as_far_behind() -> None:
    assert Beaten()(pair(1.4))
    assert Beaten()(pair(1.4, waited=0.5)) == ""
    assert Beaten()(pair(1.35**2 * 1.01, waited=0.5))


def test_the_best_is_of_the_searchs_trials_that_keep_the_budget(tmp_path: Path) -> None:
    base = studies.baseline()
    fast = replace(base, key="f", ratio=Interval(0.5, 0.4, 0.6))
    fails = replace(fast, key="x", ratio=Interval(0.2, 0.1, 0.3), status=Status.FAILS)
    final = replace(fast, part="final", ratio=Interval(0.4, 0.3, 0.5))
    slow = replace(fast, key="s", ratio=Interval(1.2, 1.1, 1.3))
    assert beaten([base]) == Beaten(1.0)
    assert beaten([base, slow]) == Beaten(1.0)
    assert beaten([base, fast, fails, final]) == Beaten(0.5)
