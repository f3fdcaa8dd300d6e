"""CPUs that threads are bound to, in the runtime's spelling."""

from __future__ import annotations

from ortune.runtimes.onnxruntime import affinity


def test_an_affinity_gives_each_worker_a_cpu_that_may_be_used() -> None:
    usable = (3, 5, 7)
    assert affinity.workers(3, usable) == "6;8"
    assert affinity.parse("6;7-8") == [{5}, {6, 7}]
    assert affinity.workers(4, usable) == affinity.workers(1, usable) == ""
