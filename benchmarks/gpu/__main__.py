"""What a GPU does: each step a process of its own, with a limit and a result file of its own.

    python -m benchmarks.gpu [--dry] [--out FOLDER] [--seconds N] [STEP ...]

Steps go in the order of their worth, so that an end at any minute leaves the most: `doctor`; the
tests of `tests/gpu`; `levels` (precisions, levels, io-binding, CUDA graphs); a search and the best
by hand, a step for each model; `rtx` and `tensorrt` where they are installed; `serving`. What a
step has found is in FOLDER/STEP.json as soon as it is found, its log in FOLDER/STEP.log.

``--dry`` runs the same steps on the CPU, to find typing errors before a GPU's time is spent.
``python -m benchmarks.gpu.collect FOLDER`` makes the committed result of them.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.gpu.steps import Step, Target, find_steps
from ortune.core.atomic_write import open_draft
from ortune.core.hardware import gpu, memory
from ortune.core.plugins import codec

ROOT = Path(__file__).resolve().parents[2]
_MODULES = {
    **{name: name for name in ("rtx", "batches", "serving")},
    "tensorrt": "tensorrt_api",
}
"""Step -> the module whose `measure` it is."""
NO_DEVICE = "not run: no device"


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("steps", nargs="*")
    parser.add_argument("--dry", action="store_true")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "gpu")
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--memory-gb", type=int, help="what may be taken, where it grows with use")
    parser.add_argument("--run-one", action="store_true", help="in this process; for the runner")
    request = parser.parse_args(words)
    if request.run_one:
        with memory.limit_memory(request.memory_gb and request.memory_gb << 30):
            run_step(request.steps[0], request.out, dry=request.dry)
        return 0
    if not request.dry and not gpu.list_gpus():
        print(NO_DEVICE)
        return 0
    request.out.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + request.seconds
    given = ["--dry"] if request.dry else []
    if request.memory_gb:
        given += ["--memory-gb", str(request.memory_gb)]
    codes = [_start_step(step, request.out, until, given) for step in find_steps(request.steps)]
    return int(any(codes))


def _start_step(step: Step, out: Path, until: float, given: Sequence[str]) -> int:
    """Run a step in a process of its own and return its exit code; 124 where it was ended."""
    limit = min(step.limit_s * (5 if "--dry" in given else 1), until - time.monotonic())
    if limit < 10:
        print(f"{step.name}: left out, {limit:.0f} s are left", flush=True)
        return 124
    words = ["-m", "benchmarks.gpu", "--run-one", "--out", str(out), step.name]
    began = time.monotonic()
    with (out / f"{step.name}.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, *words, *given],
            cwd=ROOT, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            code = 124
    print(f"{step.name}: exit code {code} after {time.monotonic() - began:.0f} s", flush=True)
    return code


def run_step(name: str, out: Path, *, dry: bool) -> None:
    """Run a step here; its file holds what it has found so far, at any moment."""
    result: dict[str, Any] = {}
    with TemporaryDirectory(prefix="ortune-gpu-") as folder:
        target = Target(dry, Path(folder), rtx=_is_running_rtx(out))
        for key, value in _find_work(name, target):
            result[key] = codec.make_jsonable(value)
            with open_draft(out / f"{name}.json") as draft:
                draft.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def _is_running_rtx(out: Path) -> bool:
    path = out / "rtx.json"
    rows = json.loads(path.read_text()) if path.is_file() else {}
    return "snr_db" in rows.get("fp16 TensorRT-RTX", {})


def _find_work(name: str, target: Target) -> Iterator[tuple[str, Any]]:
    """Return what a step yields; a step's module is imported when it runs."""
    if name == "doctor":
        from benchmarks.gpu import environment

        return environment.describe(target)
    if name == "tests":
        from benchmarks.gpu import environment

        return environment.run_tests("tests/gpu")
    if name == "levels":
        from benchmarks.gpu import levels

        return levels.measure(target, 3 if target.dry else 8)
    if module := _MODULES.get(name):
        work: Iterator[tuple[str, Any]] = import_module(f"benchmarks.gpu.{module}").measure(target)
        return work
    from benchmarks.gpu import found

    return found.measure(name, target, 15 if target.dry else 75)


if __name__ == "__main__":
    sys.exit(main())
