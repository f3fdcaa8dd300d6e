"""A worker: one process that serves one job.

``python -P -m ortune.measurement.worker JOB.json < commands`` loads what JOB says and answers one
JSON line for every JSON line on its standard input, until the input ends; lines with ``progress``
before an answer say how far it is. Whatever the runtime
prints goes to stderr. onnx_ir is never imported here.
"""

from __future__ import annotations

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
from typing import IO, Any

from ortune.core.errors import OrtuneError, find_interruption, summarize_error
from ortune.core.plugins import codec
from ortune.measurement.job import WorkerJob
from ortune.measurement.worker.tasks import TASKS
from ortune.measurement.worker.workbench import Workbench

_PR_SET_PDEATHSIG = 1


def main(path: str, make_workbench: Callable[..., Workbench] = Workbench) -> int:
    """Serve commands until standard input ends.

    Args:
        path: The job's file.
        make_workbench: Makes the workbench.
    """
    _die_with_parent()
    answers = _claim_stdout()
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
        return {
            "error": error.what,
            "fix": error.fix,
            "interruption": find_interruption(error),
        }
    except Exception as error:
        traceback.print_exc()
        return {
            "error": f"{type(error).__name__}: {summarize_error(error)}",
            "fix": _suggest_fix(error),
            "interruption": find_interruption(error),
        }


def _suggest_fix(error: Exception) -> str:
    """Say what to do about integers that index beyond a table, the usual fault of made-up ids."""
    match = re.search(r"out of data bounds.*?range \[-\d+,(\d+)\]", str(error))
    if match is None:
        return ""
    return f"give data that fits, or --range INPUT:0..{match[1]} of the input that holds them"


def _claim_stdout() -> IO[str]:
    """Keep the answers' channel to ourselves: runtimes print to stdout as they like."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return answers


def _die_with_parent() -> None:
    """Ask Linux to kill this process when its parent goes; elsewhere the closed stdin ends it."""
    if sys.platform != "linux":
        return
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(main(sys.argv[1]))
