"""One test of MLCommons' load generator: lanes answer what it asks."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ortune.core.errors import OrtuneError
from ortune.core.workload import Lane, Rig
from ortune.load_generation import lanes

_MARK = ":::MLLOG "
_KEPT = ("result_", "early_stopping")


def test(rig: Rig, scenario: str, qps: float, seconds: float, target_ms: float) -> dict[str, Any]:
    """Run one test and return its ``result_...`` lines, and ``runs``: the samples answered.

    Args:
        scenario: As a workload's field spells it.
        seconds: Shortest duration; a test that takes four times as long is cut off.
        target_ms: Latency bound of the server scenario.

    Raises:
        OrtuneError: A session failed, or the log has no result.
    """
    import mlperf_loadgen as lg

    settings = lg.TestSettings()
    settings.scenario = getattr(lg.TestScenario, scenario.title().replace("-", ""))
    settings.mode = lg.TestMode.PerformanceOnly
    settings.min_duration_ms = max(1, int(1000 * seconds))
    settings.max_duration_ms = 4 * settings.min_duration_ms
    settings.min_query_count = 1
    settings.server_target_qps = settings.offline_expected_qps = qps
    settings.server_target_latency_ns = int(1e6 * target_ms)
    out = _folder(rig.out)
    counter = _Counter(rig, lg)
    samples = len(rig.shapes)
    output = lg.LogOutputSettings()
    output.outdir = str(out)
    output.copy_summary_to_stdout = False
    logs = lg.LogSettings()
    logs.log_output = output
    logs.enable_trace = False
    sut = lg.ConstructSUT(counter.put, lambda: None)
    library = lg.ConstructQSL(samples, samples, lambda indices: None, lambda indices: None)
    try:
        with counter:
            # No file of this name: settings come from nowhere else.
            audit = str(out / "audit.config")
            lg.StartTestWithLogSettings(sut, library, settings, logs, audit)
    finally:
        lg.DestroyQSL(library)
        lg.DestroySUT(sut)
    return {**results(out / "mlperf_log_detail.txt"), "runs": counter.runs}


def results(log: Path) -> dict[str, Any]:
    """Read the results of a detail log.

    Raises:
        OrtuneError: There are none.
    """
    found: dict[str, Any] = {}
    text = log.read_text(encoding="utf-8") if log.is_file() else ""
    for line in text.splitlines():
        if line.startswith(_MARK):
            entry = json.loads(line[len(_MARK) :])
            if entry["key"].startswith(_KEPT):
                found[entry["key"]] = entry["value"]
    if "result_validity" not in found:
        raise OrtuneError(f"LoadGen wrote no result to {log}", fix="read the log beside it")
    return found


class _Counter:
    """Threads that take samples from the load generator's queue, one a lane."""

    def __init__(self, rig: Rig, lg: Any) -> None:
        self._lg = lg
        self._queue: queue.SimpleQueue[tuple[int, int] | None] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=self._serve, args=(x,)) for x in rig.lanes]
        self._errors: list[BaseException] = []
        self.runs = 0

    def __enter__(self) -> None:
        for thread in self._threads:
            thread.start()

    def __exit__(self, *_: object) -> None:
        for _thread in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()
        if self._errors:
            raise self._errors[0]

    def put(self, samples: Sequence[Any]) -> None:
        """Take a query; the load generator's objects do not outlive this call."""
        self.runs += len(samples)
        for sample in samples:
            self._queue.put((sample.id, sample.index))

    def _serve(self, lane: Lane) -> None:
        while (wanted := self._queue.get()) is not None:
            key, index = wanted
            try:
                if not self._errors:
                    lanes.run(lane, index)
            except BaseException as error:
                self._errors.append(error)
            # A query without an answer would be waited for without end.
            self._lg.QuerySamplesComplete([self._lg.QuerySampleResponse(key, 0, 0)])


def _folder(out: Path) -> Path:
    root = out / "loadgen"
    root.mkdir(parents=True, exist_ok=True)
    made = root / f"{sum(1 for _ in root.iterdir()):04}"
    made.mkdir()
    return made
