"""A limit in time that what is done inside asks about."""

from __future__ import annotations

import math

import pytest

from ortune.core.errors import OutOfTime
from ortune.core.progress import time_limit


def test_inside_there_is_what_was_allowed() -> None:
    with time_limit.at_most(100):
        time_limit.check_time()
        assert 90 < time_limit.compute_remaining_s() <= 100
    assert time_limit.compute_remaining_s() == math.inf


def test_beyond_it_nothing_goes_on_and_afterwards_all_does() -> None:
    text = "ran out of time: 0 s were left"
    with pytest.raises(OutOfTime, match=text) as told, time_limit.at_most(0):
        time_limit.check_time()
    assert "--time" in told.value.fix
    time_limit.check_time()


@pytest.mark.parametrize(("outer", "inner"), [(5, 100), (100, 5)])
def test_the_nearer_of_two_counts(outer: float, inner: float) -> None:
    with time_limit.at_most(outer), time_limit.at_most(inner):
        assert time_limit.compute_remaining_s() <= 5
