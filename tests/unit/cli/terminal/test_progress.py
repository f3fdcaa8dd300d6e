"""The lines and the board that events make."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from rich.cells import cell_len

from ortune.backends.cpu import Cpu
from ortune.cli.terminal import progress as shown
from ortune.core.event import (
    Event,
    Note,
    Progress,
    StepDone,
    TimeLeft,
    Timing,
    TrialDone,
    TrialStarted,
    Unconfirmed,
)
from ortune.core.progress import board as progress
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
    board = progress.Board()
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
    start = TrialStarted(PLAN, "search")
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


def plain(verbose: bool = False) -> shown.Display:
    return shown.Display(live=False, verbose=verbose)


def test_lines_carry_one_counter_and_the_time_left(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    sink = plain().take
    sink(TimeLeft(180))
    sink(TrialStarted(PLAN, "baseline"))
    sink(TrialDone(FAST))
    for seconds, stage in ((10, "screen"), (20, "search"), (60, "rescue"), (170, "final")):
        now = 100.0 + seconds
        sink(TrialStarted(PLAN, stage))
        sink(TrialDone(FAST))
    sink(TrialStarted(PLAN, "history"))
    sink(TrialDone(FAST, cached=True))
    got = capsys.readouterr()
    assert got.out == ""
    starts = [line.partition(" clean")[0] for line in got.err.splitlines()]
    assert starts == [
        "[3:00 left] baseline:",
        "[1, 2:50 left] screen:",
        "[2, 2:40 left] search:",
        "[3, 2:00 left] rescue:",
        "[4, 0:10 left] final:",
        "[5, 0:10 left] history:",
    ]
    assert got.err.splitlines()[-1].endswith("(from the ledger)")


def test_a_log_gets_a_line_of_progress_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    sink = plain().take
    for done in range(25):
        now = float(done)
        sink(Progress("timing", done, 25))
    assert capsys.readouterr().err.splitlines() == [
        "timing: 44 %, 0:14 left",
        "timing: 88 %, 0:03 left",
    ]


def test_work_of_unknown_length_says_how_long_it_has_taken() -> None:
    board = progress.Board()
    board.take(Progress("evaluating", 7))
    assert board.line() == "evaluating: 0:00 so far"
    assert board.render(80) == ["─" * 30 + " evaluating: 0:00 so far"]


def test_parts_of_a_plan_do_not_hide_the_plan() -> None:
    board = progress.Board()
    board.take(TrialStarted(PLAN, "search"))
    board.take(Progress("calibrating", 1, 2))
    assert board.line() == "[1] search: clean @ cpu"


def test_what_had_nothing_to_change_says_so_once() -> None:
    why = "nothing to change, not tried"
    left = Trial("k", PLAN, "search", Status.UNCHANGED, why=why)
    text = progress.describe(TrialDone(left), place="[3] history:")
    assert text == f"[3] history: clean @ cpu: {why}"
    assert progress.describe(TrialDone(replace(left, why=""))) == "clean @ cpu: not tried"


def test_the_board_keeps_the_best() -> None:
    board = progress.Board()
    assert board.best() == "the original"
    board.take(TrialDone(FAST))
    other = Plan(AS_IS, Cpu(threads=1))
    slower = replace(FAST, key="o", plan=other, ratio=Interval(0.8, 0.7, 0.9))
    board.take(TrialDone(slower))
    board.take(TrialDone(replace(slower, status=Status.FAILS, ratio=Interval(0.1, 0.1, 0.1))))
    assert board.best() == "2.00x [1.60, 2.50], unconfirmed, clean @ cpu"


def test_the_board_does_not_take_noise_for_a_gain() -> None:
    board = progress.Board()
    board.take(TrialDone(replace(FAST, ratio=Interval(0.9, 0.7, 1.1))))
    assert board.best() == "the original"


def test_a_final_measurement_replaces_the_same_plan_in_search() -> None:
    board = progress.Board()
    board.take(TrialDone(FAST))
    board.take(TrialDone(replace(FAST, part="final", ratio=Interval(0.8, 0.75, 0.85))))
    assert board.best() == "1.25x [1.18, 1.33], clean @ cpu"


def test_what_falls_as_a_finalist_is_not_the_best_any_more() -> None:
    board = progress.Board()
    board.take(TrialDone(FAST))
    board.take(TrialDone(replace(FAST, part="final", status=Status.FAILS)))
    assert board.best() == "the original"


def test_the_first_plan_within_the_budget_is_told_as_unconfirmed() -> None:
    text = progress.describe(Unconfirmed(FAST))
    assert text == "first within the budget, unconfirmed: clean @ cpu, 2.00x [1.60, 2.50]"


def test_time_left_ends_at_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    board = progress.Board()
    assert board.left() is None
    board.take(TimeLeft(60))
    assert board.left() == 60
    now = 500.0
    assert board.left() == 0


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_board_keeps_its_width_and_breaks_no_word(width: int) -> None:
    board = progress.Board()
    board.take(TimeLeft(180))
    long = Plan(Recipe("clean+int8-static(observer=percentile(p=99.9), per_channel=True)"), Cpu())
    board.take(TrialStarted(long, "rescue"))
    board.take(Timing(Interval(0.5, 0.4, 0.625), 6))
    board.take(TrialDone(replace(FAST, plan=long)))
    board.take(TrialStarted(long, "final"))
    lines = board.render(width)
    assert max(map(cell_len, lines)) <= width
    text = " ".join(" ".join(lines).split())
    assert f"[2, 3:00 left] final: {long}" in text
    assert f"best so far: 2.00x [1.60, 2.50], unconfirmed, {long}" in text


def test_a_terminal_shows_the_board_and_takes_it_away(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("FORCE_COLOR", "1")
    live = shown.Display(live=True)
    live.take(Progress("timing", 1, 2))
    live.take(Note("a note"))
    live.take(Progress("timing", 2, 2))
    live.clear()
    err = capsys.readouterr().err
    assert "timing: 50 %" in err and "a note\n" in err and "timing: 100 %" in err


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (61.4, "1:01"), (-3, "0:00")])
def test_clock(seconds: float, text: str) -> None:
    assert progress.clock(seconds) == text


def test_held_notes_are_told_behind_the_work_and_never_before_an_error() -> None:
    told: list[Event] = []
    with shown.held(told.append) as sink:
        sink(Note("made up: x"))
        assert not told
    assert told == [Note("made up: x")]
    with pytest.raises(ValueError), shown.held(told.append) as sink:
        sink(Note("made up: y"))
        raise ValueError
    assert told == [Note("made up: x")]


def test_verbose_holds_nothing_back() -> None:
    told: list[Event] = []
    with shown.held(told.append, verbose=True) as sink:
        sink(Note("made up: x"))
        assert told
