"""Lines over a life: the crossings are where the order changes, and nowhere else."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ortune.analysis.costs.timeline import (
    CostLine,
    compute_crossings,
    compute_total,
    find_break_even,
    lower_envelope,
)

seconds = st.one_of(st.just(0.0), st.floats(1e-4, 1e3))
lines = st.builds(CostLine, st.text(min_size=1, max_size=3), seconds, seconds, seconds)
sessions = st.one_of(st.floats(1, 1e6), st.just(math.inf))

NONE = CostLine("none", 0.0, 0.1, 0.010)
QUANTIZED = CostLine("quantized", 30.0, 0.3, 0.004)


def test_one_session_by_hand() -> None:
    # 30 s once and 0.2 s more a session against 6 ms an inference.
    assert compute_crossings(NONE, QUANTIZED, math.inf) == (pytest.approx(30.2 / 0.006),)
    assert find_break_even(NONE, QUANTIZED, math.inf) == pytest.approx(30.2 / 0.006)
    assert find_break_even(QUANTIZED, NONE, math.inf) == math.inf


def test_sessions_eat_the_gain_by_hand() -> None:
    # A hundred inferences a session: 6 ms minus 0.2 s / 100 = 4 ms each.
    assert find_break_even(NONE, QUANTIZED, 100) == pytest.approx(30 / 0.004)
    # Ten: every session loses 0.2 s and gains 0.06 s.
    assert find_break_even(NONE, QUANTIZED, 10) == math.inf


def test_quantizing_in_every_session_by_hand() -> None:
    every = CostLine("every", 0.0, QUANTIZED.once_s + QUANTIZED.session_s, QUANTIZED.inference_s)
    # 30.2 s a session against 6 ms an inference: 5,033 inferences in one session pay for it.
    assert find_break_even(NONE, every, 5000) == math.inf
    assert math.isfinite(find_break_even(NONE, every, 5100))


def sign(one: CostLine, two: CostLine, n: float, per_session: float) -> int:
    a, b = compute_total(one, n, per_session), compute_total(two, n, per_session)
    return 0 if math.isclose(a, b, rel_tol=1e-9) else (1 if b > a else -1)


@given(lines, lines, sessions)
def test_both_cost_the_same_at_a_crossing(
    one: CostLine, two: CostLine, per_session: float
) -> None:
    found = compute_crossings(one, two, per_session)
    assert len(found) <= 2 and list(found) == sorted(found)
    for n in found:
        a, b = (compute_total(line, n, per_session) for line in (one, two))
        assert math.isclose(a, b, rel_tol=1e-6)


@given(lines, lines, sessions, st.lists(st.floats(1e-3, 1e9), min_size=2, max_size=6))
def test_the_order_changes_at_crossings_only(
    one: CostLine, two: CostLine, per_session: float, places: list[float]
) -> None:
    edges = [0.0, *compute_crossings(one, two, per_session), math.inf]
    for low, high in itertools.pairwise(edges):
        seen = {sign(one, two, n, per_session) for n in places if low < n < high}
        assert len(seen - {0}) <= 1


@given(lines, lines, sessions)
def test_what_pays_stays_paid(old: CostLine, new: CostLine, per_session: float) -> None:
    since = find_break_even(old, new, per_session)
    assume(math.isfinite(since))
    for factor in (1.01, 2.0, 100.0):
        assert sign(old, new, since * factor + 1e-3, per_session) <= 0


@given(st.lists(lines, min_size=1, max_size=6, unique_by=lambda line: line.name), sessions)
def test_the_reigning_line_is_the_lowest(found: list[CostLine], per_session: float) -> None:
    ruled = lower_envelope(found, per_session)
    assert ruled[0].since == 0 and math.isinf(ruled[-1].until)
    assert all(a.until == b.since and a.name != b.name for a, b in itertools.pairwise(ruled))
    for segment in ruled:
        inside = (
            (segment.since + segment.until) / 2
            if math.isfinite(segment.until)
            else 3 * segment.since + 5
        )
        best = min(compute_total(line, inside, per_session) for line in found)
        mine = next(line for line in found if line.name == segment.name)
        assert math.isclose(compute_total(mine, inside, per_session), best, rel_tol=1e-6)
