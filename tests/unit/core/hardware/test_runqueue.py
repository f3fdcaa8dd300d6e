"""Waiting for a CPU is counted for every thread that runs a model."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from ortune.core.hardware import cpus
from ortune.load_generation import lanes as lane_threads


def task(root: Path, tid: int, waited: int | None) -> None:
    (root / str(tid)).mkdir()
    if waited is not None:
        (root / str(tid) / "schedstat").write_text(f"1000 {waited} 7\n")


def test_waits_of_all_threads_add_up(tmp_path: Path) -> None:
    task(tmp_path, 1, 30)
    task(tmp_path, 2, 12)
    assert cpus.waited_ns(tmp_path) == 42


def test_a_kernel_without_statistics_is_unknown_and_not_calm(tmp_path: Path) -> None:
    task(tmp_path, 1, None)
    assert cpus.waited_ns(tmp_path) == -1
    assert cpus.waited_ns(tmp_path / "none") == -1


def test_a_thread_that_ends_while_it_is_listed_spoils_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task(tmp_path, 1, 30)
    listed = [tmp_path / "1", tmp_path / "2"]
    monkeypatch.setattr(Path, "iterdir", lambda self: iter(listed))
    assert cpus.waited_ns(tmp_path) == 30


class Lane:
    """A lane whose process counts 10 ns of waiting for each of its living threads."""

    def __init__(self, idle: int) -> None:
        self._idle = idle
        self.now = 0

    def calls(self, position: int) -> list[Any]:
        return []

    def clock(self) -> int:
        return self.now

    def until(self, moment: int) -> None:
        self.now = moment

    def waited(self) -> int:
        return 10 * (threading.active_count() - self._idle)


def test_what_lanes_waited_is_read_while_their_threads_live() -> None:
    lanes = [Lane(threading.active_count()) for _ in range(3)]
    waiting = lane_threads.Waiting(lanes[0])
    lanes[0].now = 100
    lane_threads.side_by_side(lanes, lambda lane: None, waiting)
    assert waiting.share() == pytest.approx(20 / (100 * 3), abs=1e-4)


def test_an_error_on_a_lane_is_raised_and_no_thread_is_left() -> None:
    lanes = [Lane(0) for _ in range(3)]
    before = threading.active_count()

    def work(lane: Lane) -> None:
        if lane is lanes[2]:
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        lane_threads.side_by_side(lanes, work)
    assert threading.active_count() == before
