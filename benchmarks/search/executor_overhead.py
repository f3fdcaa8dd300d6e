"""What `--executor ray` costs a search on one node, beside `local`.

    python -m benchmarks.search.executor_overhead [--seconds 180] [--pairs 2] [--python PYTHON]

A user's command with both executors in turns, each in a folder and a cache of its own:
efficientnet-lite0, all defaults but the time. Of each pair: seconds from the start of the process
to the first trial on disk, plans that were tried, seconds of the whole command, and over all plans
that both tried the seconds that they took. The interpreter is that of an environment with Ray
(``make build/packages/ray/.installed``). Results: ``executor_overhead.json``. An idle machine;
seven minutes a pair.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.real.samples import written

from benchmarks.result_files import result_file, write_results
from ortune.measurement.machine.machine import describe_machine

ROOT = Path(__file__).resolve().parents[2]
RESULTS = result_file("executor_overhead")
EXECUTORS = ("local", "ray")


def search(python: str, executor: str, limit: str, folder: Path) -> dict[str, Any]:
    """Return what a search wrote and how long it took, in seconds."""
    made, out = written("efficientnet-lite0"), folder / "run"
    words = [python, "-P", "-m", "ortune.cli.main", "optimize", str(made / "model.onnx")]
    words += ["--data", str(made / "data"), "--calibration", str(made / "calibration")]
    words += ["--time", limit, "--executor", executor, "-o", str(out)]
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}
    environment |= {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    ledger, began, first = out / "ledger.jsonl", time.monotonic(), None
    unread = subprocess.DEVNULL
    with subprocess.Popen(words, env=environment, stdout=unread, stderr=unread) as process:
        while process.poll() is None:
            if first is None and ledger.is_file() and ledger.stat().st_size:
                first = time.monotonic() - began
            time.sleep(0.05)
    whole = time.monotonic() - began
    lines = [json.loads(line) for line in ledger.read_text(encoding="utf-8").splitlines()]
    plans = {json.dumps(row["plan"]): row["seconds"] for row in lines if row["part"] == "search"}
    return {
        "executor": executor,
        "first_trial_s": first,
        "whole_s": whole,
        "plans": len(plans),
        "seconds": plans,
    }


def summarize(runs: list[dict[str, Any]], limit_s: float) -> dict[str, Any]:
    """Return Ray's cost over that of `local`: start-up, each plan, and both as a share."""
    by_executor = {name: [run for run in runs if run["executor"] == name] for name in EXECUTORS}
    startup_s = [
        ray["first_trial_s"] - local["first_trial_s"]
        for local, ray in zip(*by_executor.values(), strict=True)
    ]
    ratios = []
    for local, ray in zip(*by_executor.values(), strict=True):
        both = local["seconds"].keys() & ray["seconds"].keys()
        sums = [sum(run["seconds"][plan] for plan in both) for run in (local, ray)]
        ratios.append(sums[1] / sums[0])
    startup, ratio = sum(startup_s) / len(startup_s), sum(ratios) / len(ratios)
    return {
        "startup_s": startup_s,
        "seconds_of_same_plans": ratios,
        "overhead": (startup + (ratio - 1) * limit_s) / limit_s,
    }


def main() -> None:
    """Search in turns, and write what each cost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=180, help="of each search")
    parser.add_argument("--pairs", type=int, default=2)
    parser.add_argument("--python", default=str(ROOT / "build/packages/ray/bin/python"))
    asked = parser.parse_args()
    runs: list[dict[str, Any]] = []
    for _ in range(asked.pairs):
        for executor in EXECUTORS:
            with TemporaryDirectory() as folder:
                runs.append(search(asked.python, executor, f"{asked.seconds}s", Path(folder)))
            shown = {key: value for key, value in runs[-1].items() if key != "seconds"}
            print(json.dumps(shown), flush=True)
    summary = summarize(runs, asked.seconds)
    print(json.dumps(summary))
    about = {"machine": describe_machine(), "seconds": asked.seconds, "summary": summary}
    shown_runs = [{k: v for k, v in run.items() if k != "seconds"} for run in runs]
    write_results(RESULTS, about | {"runs": shown_runs})


if __name__ == "__main__":
    main()
