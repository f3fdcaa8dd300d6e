"""The lines and the board that events make."""

from __future__ import annotations

import io
import math
from dataclasses import replace

import pytest

from ortune.backends.cpu import Cpu
from ortune.cli.terminal import progress
from ortune.core.event import (
    Event,
    Note,
    StepDone,
    Timing,
    TrialDone,
    TrialStarted,
    Unconfirmed,
)
from ortune.core.step import AS_IS, Edit, Recipe
from ortune.core.trial import Interval, Plan, Score, Status, Trial, Verdict

PLAN = Plan(Recipe("clean"), Cpu())
FAST = Trial(
    "k",
    PLAN,
    "search",
    Status.OK,
    Interval(0.5, 0.4, 0.625),
    (Score("top1", 0.99, 0.991, 0.98, 1.0, 500, Verdict.PROVED),),
)


def test_a_finished_trial_is_one_line() -> None:
    text = progress.describe(TrialDone(FAST), place="[2/9]")
    assert text == "[2/9] clean @ cpu: ok, 2.00x [1.60, 2.50], top1 0.99 proved"


LONE = Interval(0.25, 0.0, math.inf)
"""Of a single block."""


def test_a_lone_block_is_shown_without_its_interval() -> None:
    text = progress.describe(TrialDone(replace(FAST, ratio=LONE)))
    assert text == "clean @ cpu: ok, about 4.00x, top1 0.99 proved"
    two = progress.describe(Unconfirmed(replace(FAST, ratio=Interval(0.5, 0.02, 12.5))))
    assert two == "first within the budget, unconfirmed: clean @ cpu, about 2.00x"


def test_what_was_screened_is_the_best_so_far_until_another_is() -> None:
    board = progress.Board(60)
    board.take(TrialDone(replace(FAST, ratio=replace(LONE, value=1.1))))
    assert board.best() == "the original"
    board.take(TrialDone(replace(FAST, ratio=LONE)))
    assert board.best() == "about 4.00x, unconfirmed, clean @ cpu"
    board.take(TrialDone(replace(FAST, ratio=Interval(1.01, 0.99, 1.03))))
    assert board.best() == "the original", "it was timed for longer, and fell"


def test_a_loser_says_why() -> None:
    slow = Interval(1.7, 1.6, 1.8)
    lost = replace(FAST, status=Status.SLOWER, ratio=slow, why="101 ms against 58 ms\nmore")
    assert progress.describe(TrialDone(lost)).endswith("proved, 101 ms against 58 ms")


def test_what_the_search_sorts_out_is_called_slower_only_beyond_the_noise() -> None:
    sorted_out = replace(FAST, status=Status.SLOWER, ratio=Interval(1.07, 0.99, 1.15))
    sorted_out = replace(sorted_out, scores=(), why="slower: 1.07 times the original's latency")
    text = progress.describe(TrialDone(sorted_out))
    assert text == "clean @ cpu: no faster beyond the noise, 0.93x [0.87, 1.01]"


def test_a_cached_trial_says_so() -> None:
    assert progress.describe(TrialDone(FAST, cached=True)).endswith("(from the ledger)")


def test_a_failed_trial_shows_its_error() -> None:
    failed = Trial("k", PLAN, "search", Status.FAILED, error="killed by SIGSEGV")
    assert progress.describe(TrialDone(failed)) == "clean @ cpu: failed, killed by SIGSEGV"


def test_steps_and_starts_are_for_verbose() -> None:
    step = StepDone(Edit("simplify", 3, seconds=0.25))
    start = TrialStarted(PLAN, "search", 1, 4)
    assert progress.describe(step) == progress.describe(start) == ""
    assert progress.describe(step, verbose=True) == "  simplify: 3 edits, 0.2 s"
    rolled = StepDone(Edit("simplify", 0, kept=False, note="numbers changed"))
    assert "rolled back: numbers changed" in progress.describe(rolled, verbose=True)
    assert "clean @ cpu" in progress.describe(start, verbose=True)


def test_timing_makes_no_line() -> None:
    assert progress.describe(Timing(Interval(1, 1, 1), 3), verbose=True) == ""


def test_notes_and_warnings() -> None:
    assert progress.describe(Note("seen")) == "seen"
    assert progress.describe(Note("seen", warning=True)) == "warning: seen"


