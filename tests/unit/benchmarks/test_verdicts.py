"""What A/A pairs and twins say together."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from benchmarks.noise import verdicts

from ortune.core.plugins import codec
from ortune.measurement.machine import noise


def rows(shift: float = 0.0, count: int = 10, **more: Any) -> list[dict[str, Any]]:
    """Return pairs of a cell with blocks that spread by 0.2 %, the twin's 3 % further."""
    rng = np.random.default_rng(0)
    record = codec.encode(noise.compare_snapshots(noise.take_snapshot(), noise.take_snapshot()))
    record |= {"others": 0.0, "stolen": 0.0, "throttled": 0.0, "mhz": []}

    def blocks(middle: float) -> list[float]:
        return [float(x) for x in middle + 0.002 * rng.standard_normal(8)]

    return [
        {
            "cell": ["toy", 1, False], "index": index, "seconds": 4.0, "timed": 2.0,
            "blocks": {"A/A": blocks(shift), "twin": blocks(math.log(1.03))},
            "disturbed": 0.0, "noise": record, **more,
        }
        for index in range(count)
    ]  # fmt: skip


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdicts, "RESAMPLED", 20)


def test_equal_models_are_not_claimed_and_twins_are_found() -> None:
    found = verdicts.summary(rows())
    assert (found["verdicts"], found["claims between equals"]) == (2, 0)
    assert found["called faster, called slower"] == [0, 0]
    (cell,) = found["cells"]
    assert cell["twins found in five pairs"] == 1.0
    assert cell["seconds for 90%"] <= 5 * 4.0
    assert cell["twin's ratio"][0] == pytest.approx(1.03, abs=0.003)


def test_claims_are_counted_by_direction() -> None:
    assert verdicts.summary(rows(shift=0.05))["called faster, called slower"] == [0, 2]
    assert verdicts.summary(rows(shift=-0.05))["called faster, called slower"] == [2, 0]


def test_a_last_verdict_that_is_not_whole_does_not_count() -> None:
    assert verdicts.summary(rows(count=9))["verdicts"] == 1
