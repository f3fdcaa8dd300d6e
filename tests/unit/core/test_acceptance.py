"""What a trial may be called, and which finalist is handed out."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from tests.unit.studies import baseline, trial

from ortune.backends.cpu import Cpu
from ortune.core.acceptance import (
    Goal,
    Outcome,
    classify_outcome,
    compare_latency,
    compute_resolution,
    find_pareto_front,
    is_accepted,
    is_eligible,
    is_faster,
    looks_eligible,
    seems_faster,
    select_winner,
)
from ortune.core.budget import Budget
from ortune.core.plugins.spelling import parse_plugin
from ortune.core.step import AS_IS, Quantizer, Recipe, Transform
from ortune.core.trial import Interval, Plan, Score, Status, Trial, Verdict

PLAIN = Plan(Recipe("clean", (parse_plugin(Transform, "simplify"),)), Cpu(threads=1))
TUNED = replace(PLAIN, backend=Cpu(threads=1, arena=False))
LONGER = replace(
    PLAIN, recipe=Recipe("more", (*PLAIN.recipe.steps, parse_plugin(Transform, "fuse-gelu")))
)
LOSSY = Plan(Recipe("int8", (parse_plugin(Quantizer, "int8-dynamic"),)), Cpu(threads=1))


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
        assert is_accepted(one, strict=True) and is_accepted(one, strict=False)
        assert is_accepted(likely(one), strict=False) and not is_accepted(likely(one), strict=True)

    @pytest.mark.parametrize("status", [s for s in Status if s is not Status.OK])
    def test_nothing_else_is(self, status: Status) -> None:
        assert not is_accepted(final(PLAIN, 0.5, status=status), strict=False)
        assert not is_accepted(final(PLAIN, 0.5, scores=()), strict=False)


@pytest.mark.parametrize(
    ("ratio", "looks"),
    [
        (Interval(0.9, 0.8, 0.99), True),
        (Interval(0.8, 0.6, 1.1), False),
        (Interval(0.5, 0.0, math.inf), True),
        (Interval(0.5, 0.04, 6.0), True),
        (Interval(0.87, 0.0, math.inf), False),
    ],
)
def test_what_looks_faster_is_so_beyond_the_noise_or_by_a_lone_block_well_below_one(
    ratio: Interval, looks: bool
) -> None:
    one = replace(trial("a" * 16, PLAIN, 0.5), ratio=ratio)
    assert looks_eligible(one, baseline(), strict=False, goal=Goal()) is looks
    assert is_eligible(one, baseline(), strict=False, goal=Goal()) is (ratio.high < 1)


@pytest.mark.parametrize(("high", "expected_faster"), [(0.99, True), (1.0, False), (1.01, False)])
def test_faster_is_what_lies_below_one_with_its_whole_interval(
    high: float, expected_faster: bool
) -> None:
    assert is_faster(final(PLAIN, 0.9, 0.8, high)) is expected_faster


def test_a_finalist_of_an_emulated_cpu_is_not_handed_out() -> None:
    one = final(PLAIN, 0.5, 0.4, 0.6)
    assert is_eligible(one, baseline(), strict=False, goal=Goal())
    emulated = replace(one, emulated="qemu-aarch64")
    assert not is_eligible(emulated, baseline(), strict=False, goal=Goal())


def test_what_was_not_timed_is_not_faster() -> None:
    untimed = replace(final(PLAIN, 0.9), ratio=None)
    assert not is_faster(untimed) and not seems_faster(untimed)


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
        (None, Status.TOO_LARGE, Outcome.TOO_LARGE),
    ],
)
def test_a_row_whose_interval_holds_one_is_neither_slower_nor_faster(
    ratio: Interval | None, status: Status, word: Outcome
) -> None:
    assert classify_outcome(replace(final(PLAIN, 0.5), ratio=ratio, status=status)) is word


@pytest.mark.parametrize(
    ("status", "stopped", "word"),
    [
        (Status.SLOWER, "stopped after 1 block", Outcome.SLOWER),
        (Status.SCREENED, "stopped after 1 block", Outcome.UNSCORED),
        (Status.SLOWER, "", Outcome.LEVEL),
    ],
)
def test_what_was_stopped_as_slower_is_slower_though_its_few_blocks_hold_one(
    status: Status, stopped: str, word: Outcome
) -> None:
    wide = final(PLAIN, 1.4, 0.9, 2.0, status=status, stopped=stopped)
    assert classify_outcome(wide) is word


class TestBetween:
    def test_half_widths_add_up_as_of_independent_measurements(self) -> None:
        one = final(PLAIN, 0.4, 0.4 * math.exp(-0.03), 0.4 * math.exp(0.03))
        two = final(TUNED, 0.5, 0.5 * math.exp(-0.04), 0.5 * math.exp(0.04))
        found = compare_latency(one, two)
        assert found.value == pytest.approx(0.8)
        assert math.log(found.high / found.value) == pytest.approx(0.05)
        assert math.log(found.value / found.low) == pytest.approx(0.05)

    def test_nothing_is_known_of_what_was_not_timed(self) -> None:
        untimed = replace(final(PLAIN, 0.4), ratio=None)
        for one, two in ((untimed, final(PLAIN, 0.4)), (final(PLAIN, 0.4), untimed)):
            assert math.isnan(compare_latency(one, two).value)

    def test_an_interval_without_a_low_end_is_infinitely_wide(self) -> None:
        wide = replace(final(PLAIN, 0.4), ratio=Interval(0.4, 0.0, 0.6))
        assert compare_latency(wide, final(PLAIN, 0.5)).high == math.inf


class TestWinner:
    def test_the_fastest_wins_in_whatever_order_they_come(self) -> None:
        trials = [final(PLAIN, 0.6), final(LOSSY, 0.5), final(TUNED, 0.7)]
        for order in (trials, trials[::-1]):
            assert select_winner(order, strict=False) is trials[1]

    def test_what_is_not_faster_beyond_the_noise_never_wins(self) -> None:
        assert select_winner([final(PLAIN, 0.9, 0.8, 1.0)], strict=False) is None
        assert select_winner([], strict=False) is None
        sure = final(PLAIN, 0.95, 0.93, 0.97)
        assert select_winner([final(LOSSY, 0.5, 0.2, 1.2), sure], strict=False) is sure

    def test_a_finalist_whose_runs_waited_for_a_cpu_never_wins(self) -> None:
        quick, sure = final(LOSSY, 0.2, waited=True), final(PLAIN, 0.6)
        assert select_winner([quick, sure], ORIGINAL, strict=False) is sure
        assert select_winner([quick], ORIGINAL, strict=False) is None
        small = sized(quick, 1e6)  # nor for its size
        assert select_winner([small], sized(LEVEL, 9e6), strict=False, goal=SIZE) is None

    def test_what_is_not_accepted_never_wins(self) -> None:
        quick, sure = likely(final(LOSSY, 0.5)), final(PLAIN, 0.6)
        assert select_winner([quick, sure], strict=False) is quick
        assert select_winner([quick, sure], strict=True) is sure
        assert select_winner([replace(quick, status=Status.FAILS)], strict=False) is None

    @pytest.mark.parametrize(
        ("simple", "other"),
        [(PLAIN, LOSSY), (PLAIN, TUNED), (PLAIN, LONGER), (TUNED, LOSSY), (LONGER, TUNED)],
    )
    def test_of_tied_ones_the_exact_then_the_one_of_fewest_settings_then_of_fewest_steps(
        self, simple: Plan, other: Plan
    ) -> None:
        fast, tied = final(other, 0.500), final(simple, 0.504)
        assert select_winner([fast, tied], strict=False) is tied
        assert select_winner([tied, fast], strict=False) is tied

    def test_of_the_same_plan_twice_the_faster_counts(self) -> None:
        fast, slow = final(PLAIN, 0.500), final(PLAIN, 0.504)
        assert select_winner([slow, fast], strict=False) is fast

    def test_what_is_more_than_one_percent_slower_is_no_tie_however_wide_its_interval(
        self,
    ) -> None:
        fast, simple = final(LOSSY, 0.5, 0.4, 0.6), final(PLAIN, 0.506, 0.4, 0.6)
        assert select_winner([fast, simple], strict=False) is fast
        assert select_winner([fast, final(PLAIN, 0.505, 0.4, 0.6)], strict=False) is not fast

    def test_what_is_apart_beyond_the_noise_is_no_tie_however_close(self) -> None:
        fast, simple = final(LOSSY, 0.5, 0.4999, 0.5001), final(PLAIN, 0.504, 0.5039, 0.5041)
        assert select_winner([fast, simple], strict=False) is fast


def test_the_original_as_is_has_no_settings_and_is_exact() -> None:
    assert not Plan(AS_IS, Cpu()).lossy and Plan(AS_IS, Cpu()).settings == 0
    assert TUNED.settings == PLAIN.settings + 1 and LOSSY.lossy


MIB = 1 << 20
ORIGINAL = baseline()
SIZE, MEMORY = Goal("size"), Goal("memory")


def sized(of: Trial, size: float | None = None, memory: float = 90e6) -> Trial:
    """Give a trial another size and another peak of memory, both in bytes."""
    assert of.measurement is not None
    taken = replace(of.measurement, peak_rss=int(memory))
    return replace(of, size=None if size is None else int(size), measurement=taken)


LEVEL = sized(final(PLAIN, 1.0), 2e6, 50e6)
"""As fast as the original, and less than half of it."""


SMALLER = replace(PLAIN, backend=replace(PLAIN.backend, arena=False))


def test_of_tied_ones_that_are_as_exact_the_smallest_files_count_before_settings() -> None:
    large = sized(final(PLAIN, 0.500), 2e6)
    for less, found in ((0.990e6, True), (1.985e6, False)):
        small = sized(final(SMALLER, 0.504), less)
        assert (select_winner([large, small], strict=False) is small) is found
        assert (select_winner([small, large], strict=False) is small) is found
    edge, small = sized(final(PLAIN, 0.500), 1.01e6), sized(final(SMALLER, 0.504), 1e6)
    assert select_winner([edge, small], strict=False) is edge, "1 % is no saving"
    slow = sized(final(SMALLER, 0.506), 1e6)
    assert select_winner([large, slow], strict=False) is large, "it is no tie"
    lossy = sized(final(LOSSY, 0.500), 1e6)
    assert select_winner([large, lossy], strict=False) is large, "an exact one counts first"
    assert select_winner([large, sized(final(SMALLER, 0.504))], strict=False) is large, (
        "of unknown size"
    )


class TestGoal:
    def test_bounds_are_kept_to_the_byte_and_named_where_they_are_not(self) -> None:
        one = sized(final(PLAIN, 0.5), 2 * MIB, 3 * MIB)
        assert Goal(max_size=2 * MIB, max_memory=3 * MIB).describe_excess(one) == ""
        assert Goal().keeps_bounds(one) and Goal(max_size=2 * MIB).keeps_bounds(one)
        assert Goal(max_size=2 * MIB - 1).describe_excess(one) == "2 MiB is above --max-size 2 MiB"
        both = Goal(max_size=MIB, max_memory=MIB)
        assert both.describe_excess(one) == (
            "2 MiB is above --max-size 1 MiB, 3 MiB is above --max-memory 1 MiB"
        )
        assert not Goal(max_size=MIB, max_memory=4 * MIB).keeps_bounds(one)
        assert not Goal(max_size=3 * MIB, max_memory=MIB).keeps_bounds(one)

    def test_what_was_not_measured_keeps_no_bound(self) -> None:
        unknown = replace(final(PLAIN, 0.5), size=None, measurement=None)
        assert Goal().keeps_bounds(unknown)
        assert Goal(max_size=MIB).describe_excess(unknown) == "unknown is above --max-size 1 MiB"
        assert not Goal(max_memory=MIB).keeps_bounds(unknown)

    def test_of_size_one_percent_and_of_memory_two_is_no_saving(self) -> None:
        def saves(wanted: Goal, size: float, memory: float) -> bool:
            return wanted.needs_less(
                sized(final(PLAIN, 0.5), size, memory), sized(LEVEL, 1e6, 1e6)
            )

        assert saves(SIZE, 0.990e6, 5e6) and not saves(SIZE, 0.991e6, 5e6)
        assert not SIZE.needs_less(sized(LEVEL, 100), sized(LEVEL, 101)), "to the byte"
        assert saves(MEMORY, 5e6, 0.980e6) and not saves(MEMORY, 5e6, 0.981e6)
        assert not saves(Goal(), 1, 1), "speed is what intervals say"

    def test_ahead_is_who_needs_less_and_of_equals_who_is_faster(self) -> None:
        small, quick = sized(final(PLAIN, 0.9), 1e6), sized(final(LOSSY, 0.5), 2e6)
        assert SIZE.is_ahead(small, quick) and not SIZE.is_ahead(quick, small)
        assert Goal().is_ahead(quick, small) and not Goal().is_ahead(small, quick)
        assert SIZE.is_ahead(replace(quick, size=1_000_000), small)
        assert not Goal().is_ahead(quick, quick)
        assert Goal(max_size=1).is_ahead(small, quick), "any is ahead of what breaks a bound"

    def test_groups_need_as_much_and_the_least_comes_first(self) -> None:
        one, two = sized(final(PLAIN, 0.9), 1.00e6), sized(final(LOSSY, 0.5), 1.005e6)
        far = sized(final(TUNED, 0.3), 3e6)
        for given in ([far, one, two], [two, far, one]):
            assert list(SIZE.group_trials(given)) == [[two, one], [far]]
            assert list(Goal().group_trials(given)) == [[far, two, one]]
        assert list(SIZE.group_trials([])) == []

    def test_it_is_written_as_options(self) -> None:
        assert str(Goal()) == "the fastest"
        assert str(Goal("size", 100 * MIB)) == "--prefer size, --max-size 100 MiB"
        assert str(Goal(max_memory=MIB, portable=True)) == "--max-memory 1 MiB, --portable"


class TestEligible:
    @pytest.mark.parametrize(
        ("low", "high", "size", "speed", "small"),
        [
            (0.8, 0.9, 5.4e6, True, True),
            (0.8, 0.9, 6.0e6, True, False),
            (0.8, 0.9, 2.0e6, True, True),
            (0.9, 1.1, 5.4e6, False, False),
            (0.9, 1.1, 2.0e6, False, True),
            (1.0, 1.2, 2.0e6, False, True),
            (1.001, 1.2, 2.0e6, False, False),
        ],
    )
    def test_not_slower_and_smaller_or_faster_and_no_larger(
        self, low: float, high: float, size: float, speed: bool, small: bool
    ) -> None:
        one = sized(final(PLAIN, 0.9, low, high), size)
        for wanted, expected in ((Goal(), speed), (SIZE, small)):
            assert is_eligible(one, ORIGINAL, strict=False, goal=wanted) is expected
            failed = replace(one, status=Status.FAILS)
            assert not is_eligible(failed, ORIGINAL, strict=False, goal=wanted)
        assert is_eligible(one, None, strict=False, goal=Goal()) is speed

    def test_beside_an_original_that_breaks_a_bound_it_need_not_be_faster(self) -> None:
        wanted = Goal(max_size=3_000_000)
        assert is_eligible(LEVEL, ORIGINAL, strict=False, goal=wanted)
        slower = replace(LEVEL, ratio=Interval(1.1, 1.01, 1.2))
        assert not is_eligible(slower, ORIGINAL, strict=False, goal=wanted)
        assert not is_eligible(replace(LEVEL, ratio=None), ORIGINAL, strict=False, goal=wanted)
        fits = Goal(max_size=6_000_000)
        assert not is_eligible(LEVEL, ORIGINAL, strict=False, goal=fits)

    def test_what_breaks_a_bound_is_not_handed_out(self) -> None:
        one = sized(final(PLAIN, 0.5), 4e6)
        assert is_eligible(one, ORIGINAL, strict=False, goal=Goal(max_size=4_000_000))
        assert not is_eligible(one, ORIGINAL, strict=False, goal=Goal(max_size=3_999_999))

    def test_strict_wants_it_proved(self) -> None:
        assert is_eligible(likely(LEVEL), ORIGINAL, strict=False, goal=SIZE)
        assert not is_eligible(likely(LEVEL), ORIGINAL, strict=True, goal=SIZE)


class TestPreferred:
    def test_the_smallest_that_is_not_slower_wins_and_of_equals_the_faster(self) -> None:
        quick, small = sized(final(PLAIN, 0.5), 4e6), sized(final(LOSSY, 0.98), 1e6)
        as_small = sized(final(TUNED, 0.8), 1.005e6)
        slow = sized(final(LONGER, 1.2), 0.5e6)
        for trials in ([quick, small, slow], [slow, small, quick]):
            assert select_winner(trials, ORIGINAL, strict=False, goal=SIZE) is small
            assert select_winner(trials, ORIGINAL, strict=False) is quick
        every = [quick, small, as_small]
        assert select_winner(every, ORIGINAL, strict=False, goal=SIZE) is as_small

    def test_memory_is_the_peak(self) -> None:
        one, two = sized(final(PLAIN, 0.9), 1e6, 80e6), sized(final(LOSSY, 0.95), 2e6, 40e6)
        assert select_winner([one, two], ORIGINAL, strict=False, goal=MEMORY) is two
        assert select_winner([one, two], ORIGINAL, strict=False, goal=SIZE) is one

    def test_the_original_stays_where_all_need_more(self) -> None:
        assert (
            select_winner([sized(final(PLAIN, 0.5), 9e6)], ORIGINAL, strict=False, goal=SIZE)
            is None
        )
        assert select_winner([LEVEL], ORIGINAL, strict=False, goal=SIZE) is LEVEL
        assert select_winner([LEVEL], ORIGINAL, strict=False) is None

    def test_the_fastest_that_keeps_the_bounds_wins(self) -> None:
        quick, small = sized(final(PLAIN, 0.5), 4e6), sized(final(LOSSY, 0.9), 1e6)
        wanted = Goal(max_size=2_000_000)
        assert select_winner([quick, small], ORIGINAL, strict=False, goal=wanted) is small
        assert select_winner([quick], ORIGINAL, strict=False, goal=wanted) is None


ANSWERS, COSINE = Budget.parse("top1>=base-0.01"), Budget.parse("cosine>=0.999")


def scored(key: str, ratio: Interval, value: float, samples: int, **more: object) -> Trial:
    """A plan of a score whose original has 0.5, without a bound."""
    score = Score("top1", value, 0.5, -math.inf, math.inf, samples)
    made = trial(key * 16, PLAIN, ratio.value)
    return replace(made, ratio=ratio, scores=(score,), **more)  # type: ignore[arg-type]


class TestFront:
    fast, slow = Interval(0.5, 0.49, 0.51), Interval(0.8, 0.79, 0.81)

    @pytest.mark.parametrize(("right", "both"), [(132, False), (133, True)])
    def test_five_answers_more_are_worth_a_latency(self, right: int, both: bool) -> None:
        """Of 256, so that shares are what they say to the last bit."""
        quick = scored("f", self.fast, 128 / 256, 256)
        other = scored("s", self.slow, right / 256, 256)
        assert find_pareto_front([other, quick], ANSWERS) == ((quick, other) if both else (quick,))

    def test_the_coarser_of_two_scores_says_what_chance_is(self) -> None:
        quick = scored("f", self.fast, 180 / 200, 200, part="final")
        other = scored("s", self.slow, 38 / 40, 40)
        assert find_pareto_front([quick, other], ANSWERS) == (quick,)

    def test_of_equal_latency_the_better_score_stands_also_within_chance(self) -> None:
        low, high = (scored(key, self.fast, n / 200, 200) for key, n in (("l", 190), ("h", 192)))
        assert (
            find_pareto_front([low, high], ANSWERS)
            == find_pareto_front([high, low], ANSWERS)
            == (high,)
        )

    def test_of_one_that_touches_another_the_finalist_stands_alone(self) -> None:
        sharp = Interval(0.5, 0.5, 0.5)
        once = scored("o", sharp, 190 / 200, 200)
        sure = scored("s", sharp, 190 / 200, 200, part="final")
        assert find_pareto_front([once, sure], ANSWERS) == (sure,)
        once = scored("o", Interval(0.5, 0.4, 0.6), 190 / 200, 200)
        level = scored("s", Interval(0.52, 0.51, 0.53), 190 / 200, 200, part="final")
        assert find_pareto_front([once, level], ANSWERS) == (level,)
        slower = scored("s", Interval(0.7, 0.69, 0.71), 190 / 200, 200, part="final")
        assert find_pareto_front([once, slower], ANSWERS) == (once,)

    def test_a_finalist_does_not_replace_a_better_score_that_is_level(self) -> None:
        once = scored("o", Interval(0.5, 0.4, 0.6), 195 / 200, 200)
        sure = scored("s", Interval(0.52, 0.5, 0.54), 190 / 200, 200, part="final")
        assert find_pareto_front([once, sure], ANSWERS) == (once,)

    @pytest.mark.parametrize(("error", "both"), [(0.001, True), (0.05, False), (0.09, False)])
    def test_where_lower_is_better_less_error_is_worth_a_latency(
        self, error: float, both: bool
    ) -> None:
        budget = Budget.parse("max-error<=0.1")
        quick = scored("f", self.fast, 0.0505, 100)
        other = scored("s", self.slow, error, 100)
        assert find_pareto_front([quick, other], budget) == ((quick, other) if both else (quick,))


@pytest.mark.parametrize(
    ("budget", "value", "base", "low", "samples", "step"),
    [
        # Answers that are right or wrong: five of them, none right among them.
        (ANSWERS, 0.0, 0.5, -math.inf, 20, 5 / 20),
        (ANSWERS, 0.0, 0.0, -math.inf, 1, 5.0),
        # No whole number of answers, or all of them: the distance to the bound.
        (ANSWERS, 1.0, 0.95, 0.98, 200, 0.02),
        (COSINE, 0.9123, 1.0, 0.9, 20, 0.0123),
        # A bound that is half of all or more below says nothing of a share.
        (COSINE, 1.0, 1.0, 0.5, 20, 0.001 / 20),
        (COSINE, 1.0, 1.0, 0.51, 20, 0.49),
        (COSINE, 0.0, 0.55, -0.7, 30, 0.449 / 30),
        (COSINE, 0.51, 0.55, -0.2, 30, 0.449 / 30),
        (COSINE, 0.51, 0.0, -0.2, 30, 0.999 / 30),
        (COSINE, 0.51, 0.5, -0.2, 31, 0.499 / 31),
        # Of what is no share it does.
        (COSINE, 1.5, 1.0, 0.8, 30, 0.7),
        (COSINE, 0.5, 1.55, -0.2, 31, 0.7),
        (COSINE, 1.5, 1.0, -math.inf, 31, 0.001 / 31),
        # One sample, and none.
        (COSINE, 0.9995, 1.0, -math.inf, 1, 0.001),
        (COSINE, 0.9995, 1.0, -math.inf, 0, 0.001),
    ],
)
def test_by_how_much_chance_may_move_a_score(
    budget: Budget, value: float, base: float, low: float, samples: int, step: float
) -> None:
    score = Score("m", value, base, low, math.inf, samples)
    assert compute_resolution(score, budget) == pytest.approx(step)


@pytest.mark.parametrize(
    ("ratio", "part", "word"),
    [
        (Interval(0.28, 0.03, 2.6), "search", Outcome.ROUGH),
        (Interval(0.6, 0.0, math.inf), "search", Outcome.ROUGH),
        (Interval(0.28, 0.03, 2.6), "final", Outcome.LEVEL),
        (Interval(0.97, 0.93, 1.01), "search", Outcome.LEVEL),
        (Interval(0.28, 0.2, 0.4), "search", Outcome.FASTER),
    ],
)
def test_what_was_timed_too_briefly_to_tell_is_not_called_no_faster(
    ratio: Interval, part: str, word: Outcome
) -> None:
    trial = replace(final(PLAIN, 0.5), ratio=ratio, part=part, measurement=None)
    assert classify_outcome(trial) is word


def test_an_undecided_finalist_is_not_handed_out_and_what_a_search_saw_may_become_one() -> None:
    seen = trial("aa11" * 4, LOSSY, 0.5, verdict=Verdict.UNDECIDED)
    judged = replace(seen, part="final")
    likely = replace(judged, scores=(replace(judged.scores[0], verdict=Verdict.LIKELY),))
    assert [is_accepted(t, strict=False) for t in (seen, judged, likely)] == [True, False, True]
    assert not any(is_accepted(t, strict=True) for t in (seen, judged, likely))
    assert select_winner([judged], baseline(), strict=False) is None
    assert select_winner([judged, likely], baseline(), strict=False) == likely


def test_a_score_that_is_read_again_is_the_same_where_a_figure_is_not_known() -> None:
    """From Python 3.13 on a dataclass compares field by field, and no NaN is another."""
    one, two = (Score("snr", 60.0, float("nan"), -math.inf, math.inf, 4) for _ in range(2))
    assert one == two and hash(one) == hash(two)
    assert one != replace(one, value=float("nan")) and one != replace(one, base=0.0)
