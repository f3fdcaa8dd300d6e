"""A run that is killed at any place goes on with the proposals that it would have made."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.search.driver import record
from tests.unit.search.scenarios import SCENARIOS

from ortune.core.plugins import catalog
from ortune.core.plugins.spelling import parse
from ortune.search.policy import Policy

POLICIES = [
    name
    for name in catalog.names(Policy)
    if catalog.load(Policy, name).__module__.startswith("ortune.")
]
KILLED = (
    "crashes",
    "rescue-two-quantizers",
    "settings-unchanged",
    "time-in-plans",
    "time-in-rescue",
    "time-in-runtime",
    "target-in-rescue",
)


LONG = ("exhaustive",)
"""Policies that try so much that two scenarios must do."""
CASES = [(p, name) for p in POLICIES for name in (KILLED[3:5] if p in LONG else KILLED)]


@pytest.mark.parametrize(("policy", "name"), CASES)
def test_five_kills_change_no_proposal(policy: str, name: str, tmp_path: Path) -> None:
    scenario, chosen = SCENARIOS[name], parse(Policy, policy)
    whole = record(scenario, tmp_path / "whole", chosen)
    lines = len((tmp_path / "whole" / "ledger.jsonl").read_text().splitlines())
    assert lines == len(whole["proposals"]) > 2
    places = random.Random(name).sample(range(1, lines), min(5, lines - 1))
    for kept in sorted({*places, lines - 1}):  # the last one lies among the finals or behind them
        again = replace(scenario, kept=kept)
        resumed = record(again, tmp_path / str(kept), chosen, tmp_path / "whole")
        assert resumed["proposals"] == whole["proposals"][kept:], f"killed after {kept}"
        assert (resumed["best"], resumed["finished"]) == (whole["best"], whole["finished"])
