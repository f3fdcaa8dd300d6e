"""The search proposes what it proposed: every plan in order, over scripted results and time."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.search.driver import GOLDEN, record
from tests.unit.search.scenarios import SCENARIOS

from ortune.search.expectation.surrogate import Features, Normal, Surrogate


@pytest.fixture(scope="module")
def golden() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(GOLDEN.read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_search_proposes_what_it_did(
    name: str, golden: dict[str, Any], tmp_path: Path
) -> None:
    found = record(SCENARIOS[name], tmp_path / "run")
    assert found == golden[name]
    said = json.dumps(found)
    for text in SCENARIOS[name].shows:
        assert re.search(text, said), f"{name} no longer shows {text}"


@pytest.mark.parametrize("seed", [0, 1])
def test_the_last_digits_of_what_is_expected_change_no_order(
    seed: int, golden: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They differ by the threads that the linear algebra runs with."""
    exact, rng = Surrogate.predict_plans, np.random.default_rng(seed)

    def rounded_otherwise(surrogate: Surrogate, plans: Sequence[Features]) -> list[Normal]:
        return [
            Normal(n.mean * (1 + 1e-14 * rng.normal()), n.sd * (1 + 1e-14 * rng.normal()))
            for n in exact(surrogate, plans)
        ]

    monkeypatch.setattr(Surrogate, "predict_plans", rounded_otherwise)
    name = "rescue-two-quantizers"
    assert record(SCENARIOS[name], tmp_path / "run")["proposals"] == golden[name]["proposals"]


def test_the_golden_file_holds_these_scenarios_and_every_stage(golden: dict[str, Any]) -> None:
    assert list(golden) == list(SCENARIOS)
    proposals = [text for one in golden.values() for text in one["proposals"]]
    stages = {text.partition(":")[0] for text in proposals}
    assert stages >= {"baseline", "screen", "search", "rescue", "runtime", "final", "history"}
    assert {one.get("finished") for one in golden.values()} >= {
        "done",
        "time",
        "target",
        "interrupted",
    }
