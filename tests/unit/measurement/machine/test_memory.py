"""Memory and CPU of a worker."""

import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from ortune.backends.cpu import Cpu
from ortune.core.hardware import memory
from ortune.measurement.job import WorkerJob
from ortune.measurement.worker import tasks as usage
from ortune.measurement.worker.workbench import Workbench


@pytest.mark.skipif(sys.platform != "linux", reason="VmHWM is Linux'")
def test_the_peak_is_of_this_process_and_not_of_the_one_that_started_it() -> None:
    ballast = bytearray(200 * 2**20)
    ballast[::4096] = b"\1" * len(ballast[::4096])
    code = "from ortune.core.hardware.memory import peak_rss; print(peak_rss())"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout
    assert memory.peak_rss() > 200e6 > 100e6 > int(said) > 5e6
    assert len(ballast)


def test_the_peak_falls_back_where_there_is_no_status() -> None:
    assert memory.peak_rss(Path("nothing-here")) > 5e6


def test_usage_counts_cpu_and_rest_waits_for_none(tmp_path: Path) -> None:
    with ExitStack() as stack:
        bench = Workbench(WorkerJob({}, Cpu(), {}, tmp_path), stack)
        before = usage.usage(bench)["cpu_ns"]
        assert sum(range(300_000)) and usage.usage(bench)["cpu_ns"] > before
        assert usage.wait_idle(bench)["cpu_ns"] < 400e6
        found = usage.footprint(bench)
    assert 0 < found["rss"] <= found["peak"]
    assert found["uss"] is None or 0 < found["uss"] <= found["rss"]
