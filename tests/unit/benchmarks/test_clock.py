"""When the clock and uninterrupted loops agree."""

from __future__ import annotations

import pytest
from benchmarks.noise.clock import found, plain

from ortune.core.trial import Block, Burst, Pair


def pair(ratio: float) -> Pair:
    base, other = (Burst((ns,) * 9, (0.0,) * 9, 1, True) for ns in (10**6, round(ratio * 10**6)))
    return Pair((Block(base, other),) * 4)


@pytest.mark.parametrize(
    ("loops", "agree"),
    [
        ((0.50, 0.50, 0.50, 0.50), True),
        ((0.509, 0.509, 0.509, 0.509), True),
        ((0.56, 0.56, 0.56, 0.56), False),
        ((0.42, 0.60, 0.46, 0.62), True),
    ],
)
def test_they_agree_within_2_percent_or_their_intervals(
    loops: tuple[float, ...], agree: bool
) -> None:
    told = found([pair(0.5)] * 4, [pair(ratio) for ratio in loops])
    assert told["agree"] is agree
    assert told["turns"][0] == pytest.approx(0.5)
    assert told["each"]["loops"] == pytest.approx(list(loops))


def test_loops_have_no_prior() -> None:
    assert plain([0.1, 0.1]).low == pytest.approx(plain([0.1, 0.1]).high)
    assert plain([0.1]).low == 0