def test_lines_carry_the_place_of_the_trial(capsys: pytest.CaptureFixture[str]) -> None:
    sink = progress.lines(verbose=False)
    sink(TrialStarted(PLAN, "final", 1, 2))
    sink(TrialDone(FAST))
    got = capsys.readouterr()
    assert got.out == ""
    assert got.err.startswith("[final 1/2] clean @ cpu: ok")


def test_what_explains_the_winner_is_called_that(capsys: pytest.CaptureFixture[str]) -> None:
    sink = progress.lines(verbose=False)
    sink(TrialStarted(PLAN, "final", 1, 1))
    sink(TrialDone(FAST))
    sink(TrialStarted(PLAN, "history", 1, 0))
    sink(TrialDone(FAST, cached=True))
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("[history] clean @ cpu: ok") and last.endswith("(from the ledger)")


def test_what_had_nothing_to_change_says_so_once() -> None:
    why = "nothing to change, not tried"
    left = Trial("k", PLAN, "search", Status.UNCHANGED, why=why)
    assert progress.describe(TrialDone(left), place="[history]") == f"[history] clean @ cpu: {why}"
    assert progress.describe(TrialDone(replace(left, why=""))) == "clean @ cpu: not tried"


def test_the_board_keeps_the_best() -> None:
    board = progress.Board(60)
    assert board.best() == "the original"
    board.take(TrialDone(FAST))
    other = Plan(AS_IS, Cpu(threads=1))
    slower = replace(FAST, key="o", plan=other, ratio=Interval(0.8, 0.7, 0.9))
    board.take(TrialDone(slower))
    board.take(TrialDone(replace(slower, status=Status.FAILS, ratio=Interval(0.1, 0.1, 0.1))))
    assert board.best() == "2.00x [1.60, 2.50], unconfirmed, clean @ cpu"


def test_the_board_does_not_take_noise_for_a_gain() -> None:
    board = progress.Board(60)
    board.take(TrialDone(replace(FAST, ratio=Interval(0.9, 0.7, 1.1))))
    assert board.best() == "the original"


def test_a_final_measurement_replaces_the_same_plan_in_search() -> None:
    board = progress.Board(60)
    board.take(TrialDone(FAST))
    board.take(TrialDone(replace(FAST, part="final", ratio=Interval(0.8, 0.75, 0.85))))
    assert board.best() == "1.25x [1.18, 1.33], clean @ cpu"


def test_what_falls_as_a_finalist_is_not_the_best_any_more() -> None:
    board = progress.Board(60)
    board.take(TrialDone(FAST))
    board.take(TrialDone(replace(FAST, part="final", status=Status.FAILS)))
    assert board.best() == "the original"


def test_the_first_plan_within_the_budget_is_told_as_unconfirmed() -> None:
    text = progress.describe(Unconfirmed(FAST))
    assert text == "first within the budget, unconfirmed: clean @ cpu, 2.00x [1.60, 2.50]"


def test_time_left_ends_at_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    board = progress.Board(60, _start=now)
    assert board.left() == 60
    now = 500.0
    assert board.left() == 0
    assert progress.Board(None).left() is None


def test_the_board_draws_what_it_knows() -> None:
    from rich.console import Console

    board = progress.Board(180)
    board.take(TrialStarted(PLAN, "search", 3, 9))
    board.take(Timing(Interval(0.5, 0.4, 0.625), 6))
    out = Console(width=120, record=True, file=io.StringIO())
    out.print(board.render())
    text = out.export_text()
    assert "[3/9] 2.00x [1.60, 2.50] after 6 blocks, clean @ cpu" in text
    assert "the original" in text


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (61.4, "1:01"), (-3, "0:00")])
def test_clock(seconds: float, text: str) -> None:
    assert progress.clock(seconds) == text


def test_held_notes_are_told_behind_the_work_and_never_before_an_error() -> None:
    told: list[Event] = []
    with progress.held(told.append) as sink:
        sink(Note("made up: x"))
        assert not told
    assert told == [Note("made up: x")]
    with pytest.raises(ValueError), progress.held(told.append) as sink:
        sink(Note("made up: y"))
        raise ValueError
    assert told == [Note("made up: x")]


def test_verbose_holds_nothing_back() -> None:
    told: list[Event] = []
    with progress.held(told.append, verbose=True) as sink:
        sink(Note("made up: x"))
        assert told
