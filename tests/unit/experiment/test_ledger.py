"""The search's memory survives being killed at any byte."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ortune.backends.cpu import Cpu
from ortune.core.errors import BadData
from ortune.core.step import AS_IS
from ortune.core.trial import (
    Block,
    Burst,
    Interval,
    Measurement,
    Pair,
    Plan,
    Score,
    Status,
    Trial,
    Verdict,
)
from ortune.experiment.ledger import Ledger, read_study


def trial(key: str, phase: str = "search") -> Trial:
    burst = Burst((100, 110), (0.0, -1.0), 3)
    return Trial(
        key,
        Plan(AS_IS, Cpu(threads=2)),
        phase,
        Status.OK,
        Interval(0.5, 0.4, 0.6),
        (Score("top1", 0.9, 0.91, 0.88, 0.92, 100, Verdict.LIKELY, 300, "Wilson"),),
        1234,
        Measurement((Pair((Block(burst, burst),)),), 1, 2, 3, {"CPUExecutionProvider": 4}),
        why="text with \n a line break",
    )


def test_trials_come_back_as_they_were(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.append(trial("a"))
    ledger.append(trial("a", "final"))
    again = Ledger(tmp_path)
    assert again.trials == [trial("a"), trial("a", "final")]
    assert again.find("a", "final") == trial("a", "final")
    assert again.find("b", "search") is None


@settings(deadline=None)
@given(st.integers(1, 400))
def test_a_torn_line_is_cut_off_and_nothing_else_is_lost(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    folder = tmp_path_factory.mktemp("run")
    ledger = Ledger(folder)
    for key in "abc":
        ledger.append(trial(key))
    path = folder / "ledger.jsonl"
    data = path.read_bytes()
    path.write_bytes(data[:-cut])
    again = Ledger(folder)
    assert [t.key for t in again.trials] == ["a", "b"]
    again.append(trial("d"))
    assert [t.key for t in Ledger(folder).trials] == ["a", "b", "d"]


def test_a_damaged_ledger_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ledger.jsonl").write_text("{not json}\n")
    with pytest.raises(BadData, match="cannot be read"):
        Ledger(tmp_path)


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadData, match="no run in"):
        read_study(tmp_path)
