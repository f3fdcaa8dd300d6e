"""The server's own statistics of a level."""

from __future__ import annotations

import os
from typing import Any

import pytest

from ortune.serving.load_testing.server import process_usage, read_statistics


def statistics(count: int, queue_ms: float, compute_ms: float, runs: int) -> dict[str, Any]:
    def took(ms: float) -> dict[str, str]:  # gRPC's JSON has 64-bit numbers as texts
        return {"count": str(count), "ns": str(round(count * ms * 1e6))}

    return {
        "inference_count": str(4 * count),
        "execution_count": str(runs),
        "inference_stats": {
            "success": took(queue_ms + compute_ms),
            "fail": {"count": "2"},
            "queue": took(queue_ms),
            "compute_input": took(0.0),
            "compute_infer": took(compute_ms),
            "compute_output": took(1.0),
        },
    }


def told(model: dict[str, Any]) -> dict[str, Any]:
    return {"model_stats": [model]}


def test_counts_and_times() -> None:
    assert read_statistics(told(statistics(300, 3.0, 5.0, 200))) == {
        "answered": 300,
        "rows": 1200,
        "runs": 200,
        "queue": 300,
        "queue_ns": 300 * 3e6,
        "compute": 300,
        "compute_ns": 300 * 6e6,
    }
    assert read_statistics(told({})) == dict.fromkeys(
        ("answered", "rows", "runs", "queue", "queue_ns", "compute", "compute_ns"), 0
    )


@pytest.mark.parametrize(
    "odd",
    [
        {},
        {"model_stats": []},
        told({"inference_stats": []}),
        told({"inference_count": "many"}),
    ],
)
def test_statistics_that_are_none(odd: dict[str, Any]) -> None:
    assert read_statistics(odd) is None


def test_a_process_and_one_that_is_gone() -> None:
    here = process_usage(os.getpid())
    assert here is not None
    assert here[0] > 0
    assert here[1] > 2**20
    assert process_usage(2**22 + 1) is None
