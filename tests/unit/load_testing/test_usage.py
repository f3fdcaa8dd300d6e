"""The server's own statistics of a level."""

from __future__ import annotations

import os
from typing import Any

import pytest

from ortune.load_testing.usage import between, of_process


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


def test_means_of_what_came_between() -> None:
    found = between(statistics(100, 1.0, 5.0, 100), statistics(300, 3.0, 5.0, 200))
    assert found is not None
    assert (found.answered, found.failed) == (200, 0)
    assert found.queue_ns == (300 * 3e6 - 100 * 1e6) / 200
    assert found.compute_ns == 6e6
    assert found.batch == 8


def test_nothing_between_has_no_mean() -> None:
    same = statistics(100, 1.0, 5.0, 100)
    found = between(same, same)
    assert found is not None
    assert (found.answered, found.queue_ns, found.compute_ns, found.batch) == (0, None, None, None)
    assert between(None, same) is None


def test_a_server_without_a_history() -> None:
    found = between({}, statistics(10, 1.0, 2.0, 10))
    assert found is not None
    assert found.answered == 10


@pytest.mark.parametrize("odd", [{"inference_stats": []}, {"inference_count": "many"}])
def test_statistics_that_are_none(odd: dict[str, Any]) -> None:
    assert between(odd, odd) is None


def test_a_process_and_one_that_is_gone() -> None:
    here = of_process(os.getpid())
    assert here is not None
    assert here.cpu_s > 0
    assert here.rss > 2**20
    assert of_process(2**22 + 1) is None
