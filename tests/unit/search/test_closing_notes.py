"""What a search concludes beside its winner: what longer timing would find, and the machine."""

import math
from dataclasses import replace

import pytest
from tests.unit.studies import CLEAN, baseline, trial

from ortune.backends.cpu import Cpu
from ortune.core.acceptance import Outcome, classify_outcome
from ortune.core.trial import Block, Burst, Interval, Measurement, Pair, Plan, Trial
from ortune.measurement.machine import noise
from ortune.measurement.timing import stats
from ortune.search.closing_notes import assess_machine, list_notes
from ortune.search.experiment import measure

QUIET = noise.Record(10, 4, 1.0, 0.0, 0.0, 0.0, 0, 0.0, 0.0, 100, (2600, 2600), 50, (1.0,), {})
LEVEL, FASTER = Interval(1.0, 0.99, 1.01), Interval(0.5, 0.49, 0.51)
UNREAD = -1.0


def pair(log: float, waited: float = UNREAD) -> Pair:
    """A pair whose six blocks all say the same."""
    one, two = (Burst((ns,) * 4, (waited,) * 4) for ns in (10**6, round(10**6 * math.exp(log))))
    return Pair((Block(one, two),) * 6)


def timed(of: Trial, *logs: float, waited: float = UNREAD) -> Trial:
    return replace(of, measurement=Measurement(tuple(pair(log, waited) for log in logs), 1, 1, 1))


def final(width: float, seconds: float, ratio: Interval | None = LEVEL, key: str = "a") -> Trial:
    """A finalist whose five pairs are apart by so much."""
    made = timed(trial(key * 16, Plan(CLEAN, Cpu()), 1.0), -width, width, -width, width, 0.0)
    return replace(made, part="final", ratio=ratio, seconds=seconds)


def said(*finals: Trial) -> str:
    trials = [baseline(), *finals]
    return "".join(list_notes(trials, trials, finals))


class TestLonger:
    @pytest.mark.parametrize(("width", "needed"), [(0.0157, 5), (0.017, 6), (0.02, 8)])
    def test_more_pairs_are_asked_for_only_where_five_do_not_do(
        self, width: float, needed: int
    ) -> None:
        one = final(width, 20.0)
        assert stats.pairs_for(measure.pool_variance([baseline(), one])) == needed
        enough = needed <= stats.PAIRS
        assert bool(said(one)) is not enough
        assert enough or f"3 % needs {needed} pairs ({4 * needed} s)" in said(one)
        assert enough or "with 5 process pairs (20 s)" in said(one)

    def test_nothing_is_asked_for_where_every_finalist_is_told_from_the_original(self) -> None:
        assert said(final(0.02, 20.0, FASTER)) == ""
        assert said() == ""

    def test_one_that_is_level_is_enough_and_what_died_counts_for_nothing(self) -> None:
        died = replace(final(0.5, 900.0, None, "d"), measurement=None)
        quick = final(0.02, 22.5, FASTER, "b")
        assert classify_outcome(died) is Outcome.FAILED
        text = said(quick, died, final(0.02, 27.5))
        assert "with 5 process pairs (25 s)" in text, "their mean"
        assert said(died, quick) == ""

    @pytest.mark.parametrize(
        ("seconds", "asked"),
        [(56.25, "3 % needs 8 pairs (90 s)"), (57.5, "3 % needs more than 90 s per finalist")],
    )
    def test_ninety_seconds_are_worth_asking_for(self, seconds: float, asked: str) -> None:
        assert asked in said(final(0.02, seconds))

    def test_where_no_number_of_pairs_does_it_says_what_those_had_find(self) -> None:
        assert stats.pairs_for(measure.pool_variance([final(0.1, 10.0)])) is None
        assert said(final(0.1, 10.0)) == (
            "not enough measurements: with 5 process pairs (10 s) the smallest detectable "
            "difference is 20 %; 3 % needs more than 90 s per finalist"
        )


