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


LONE = Interval(0.25, 0.0, math.inf)
"""Of a single block."""
SLOW, LEVEL = Interval(1.7, 1.6, 1.8), Interval(1.07, 0.99, 1.15)
UNTRIED = Trial("k", PLAN, "search", Status.UNCHANGED, why="nothing to change, not tried")


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (TrialDone(FAST), "2.00x  clean @ cpu: top-1 0.99 (proved)"),
        (
            TrialDone(FAST, cached=True),
            "2.00x  clean @ cpu: top-1 0.99 (proved) (measured before)",
        ),
        (TrialDone(replace(FAST, ratio=LONE)), "~4.00x  clean @ cpu: top-1 0.99 (proved)"),
        (
            TrialDone(
                replace(FAST, status=Status.SLOWER, ratio=LEVEL, scores=(), why="slower: 1.07")
            ),
            "0.93x  clean @ cpu: no faster (within noise)",
        ),
        (
            TrialDone(Trial("k", PLAN, "search", Status.FAILED, error="killed by SIGSEGV")),
            "-  clean @ cpu: failed, killed by SIGSEGV",
        ),
        (TrialDone(UNTRIED), "-  clean @ cpu: nothing to change, not tried"),
        (Unconfirmed(FAST), "first faster plan, to be re-measured: 2.00x, clean @ cpu"),
        (
            Unconfirmed(replace(FAST, ratio=Interval(0.5, 0.02, 12.5))),
            "first faster plan, to be re-measured: ~2.00x, clean @ cpu",
        ),
        (Note("seen", warning=True), "warning: seen"),
        (Timing(Interval(1, 1, 1), 3), ""),
    ],
)
def test_an_event_is_one_line(event: Event, line: str) -> None:
    assert progress.describe_event(event) == progress.describe_event(event, verbose=True) == line


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (StepDone(Edit("simplify", 3, seconds=0.25)), "  simplify: 3 edits, 0.2 s"),
        (
            StepDone(Edit("simplify", 0, kept=False, note="numbers changed")),
            "  simplify: rolled back: numbers changed, 0.0 s",
        ),
        (TrialStarted(PLAN, "search"), "[2/9] clean @ cpu ..."),
    ],
)
def test_steps_and_starts_are_for_verbose(event: Event, line: str) -> None:
    assert progress.describe_event(event) == ""
    assert progress.describe_event(event, verbose=True, place="[2/9]") == line


OTHER = replace(FAST, key="o", plan=Plan(AS_IS, Cpu(threads=1)), ratio=Interval(0.8, 0.7, 0.9))
BEST = "2.00x clean @ cpu, not re-measured"


@pytest.mark.parametrize(
    ("trials", "best"),
    [
        ([], "the original"),
        ([replace(FAST, ratio=Interval(0.9, 0.7, 1.1))], "the original"),
        ([replace(FAST, ratio=replace(LONE, value=1.1))], "the original"),
        ([FAST, OTHER], BEST),
        ([FAST, replace(OTHER, status=Status.FAILS, ratio=Interval(0.1, 0.1, 0.1))], BEST),
        ([replace(FAST, ratio=LONE)], "~4.00x clean @ cpu, not re-measured"),
        (
            [replace(FAST, ratio=LONE), replace(FAST, ratio=Interval(1, 0.99, 1.03))],
            "the original",
        ),
        (
            [FAST, replace(FAST, part="final", ratio=Interval(0.8, 0.75, 0.85))],
            "1.25x clean @ cpu",
        ),
        ([FAST, replace(FAST, part="final", status=Status.FAILS)], "the original"),
    ],
)
def test_the_board_keeps_the_best_so_far(trials: list[Trial], best: str) -> None:
    board = progress.Board()
    for trial in trials:
        board.record_event(TrialDone(trial))
    assert board.describe_best() == best


