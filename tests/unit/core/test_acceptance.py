"""What a trial may be called, and which finalist is handed out."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from tests.unit.studies import trial

from ortune.backends.cpu import Cpu
from ortune.core.acceptance import Outcome, accepted, between, faster, outcome, winner
from ortune.core.plugins.spelling import parse
from ortune.core.step import AS_IS, Quantizer, Recipe, Transform
from ortune.core.trial import Interval, Plan, Status, Trial, Verdict

PLAIN = Plan(Recipe("clean", (parse(Transform, "simplify"),)), Cpu(threads=1))
TUNED = replace(PLAIN, backend=Cpu(threads=1, arena=False))
LONGER = replace(
    PLAIN, recipe=Recipe("more", (*PLAIN.recipe.steps, parse(Transform, "fuse-gelu")))
)
LOSSY = Plan(Recipe("int8", (parse(Quantizer, "int8-dynamic"),)), Cpu(threads=1))


def final(plan: Plan, value: float, low: float = 0.0, high: float = 0.0, **more: object) -> Trial:
    """A finalist of a ratio; its interval is 1 % wide to either side unless it is given."""
    ratio = Interval(value, low or value * 0.99, high or value * 1.01)
    made = trial(f"{plan} {value} {low} {high}", plan, value)
    return replace(made, part="final", ratio=ratio, **more)  # type: ignore[arg-type]


def likely(of: Trial) -> Trial:
    return replace(of, scores=(replace(of.scores[0], verdict=Verdict.LIKELY),))


class TestAccepted:
    def test_proof_is_accepted_and_likely_only_where_no_proof_is_wanted(self) -> None:
        one = final(PLAIN, 0.5)
        assert accepted(one, strict=True) and accepted(one, strict=False)
        assert accepted(likely(one), strict=False) and not accepted(likely(one), strict=True)

    @pytest.mark.parametrize("status", [s for s in Status if s is not Status.OK])
    def test_nothing_else_is(self, status: Status) -> None:
        assert not accepted(final(PLAIN, 0.5, status=status), strict=False)
        assert not accepted(final(PLAIN, 0.5, scores=()), strict=False)


@pytest.mark.parametrize(("high", "is_faster"), [(0.99, True), (1.0, False), (1.01, False)])
def test_faster_is_what_lies_below_one_with_its_whole_interval(
    high: float, is_faster: bool
) -> None:
    assert faster(final(PLAIN, 0.9, 0.8, high)) is is_faster


def test_what_was_not_timed_is_not_faster() -> None:
    assert not faster(replace(final(PLAIN, 0.9), ratio=None))


@pytest.mark.parametrize(
    ("ratio", "status", "word"),
    [
        (Interval(0.5, 0.4, 0.6), Status.OK, Outcome.FASTER),
        (Interval(0.9, 0.8, 1.0), Status.OK, Outcome.LEVEL),
        (Interval(1.1, 1.0, 1.2), Status.OK, Outcome.LEVEL),
        (Interval(1.1, 1.0, 1.2), Status.SLOWER, Outcome.LEVEL),
        (Interval(0.5, 0.4, 0.6), Status.SLOWER, Outcome.LEVEL),
        (Interval(1.2, 1.1, 1.3), Status.SLOWER, Outcome.SLOWER),
        (Interval(1.2, 1.1, 1.3), Status.OK, Outcome.SLOWER),
        (Interval(1.2, 1.1, 1.3), Status.SCREENED, Outcome.SLOWER),
        (Interval(0.5, 0.4, 0.6), Status.SCREENED, Outcome.UNSCORED),
        (Interval(0.5, 0.4, 0.6), Status.FAILS, Outcome.FAILS),
        (Interval(1.2, 1.1, 1.3), Status.FAILS, Outcome.FAILS),
        (Interval(0.5, 0.4, 0.6), Status.FAILED, Outcome.FAILED),
        (None, Status.OK, Outcome.FAILED),
        (None, Status.FAILED, Outcome.FAILED),
        (None, Status.UNCHANGED, Outcome.UNTRIED),
    ],
)
def test_a_row_whose_interval_holds_one_is_neither_slower_nor_faster(
    ratio: Interval | None, status: Status, word: Outcome
) -> None:
    assert outcome(replace(final(PLAIN, 0.5), ratio=ratio, status=status)) is word


class TestBetween:
    def test_half_widths_add_up_as_of_independent_measurements(self) -> None:
        one = final(PLAIN, 0.4, 0.4 * math.exp(-0.03), 0.4 * math.exp(0.03))
        two = final(TUNED, 0.5, 0.5 * math.exp(-0.04), 0.5 * math.exp(0.04))
        found = between(one, two)
        assert found.value == pytest.approx(0.8)
        assert math.log(found.high / found.value) == pytest.approx(0.05)
        assert math.log(found.value / found.low) == pytest.approx(0.05)

    def test_nothing_is_known_of_what_was_not_timed(self) -> None:
        untimed = replace(final(PLAIN, 0.4), ratio=None)
        for one, two in ((untimed, final(PLAIN, 0.4)), (final(PLAIN, 0.4), untimed)):
            assert math.isnan(between(one, two).value)

    def test_an_interval_without_a_low_end_is_infinitely_wide(self) -> None:
        wide = replace(final(PLAIN, 0.4), ratio=Interval(0.4, 0.0, 0.6))
        assert between(wide, final(PLAIN, 0.5)).high == math.inf


class TestWinner:
    def test_the_fastest_wins_in_whatever_order_they_come(self) -> None:
        trials = [final(PLAIN, 0.6), final(LOSSY, 0.5), final(TUNED, 0.7)]
        for order in (trials, trials[::-1]):
            assert winner(order, strict=False) is trials[1]

    def test_what_is_not_faster_beyond_the_noise_never_wins(self) -> None:
        assert winner([final(PLAIN, 0.9, 0.8, 1.0)], strict=False) is None
        assert winner([], strict=False) is None
        sure = final(PLAIN, 0.95, 0.93, 0.97)
        assert winner([final(LOSSY, 0.5, 0.2, 1.2), sure], strict=False) is sure

    def test_what_is_not_accepted_never_wins(self) -> None:
        quick, sure = likely(final(LOSSY, 0.5)), final(PLAIN, 0.6)
        assert winner([quick, sure], strict=False) is quick
        assert winner([quick, sure], strict=True) is sure
        assert winner([replace(quick, status=Status.FAILS)], strict=False) is None

    @pytest.mark.parametrize(
        ("simple", "other"),
        [(PLAIN, LOSSY), (PLAIN, TUNED), (PLAIN, LONGER), (TUNED, LOSSY), (LONGER, TUNED)],
    )
    def test_of_tied_ones_the_exact_then_the_one_of_fewest_settings_then_of_fewest_steps(
        self, simple: Plan, other: Plan
    ) -> None:
        fast, tied = final(other, 0.500), final(simple, 0.504)
        assert winner([fast, tied], strict=False) is tied
        assert winner([tied, fast], strict=False) is tied

    def test_of_the_same_plan_twice_the_faster_counts(self) -> None:
        fast, slow = final(PLAIN, 0.500), final(PLAIN, 0.504)
        assert winner([slow, fast], strict=False) is fast

    def test_what_is_more_than_one_percent_slower_is_no_tie_however_wide_its_interval(
        self,
    ) -> None:
        fast, simple = final(LOSSY, 0.5, 0.4, 0.6), final(PLAIN, 0.506, 0.4, 0.6)
        assert winner([fast, simple], strict=False) is fast
        assert winner([fast, final(PLAIN, 0.505, 0.4, 0.6)], strict=False) is not fast

    def test_what_is_apart_beyond_the_noise_is_no_tie_however_close(self) -> None:
        fast, simple = final(LOSSY, 0.5, 0.4999, 0.5001), final(PLAIN, 0.504, 0.5039, 0.5041)
        assert winner([fast, simple], strict=False) is fast


def test_the_original_as_is_has_no_settings_and_is_exact() -> None:
    assert not Plan(AS_IS, Cpu()).lossy and Plan(AS_IS, Cpu()).settings == 0
    assert TUNED.settings == PLAIN.settings + 1 and LOSSY.lossy