class TestMachine:
    def test_a_quiet_one_is_trusted_and_its_readings_are_told(self) -> None:
        first = timed(replace(baseline(), stage="baseline"), 0.003, waited=0.0)
        finals = [timed(final(0.0, 9.0), *[0.001] * 5, waited=0.0)]
        readings, judged = assess_machine([first, *finals], finals, QUIET)
        assert judged == noise.Judgement(False, ())
        assert readings["runs that waited for a CPU"] == "0.0 %"
        assert QUIET.format_readings().items() <= readings.items()
        reach = 100 * stats.half_width(measure.pool_variance([first, *finals]))
        assert readings["smallest error of a speed-up here"] == f"{reach:.1f} %"
        assert first.measurement is not None and finals[0].measurement is not None
        learnt = stats.PooledVariance.pool([finals[0].measurement.pairs])
        equal = str(stats.latency_ratio(first.measurement.pairs, learnt=learnt))
        assert readings["original timed against itself (A/A ratio)"] == equal
        assert equal != str(stats.latency_ratio(first.measurement.pairs))

    def test_what_was_not_measured_has_no_reading(self) -> None:
        bare = replace(baseline(), measurement=None)
        died = replace(final(0.0, 9.0, None), measurement=None)
        readings, judged = assess_machine([bare, died], [died], QUIET)
        assert readings["runs that waited for a CPU"] == "not readable here"
        assert "original timed against itself (A/A ratio)" not in readings
        assert not judged.too_noisy

    def test_runs_of_all_trials_may_be_disturbed(self) -> None:
        first = timed(baseline(), 0.0, waited=0.0)
        other = timed(trial("c" * 16, Plan(CLEAN, Cpu()), 1.0), 0.0, waited=0.9)
        readings, judged = assess_machine(
            [first, other, other], [], replace(QUIET, other_cpus=4.0)
        )
        assert readings["runs that waited for a CPU"] == "66.7 %"
        assert judged.too_noisy
        assert judged.advice[0].what.startswith("CPU was busy: 67 % of timed runs had to wait")

    def test_an_original_that_differs_from_itself_is_too_noisy(self) -> None:
        _, judged = assess_machine([timed(baseline(), 0.5)], [], QUIET)
        assert judged.too_noisy
        assert judged.advice[0].what.startswith("the original timed against itself should give 1")

    def test_pairs_that_differ_too_much_are_too_noisy_unless_something_is_claimed(self) -> None:
        for level, claimed in ((LEVEL, False), (None, False), (FASTER, True)):
            wide = [final(0.2, 9.0, level), final(0.2, 9.0, LEVEL, "b")]
            _, judged = assess_machine([timed(baseline(), 0.0), *wide], wide, QUIET)
            assert judged.too_noisy is not claimed
            assert judged.advice[0].what.startswith("differences below 2")

    def test_pairs_without_an_interval_are_too_noisy_though_most_runs_did_not_wait(self) -> None:
        """One side waits, the other has ten times as many runs, that fit into a time slice."""
        slow = Burst((9_000_000,) * 5, (0.667,) * 5, 1, alike=True)
        fast = Burst((750_000,) * 50, (0.0,) * 50, 1, alike=True)
        taken = Measurement((Pair((Block(slow, fast),) * 4),) * 5, 1, 1, 1)
        waited = replace(final(0.0, 9.0, LEVEL), measurement=taken)
        first = timed(baseline(), 0.0, waited=0.0)
        busy = replace(QUIET, other_cpus=1.0)
        readings, judged = assess_machine([first, waited], [waited], busy)
        assert readings["pairs without an interval, as their runs waited"] == "5 of 5"
        assert float(readings["runs that waited for a CPU"].split()[0]) < 10
        assert judged.too_noisy
        assert "5 of 5 process pairs have no interval" in judged.advice[0].what
