"""A worker: one process that serves one job.

``python -P -m ortune.measurement.worker JOB.json < commands`` loads what JOB says and answers one
JSON line for every JSON line on its standard input, until the input ends; lines with ``progress``
before an answer say how far it is. Whatever the runtime
prints goes to stderr. onnx_ir is never imported here.
"""

import ctypes
import json
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from ortune.core.errors import BadModel, OrtuneError, find_interruption, summarize_error
from ortune.core.plugins import codec
from ortune.measurement.job import WorkerJob
from ortune.measurement.worker.self_agreement import explain_failure
from ortune.measurement.worker.tasks import TASKS
from ortune.measurement.worker.workbench import Workbench

_PR_SET_PDEATHSIG = 1
_NAMED = 4  # inputs that a fix names at most


def main(path: str, make_workbench: Callable[..., Workbench] = Workbench) -> int:
    """Serve commands for the job in a file until standard input ends."""
    if sys.platform == "linux":  # elsewhere the closed stdin ends it with its parent
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # runtimes print to stdout as they like
    job = codec.decode(WorkerJob, json.loads(Path(path).read_text(encoding="utf-8")))
    with ExitStack() as stack:

        def tell(answer: Mapping[str, Any]) -> None:
            answers.write(json.dumps(answer) + "\n")
            answers.flush()

        bench = make_workbench(job, stack, tell)
        for line in filter(str.strip, sys.stdin):
            tell(_answer_command(bench, json.loads(line)))
    return 0


def _answer_command(bench: Workbench, command: Mapping[str, Any]) -> dict[str, Any]:
    arguments = {key: value for key, value in command.items() if key != "do"}
    try:
        return TASKS[str(command["do"])](bench, **arguments)
    except OrtuneError as error:
        return {"error": error.what, "fix": error.fix, "interruption": find_interruption(error)}
    except Exception as error:
        traceback.print_exc()
        interruption = find_interruption(error)
        failure = BadModel(
            f"{type(error).__name__}: {summarize_error(error)}", fix=_suggest_fix(error, bench)
        )
        if _is_of_runtime(error) and bench.feeds and interruption is None:
            failure = explain_failure(failure, bench, running=True)
        return {"error": failure.what, "fix": failure.fix, "interruption": interruption}


def _is_of_runtime(error: Exception) -> bool:
    return type(error).__module__.startswith("onnxruntime")


def _suggest_fix(error: Exception, bench: Workbench) -> str:
    """Name the input, and the option that helps, where a runtime refuses what it was fed."""
    text, feeds = str(error), next(iter(bench.feeds.values()), None)
    sample = feeds[0] if feeds else {}
    if shape := re.search(r"dimensions for input: (\S+).*?Got: (\d+) Expected: (\d+)", text):
        name, size, expected = shape.groups()
        return f"give data that fits, or --shape {name}:... with {expected} in the place of {size}"
    if bounds := re.search(r"out of data bounds.*?range \[-\d+,(\d+)\]", text):
        last = int(bounds[1])
        whole = {name: array for name, array in sample.items() if array.dtype.kind in "iu"}
        beyond = [name for name, array in whole.items() if (array > last).any()]
        ranges = " ".join(f"--range {name}:0..{last}" for name in beyond or ["INPUT"])
        return f"give data that fits, or {ranges}"
    if not _is_of_runtime(error) or not sample:
        return ""
    names = f"{'such as ' if len(sample) > _NAMED else ''}{', '.join(list(sample)[:_NAMED])}"
    return f"give data that fits, or change what is made up by --shape and --range of {names}"


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(main(sys.argv[1]))
