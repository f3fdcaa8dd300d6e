"""Verbs that run nothing call four times as many functions for four times as many nodes."""

from __future__ import annotations

import cProfile
from pathlib import Path

import pytest
from benchmarks.speed import growth

from ortune.cli.main import BAD, main

FEW, MANY = 100, 400
KINDS = ("Identity in a row", "Fan of different nodes", "If in a row", "Outputs")


def calls(kind: str, verb: str, nodes: int) -> int:
    growth.write_models(kind, nodes, Path())
    profile = cProfile.Profile()
    profile.enable()
    code = main(list(growth.VERBS[verb]))
    profile.disable()
    assert code != BAD
    return sum(entry.callcount for entry in profile.getstats())


@pytest.mark.parametrize("verb", growth.VERBS)
def test_calls_grow_as_nodes_do(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    calls("Relu in a row", verb, FEW)  # what is imported and looked up once
    for kind in KINDS:
        few, many = (calls(kind, verb, nodes) for nodes in (FEW, MANY))
        assert many < 1.3 * (MANY / FEW) * few, f"{kind}: {few} calls, then {many}"


def test_a_command_is_timed_or_its_refusal_noted(tmp_path: Path) -> None:
    growth.write_models("Outputs", 60, tmp_path)
    seconds, refusal = growth.time_command(("inspect", "a.onnx"), tmp_path, 60)
    assert seconds is not None and 0 < seconds < 60 and not refusal
    seconds, refusal = growth.time_command(("inspect", "none.onnx"), tmp_path, 60)
    assert seconds is not None and refusal.startswith("ortune inspect: ")
