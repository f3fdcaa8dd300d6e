"""Which finalist wins."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.studies import CLEAN, FACTS, baseline, changed, job, study, trial

from ortune.backends.cpu import Cpu
from ortune.core.acceptance import Goal, Outcome, classify_outcome
from ortune.core.plugins import codec
from ortune.core.study import Ending, Header, Study
from ortune.core.trial import BESIDE, Interval, Plan, Status, Trial, Verdict
from ortune.core.wording import describe_verdict, format_apart


def final(key: str, backend: Cpu, ratio: float) -> Trial:
    interval = Interval(ratio, ratio - 0.01, ratio + 0.01)
    return replace(trial(key, Plan(CLEAN, backend), ratio), part="final", ratio=interval)


def test_when_all_finalists_fall_the_original_stays_however_the_search_ended(
    tmp_path: Path,
) -> None:
    made = study(tmp_path)
    *others, finalist = made.trials
    fell = replace(finalist, ratio=Interval(0.99, 0.97, 1.01))
    for finished in ("done", "time", "interrupted", "target"):
        kept = changed(made, trials=(*others, fell), finished=finished)
        assert kept.best is kept.baseline
        assert not kept.unconfirmed, "its plan was measured again, and fell"
        cut = changed(made, trials=tuple(others), finished=finished)
        assert cut.best is cut.baseline
        listed = [trial.key for trial in cut.unconfirmed]
        assert listed == ([finalist.key] if finished in ("time", "interrupted") else [])
        assert not cut.is_confirmed(cut.trials[1]) and cut.is_confirmed(cut.best)
    assert made.is_confirmed(finalist) and not made.is_confirmed(made.trials[1])


def test_what_would_not_beat_the_best_is_not_listed_as_unconfirmed(tmp_path: Path) -> None:
    made = changed(study(tmp_path), finished="time")
    other = replace(made.trials[1], key="0dd" * 5 + "0")
    for ratio, listed in ((Interval(0.5, 0.4, 0.6), True), (Interval(0.6, 0.5, 0.7), False)):
        more = changed(made, trials=(*made.trials, replace(other, ratio=ratio)))
        assert bool(more.unconfirmed) is listed


@given(st.lists(st.tuples(st.floats(0.3, 1.5), st.floats(0.0, 0.5)), max_size=4), st.booleans())
def test_no_study_claims_and_is_too_noisy(ratios: list[tuple[float, float]], noisy: bool) -> None:
    finals = tuple(
        replace(
            final(f"{k}" * 16, Cpu(threads=k + 1), 1.0),
            ratio=Interval(value, value * math.exp(-half), value * math.exp(half)),
        )
        for k, (value, half) in enumerate(ratios)
    )
    header = Header(job(names=()), FACTS)
    made = Study("run", header, (baseline(), *finals), Ending(too_noisy=noisy))
    claimed = made.best is not made.baseline or any(t.ratio and t.ratio.clear for t in finals)
    assert not (claimed and made.too_noisy)
    assert made.too_noisy is (noisy and not claimed)
    for one in finals:
        word = classify_outcome(one)
        assert one.ratio is not None
        if not one.ratio.clear:
            assert word is Outcome.LEVEL
            assert describe_verdict(one) not in ("slower", "faster")


def test_a_run_from_before_regions_may_have_them() -> None:
    """It goes on as a search that is begun now."""
    before = codec.encode(Header(job(names=()), FACTS))
    del before["by_region"]
    assert codec.decode(Header, before).by_region


def test_counts_are_by_the_interval_that_is_shown(tmp_path: Path) -> None:
    made = study(tmp_path)
    sorted_out = replace(
        made.trials[1], key="0dd" * 5 + "0", status=Status.SLOWER, ratio=Interval(1.1, 0.99, 1.2)
    )
    found = changed(made, trials=(*made.trials, sorted_out), untried=7).counts
    assert found[Outcome.UNTRIED] == 7
    assert found[Outcome.LEVEL] == 1
    assert found[Outcome.SLOWER] == made.counts[Outcome.SLOWER] == 1


def searched(tmp_path: Path, *finals: Trial, **changes: Any) -> Study:
    """A study whose search found the tuned model and whose finalists are given."""
    made = study(tmp_path)
    trials = (*(t for t in made.trials if t.part == "search"), *finals)
    return changed(made, trials=trials, **changes)


FOUND = Plan(CLEAN, Cpu(threads=1))


class TestBest:
    @pytest.mark.parametrize("finished", ["done", "time", "interrupted", "target"])
    def test_nothing_unconfirmed_is_handed_out(self, tmp_path: Path, finished: str) -> None:
        made = searched(tmp_path, finished=finished)
        assert made.best == made.baseline == made.trials[0]

    def test_the_finalist_is_handed_out_that_holds(self, tmp_path: Path) -> None:
        good, level = final("aa11" * 4, Cpu(threads=1), 0.6), final("ee55" * 4, Cpu(), 0.995)
        made = searched(tmp_path, good, level)
        assert made.best == good and made.final == (good, level)
        assert searched(tmp_path, level).best == made.baseline
        unsure = replace(good, scores=(replace(good.scores[0], verdict=Verdict.LIKELY),))
        assert searched(tmp_path, unsure).best == unsure
        assert searched(tmp_path, unsure, strict=True).best == made.baseline

    def test_confirmed_are_finalists_that_hold_and_the_original(self, tmp_path: Path) -> None:
        good = final("aa11" * 4, Cpu(threads=1), 0.6)
        made = searched(tmp_path, good)
        assert made.is_confirmed(good) and made.is_confirmed(made.baseline)
        assert not made.is_confirmed(replace(good, part="search"))
        assert not made.is_confirmed(replace(good, ratio=Interval(0.9, 0.8, 1.1)))
        assert not made.is_confirmed(replace(good, status=Status.FAILS))

    def test_what_is_wanted_says_which_of_them_is_handed_out(self, tmp_path: Path) -> None:
        quick = replace(final("aa11" * 4, Cpu(threads=1), 0.6), size=9_000_000)
        small = replace(final("ee55" * 4, Cpu(), 1.0), size=1_000_000)
        made = searched(tmp_path, quick, small)
        by_size = changed(made, job=replace(made.job, wanted=Goal("size")))
        assert made.best == quick and not made.is_confirmed(small)
        assert by_size.best == small and by_size.is_confirmed(small)
        assert by_size.is_confirmed(quick), "a finalist that is faster may still be packed"
        assert not by_size.is_confirmed(replace(quick, ratio=Interval(1.0, 0.9, 1.1)))

    def test_a_trial_is_accepted_where_it_ran_and_kept_the_budget(self, tmp_path: Path) -> None:
        good = final("aa11" * 4, Cpu(threads=1), 0.6)
        made = searched(tmp_path, good)
        assert made.accepts(good) is True
        assert made.accepts(replace(good, status=Status.FAILS)) is False


class TestUnconfirmed:
    def test_by_size_the_smallest_come_first_and_larger_ones_not_at_all(
        self, tmp_path: Path
    ) -> None:
        sizes = {"e1": 2_000_000, "e2": 1_000_000, "e3": 9_000_000}
        more = [replace(trial(k * 8, FOUND, 0.7), size=n) for k, n in sizes.items()]
        made = searched(tmp_path, finished="time")
        made = replace(made, trials=(made.trials[0], *more))
        made = changed(made, job=replace(made.job, wanted=Goal("size")))
        assert [t.key[:2] for t in made.unconfirmed] == ["e2", "e1"]

    def test_a_search_that_was_cut_off_names_what_looked_faster(self, tmp_path: Path) -> None:
        slow, fast = (trial(key, FOUND, r) for key, r in (("e1" * 8, 0.8), ("e2" * 8, 0.3)))
        level = replace(trial("e3" * 8, FOUND, 0.5), ratio=Interval(0.5, 0.4, 1.0))
        for finished, named in (
            *((word, ["e2" * 8, "aa11" * 4, "e1" * 8]) for word in ("time", "interrupted")),
            *((word, []) for word in ("done", "target")),
        ):
            made = searched(tmp_path, finished=finished)
            made = replace(made, trials=(*made.trials, slow, fast, level))
            assert [t.key for t in made.unconfirmed] == named

    @pytest.mark.parametrize(("value", "named"), [(0.24, True), (0.86, True), (0.9, False)])
    def test_a_lone_block_counts_by_its_estimate(
        self, tmp_path: Path, value: float, named: bool
    ) -> None:
        lone = trial("e1" * 8, FOUND, value)
        lone = replace(lone, ratio=Interval(value, 0.0, math.inf), effort="screen")
        made = searched(tmp_path, finished="interrupted")
        made = replace(made, trials=(made.trials[0], lone))
        assert made.unconfirmed == ((lone,) if named else ())
        assert made.best is made.baseline and not made.is_confirmed(lone)

    def test_equally_fast_ones_come_as_they_were_tried(self, tmp_path: Path) -> None:
        made = searched(tmp_path, finished="time")
        two = tuple(trial(key, FOUND, 0.3) for key in ("e1" * 8, "e2" * 8))
        made = replace(made, trials=(*made.trials, *two))
        assert made.unconfirmed[:2] == two

    def test_what_was_measured_again_or_is_no_faster_than_the_best_is_not_named(
        self, tmp_path: Path
    ) -> None:
        fast, slow = trial("e1" * 8, FOUND, 0.3), trial("e2" * 8, FOUND, 0.6)
        made = searched(tmp_path, final("aa11" * 4, Cpu(threads=1), 0.6), finished="time")
        assert made.unconfirmed == ()
        assert replace(made, trials=(*made.trials, fast, slow)).unconfirmed == (fast,)


class TestTooNoisy:
    def test_without_a_claim_it_is_as_was_concluded(self, tmp_path: Path) -> None:
        level = final("aa11" * 4, Cpu(threads=1), 0.995)
        for finals in ((), (level,), (replace(level, ratio=None),)):
            assert searched(tmp_path, *finals, too_noisy=True).too_noisy
            assert not searched(tmp_path, *finals).too_noisy


def test_every_plan_counts_once_by_its_last_word_and_the_original_not_at_all(
    tmp_path: Path,
) -> None:
    made = searched(tmp_path, final("aa11" * 4, Cpu(threads=1), 0.995), untried=4)
    assert {str(kind): n for kind, n in made.counts.items()} == {
        "faster within the budget": 0,
        "no faster (within noise)": 1,
        "measured once": 0,
        "without an interval, as its runs waited for a CPU": 0,
        "timed on an emulated CPU, which claims nothing": 0,
        "slower": 1,
        "not scored": 0,
        "outside the accuracy budget": 1,
        "failed": 1,
        "cut short from outside": 0,
        "too large": 0,
        "not tried": 4,
    }
    assert searched(tmp_path).counts[Outcome.FASTER] == 1
    assert searched(tmp_path).counts[Outcome.UNTRIED] == 0


def test_what_only_stands_beside_the_search_is_neither_counted_nor_promising(
    tmp_path: Path,
) -> None:
    fast = trial("e1" * 8, FOUND, 0.3)
    made = searched(tmp_path, finished="time")
    for stage, named in (("runtime", 1), (BESIDE, 0)):
        more = replace(made, trials=(*made.trials, replace(fast, stage=stage)))
        assert sum(t.key == fast.key for t in more.promising) == named
        assert sum(more.counts.values()) - sum(made.counts.values()) == named


def test_a_trial_is_found_by_the_start_of_its_key_the_final_one_before_the_other(
    tmp_path: Path,
) -> None:
    good = final("aa11" * 4, Cpu(threads=1), 0.6)
    made = searched(tmp_path, good)
    assert made.find("aa1") == good
    assert made.find("bb") == made.trials[2]
    assert made.find("ff") is None


def test_the_front_trades_latency_for_score(tmp_path: Path) -> None:
    made = searched(tmp_path)
    points = ((0.3, 0.99), (0.5, 0.999), (0.6, 0.999), (0.5, 0.99), (0.7, 1.0), (0.8, 0.98))
    trials = [trial(f"{at}" * 16, FOUND, r, value=v) for at, (r, v) in enumerate(points)]
    broken = replace(trial("8" * 16, FOUND, 0.1), error="it crashed")
    made = replace(made, trials=(*trials, broken, replace(trials[0], ratio=None, key="9" * 16)))
    assert [t.key[0] for t in made.front()] == ["0", "1", "4"]
    again = replace(trials[0], ratio=Interval(0.9, 0.8, 0.95))
    made = replace(made, trials=(*made.trials, again))
    assert [t.key[0] for t in made.front()] == ["1", "4"], "the last measurement counts"


def test_of_equal_points_one_is_on_the_front_and_what_has_no_score_is_not(tmp_path: Path) -> None:
    made = searched(tmp_path)
    two = tuple(trial(key, FOUND, 0.5) for key in ("e1" * 8, "e2" * 8))
    unscored = replace(trial("e3" * 8, FOUND, 0.1), scores=())
    lone = replace(trial("e4" * 8, FOUND, 0.1), ratio=Interval(0.1, 0.0, math.inf))
    assert replace(made, trials=(*two, unscored, lone)).front() == two[:1]


def test_a_study_says_what_its_header_and_its_ending_hold(tmp_path: Path) -> None:
    made = changed(study(tmp_path), advice=("pin the clock",), strict=True)
    header, ending = made.header, made.ending
    told = (made.job, made.command, made.models, made.budget)
    assert told == (header.job, header.command, header.models, header.job.budget)
    concluded = (made.finished, made.history, made.noise, made.notes, made.advice, made.strict)
    assert concluded == (
        *(ending.finished, ending.history, ending.noise, ending.notes, ending.advice),
        ending.strict,
    )
    assert made.samples == {"calibration": 16, "search": 32, "final": 32}


def test_speed_up_is_the_inverse_of_the_ratio(tmp_path: Path) -> None:
    made = searched(tmp_path)
    measured = final("aa11" * 4, Cpu(), 0.5)
    assert made.speedup(measured) == Interval(2.0, 1 / 0.51, 1 / 0.49)
    assert made.speedup(replace(made.baseline, ratio=None)) == Interval(1.0, 1.0, 1.0)
    assert math.isnan(made.speedup(replace(measured, ratio=None)).value)
    nothing = made.speedup(replace(measured, ratio=Interval(0.0, 0.0, 0.0)))
    assert nothing.value == math.inf, "a run that somebody forged"
    assert made.predict_speedup(measured) is None
    foreseen = made.predict_speedup(replace(measured, predicted=Interval(0.5, 0.4, 0.8)))
    assert foreseen == Interval(2.0, 1.25, 2.5)


def test_a_study_shows_its_winner_and_a_row_a_trial(tmp_path: Path) -> None:
    made = study(tmp_path)
    shown = repr(made).splitlines()
    assert shown[0] == "Study"
    assert "optimized graph · 1 thread" in shown[2]
    assert shown[9].split()[:3] == ["plan", "part", "status"]
    assert len(shown) == 9 + 1 + len(made.trials) + 1, "a line a trial; no samples, no reasons"
    rows = made.records()
    assert [row["plan"] for row in rows] == [str(trial.plan) for trial in made.trials]
    assert rows[-1]["part"] == "final"
    assert rows[-1]["ratio"] == 0.52
    page = made._repr_html_()
    assert page.count("<tr>") >= 1 + len({trial.key for trial in made.trials})


def test_a_score_and_a_bound_that_differ_are_shown_as_different() -> None:
    assert format_apart(0.91, 0.99) == ("0.91", "0.99")
    assert format_apart(0.999987, 0.99999) == ("0.999987", "0.99999")
    assert format_apart(0.5, 0.5) == ("0.5", "0.5")
