"""A run that is killed at any place goes on with the proposals that it would have made."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.search.driver import record
from tests.unit.search.scenarios import SCENARIOS

KILLED = (
    "crashes",
    "rescue-two-quantizers",
    "time-in-plans",
    "time-in-runtime",
    "target-in-rescue",
)


@pytest.mark.parametrize("name", KILLED)
def test_five_kills_change_no_proposal(name: str, tmp_path: Path) -> None:
    scenario = SCENARIOS[name]
    whole = record(scenario, tmp_path / "whole")
    lines = len((tmp_path / "whole" / "ledger.jsonl").read_text().splitlines())
    assert lines == len(whole["proposals"]) > 2
    places = random.Random(name).sample(range(1, lines), min(5, lines - 1))
    for kept in sorted({*places, lines - 1}):  # the last one lies among the finals or behind them
        again = replace(scenario, kept=kept)
        resumed = record(again, tmp_path / str(kept), before=tmp_path / "whole")
        assert resumed["proposals"] == whole["proposals"][kept:], f"killed after {kept}"
        assert (resumed["best"], resumed["finished"]) == (whole["best"], whole["finished"])