def test_lines_carry_one_counter_and_the_time_left(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    sink = shown.Display(live=False).show_event
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
    starts = [line.partition("]")[0] + "]" for line in got.err.splitlines()]
    assert starts == [
        "[3:00 left]",
        "[1, 2:50 left]",
        "[2, 2:40 left]",
        "[3, 2:00 left]",
        "[4, 0:10 left]",
        "[5, 0:10 left]",
    ]
    assert got.err.splitlines()[-1].endswith("(measured before)")


def test_no_time_is_counted_down_that_a_long_set_up_gives_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    board = progress.Board()
    board.record_event(TimeLeft(60, may_restart=True))
    board.record_event(Progress("running samples", 7, 100))
    now = 190.0
    assert board.describe_progress() == "running samples: 1:30 so far"
    board.record_event(TrialStarted(PLAN, "baseline"))
    assert board.place == ""
    board.record_event(TimeLeft(60))
    assert board.place == "[1:00 left]"


def test_a_log_gets_a_line_of_progress_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    sink = shown.Display(live=False).show_event
    for done in range(25):
        now = float(done)
        sink(Progress("timing", done, 25))
    assert capsys.readouterr().err.splitlines() == [
        "timing: 44 %, 0:14 left",
        "timing: 88 %, 0:03 left",
    ]


def test_work_of_unknown_length_says_how_long_it_has_taken() -> None:
    board = progress.Board()
    board.record_event(Progress("evaluating", 7))
    assert board.describe_progress() == "evaluating: 0:00 so far"
    assert board.render_lines(80) == ["─" * 30 + " evaluating: 0:00 so far"]


def test_parts_of_a_plan_do_not_hide_the_plan() -> None:
    board = progress.Board()
    board.record_event(TrialStarted(PLAN, "search"))
    board.record_event(Progress("calibrating", 1, 2))
    assert board.describe_progress() == "[1] search: clean @ cpu"


def test_time_left_ends_at_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    board = progress.Board()
    assert board.estimate_remaining_s() is None
    board.record_event(TimeLeft(60))
    assert board.estimate_remaining_s() == 60
    now = 500.0
    assert board.estimate_remaining_s() == 0


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_board_is_three_lines_that_fit(width: int) -> None:
    board = progress.Board()
    board.record_event(TimeLeft(180))
    long = Plan(Recipe("clean+int8-static(observer=percentile(p=99.9), per_channel=True)"), Cpu())
    board.record_event(TrialStarted(long, "rescue"))
    board.record_event(Timing(Interval(0.5, 0.4, 0.625), 6))
    board.record_event(TrialDone(replace(FAST, plan=long)))
    board.record_event(TrialStarted(long, "final"))
    bar, now, best = board.render_lines(width)
    assert max(map(cell_len, (bar, now, best))) <= width
    assert bar.endswith(" 0 % [2, 3:00 left]")
    assert now.startswith("now   final measurement: clean+int8-static(")
    assert best.startswith("best  2.00x clean+int8-static(")
    assert width == 120 or now.endswith("…")


def test_a_finished_trial_is_one_line_of_eighty_columns() -> None:
    error = "no answer to 'load' after 8 s, " * 9
    failed = Trial("k", PLAN, "search", Status.FAILED, error=error)
    line = progress.describe_event(TrialDone(failed), place="[12, 1:48 left]")
    assert line.startswith("[12, 1:48 left]       -  clean @ cpu: failed, no answer")
    assert cell_len(line) == 80 and line.endswith("…")
    assert error.strip() in progress.describe_event(TrialDone(failed), verbose=True)


@pytest.mark.parametrize("setup_s", [10, 60, 100])
def test_the_bar_never_runs_backwards_and_is_right_from_a_third_of_the_time_on(
    monkeypatch: pytest.MonkeyPatch, setup_s: int
) -> None:
    now, budget_s = 0.0, 100.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    board = progress.Board()
    board.record_event(TimeLeft(budget_s, may_restart=True))
    counts = setup_s <= 0.25 * budget_s  # as a search has it
    whole_s = budget_s + (0 if counts else setup_s)
    shares = []
    while now < whole_s:
        now += 1
        if now == setup_s:
            board.record_event(TimeLeft(whole_s - setup_s))
            board.record_event(TrialStarted(PLAN, "search"))
        if now == 0.8 * whole_s:  # told again, as a search does that goes on
            board.record_event(TimeLeft(whole_s - now + 2))
        shares.append(board.measure_share())
        if now >= whole_s / 3:
            assert shares[-1] == pytest.approx(now / whole_s, abs=0.1)
    assert shares == sorted(shares) and shares[0] > 0


def test_a_terminal_shows_the_board_and_takes_it_away(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("FORCE_COLOR", "1")
    live = shown.Display(live=True)
    live.show_event(Progress("timing", 1, 2))
    live.show_event(Note("a note"))
    live.show_event(Progress("timing", 2, 2))
    live.clear_board()
    err = capsys.readouterr().err
    assert "timing: 50 %" in err and "a note\n" in err and "timing: 100 %" in err
