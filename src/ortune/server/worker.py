"""One of several processes that serve, told what by its parent on stdin."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from typing import Any, BinaryIO

from ortune.core.errors import OrtuneError
from ortune.server.doors import opened
from ortune.server.logs import journal_of
from ortune.server.processes import ServingJob
from ortune.server.run import serve_here
from ortune.server.signals import end_soon

_AFTER_S = 5.0
"""Seconds beyond the time for the end after which an orphan is gone, whatever it does."""
LEFT_SOME, BAD, INTERRUPTED = 1, 2, 3


def main() -> int:
    """Do what the line on stdin says; answer in one line of JSON, ready or why not."""
    job = ServingJob.of(_line())
    answer = partial(_say, _private_stdout())
    orphaned = partial(_end_with_parent, job.asked.drain)
    threading.Thread(target=orphaned, name="ortune parent", daemon=True).start()
    if job.cpus and hasattr(os, "sched_setaffinity"):
        with suppress(OSError):  # one was taken from this process meanwhile
            os.sched_setaffinity(0, job.cpus)
    try:
        with journal_of(job.asked) as journal:
            doors = opened(job.asked, lambda text: None, job.http, job.grpc)
            left = serve_here(
                job.asked, doors, journal, lambda listening: answer(asdict(listening))
            )
        code = LEFT_SOME if left else 0
    except OrtuneError as error:
        answer({"what": error.what, "fix": error.fix})
        code = BAD
    except KeyboardInterrupt:
        code = INTERRUPTED
    if code:
        end_soon(code)
    return code


def _line() -> bytes:
    """Read the first line of stdin, byte by byte: a buffer's lock would outlive the thread."""
    found = b""
    while not found.endswith(b"\n") and (byte := os.read(0, 1)):
        found += byte
    return found


def _private_stdout() -> BinaryIO:
    """Return stdout, and lead what libraries print there to the log."""
    kept = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return kept


def _say(out: BinaryIO, told: Any) -> None:
    with suppress(OSError):  # the parent is gone, and so will this process be
        out.write(json.dumps(told).encode() + b"\n")
        out.flush()


def _end_with_parent(drain_s: float) -> None:
    """Wait for the end of stdin, which is that of the parent, and end too."""
    with suppress(OSError):
        while os.read(0, 1):
            pass
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(drain_s + _AFTER_S)
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    sys.exit(main())
