"""Triton's perf_analyzer as the client, where it is installed."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from ortune.core.errors import OrtuneError, summarize_error
from ortune.core.session import Tensors
from ortune.core.temporary_folder import open_temporary_folder
from ortune.serving.load_testing.client import Report
from ortune.serving.load_testing.levels import Load
from ortune.serving.load_testing.requests import ServerUrl

CLOCK = (
    "from sending a request to its answer, by perf_analyzer's clock: a closed loop, whose callers "
    "send nothing while they wait"
)
_WINDOWS = 3
"""What it takes to call a measurement stable; their requests all count."""


def run_perf_analyzer(
    url: ServerUrl, model: str, load: Load, samples: Sequence[Tensors], *, max_batch: int
) -> Report:
    """Let it put a closed loop of load on a model, NAME or NAME/VERSION.

    Every request has all inputs of a sample; `max_batch` is 0 where the model's configuration
    describes whole tensors. Raises OrtuneError: it is not installed, or ends with an error.
    """
    program = shutil.which("perf_analyzer")
    if program is None:
        raise OrtuneError(
            "perf_analyzer is not installed", fix="pip install perf-analyzer, or drop --client"
        )
    name, _, version = model.partition("/")
    rows = len(next(iter(samples[0].values()))) if max_batch else 1
    words = [program, "-i", url.protocol, "-u", url.netloc, "-b", str(rows)]
    words += ["-m", name, *(["-x", version] if version else [])]
    words += ["--concurrency-range", str(load.concurrency)]
    words += ["--input-data", "data.json", "--profile-export-file", "profile.json"]
    if load.requests:
        words += ["--request-count", str(load.requests)]
    else:
        window_ms = max(1, round(1000 * load.seconds / _WINDOWS))
        words += ["-p", str(window_ms), "-r", str(_WINDOWS), "-s", "1000"]
    with open_temporary_folder() as path:
        folder, report = Path(path), Report()
        steps = []
        for sample in samples:  # itself, or its rows, which it joins again
            parts = [sample]
            if max_batch:
                parts = [{name: a[row] for name, a in sample.items()} for row in range(rows)]
            steps += [
                {
                    name: {"content": array.ravel().tolist(), "shape": list(array.shape)}
                    for name, array in part.items()
                }
                for part in parts
            ]
        (folder / "data.json").write_text(json.dumps({"data": steps}), encoding="utf-8")
        began, before = time.perf_counter(), psutil.Process().cpu_times()
        completed = subprocess.run(words, capture_output=True, text=True, cwd=folder, check=False)
        after, report.wall_s = psutil.Process().cpu_times(), time.perf_counter() - began
        report.cpu_s = after.children_user - before.children_user
        report.cpu_s += after.children_system - before.children_system
        if completed.returncode or not (folder / "profile.json").exists():
            lines = (completed.stdout + completed.stderr).strip().splitlines() or [
                "without a message"
            ]
            raise OrtuneError(
                f"perf_analyzer failed: {summarize_error(lines[-1])}",
                fix="run perf_analyzer by itself to see why",
            )
        profile = json.loads((folder / "profile.json").read_text(encoding="utf-8"))
    for request in profile["experiments"][0]["requests"]:
        sent = request["timestamp"]
        report.add_request(sent, sent, request["response_timestamps"][-1], "")
    return report
