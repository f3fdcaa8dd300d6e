"""Several processes on the same ports, each on its own CPUs: started, watched, ended.

The module run as a program is one of them. Its job comes as a line of JSON on stdin, which stays
open as long as its parent lives; it answers with one line on stdout, ready or why not.
"""

import asyncio
import json
import os
import signal
import sys
import threading
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

from ortune.core.errors import OrtuneError
from ortune.core.hardware.cpus import divide_cpus, set_usable_cpus, usable_cpus
from ortune.core.python_process import make_python_command
from ortune.core.termination import end_soon
from ortune.serving.server.listeners import Address, Listeners, open_listeners
from ortune.serving.server.logs import Journal, make_spans, open_journal
from ortune.serving.server.settings import Listening, Ready, Serve, parse_request, spell_request
from ortune.serving.server.signals import handle_signals

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0
"""Seconds until a process that died is started again: first, and at most, doubled each time."""
_STABLE_S = 60.0
"""Seconds after which a process counts as one that works."""
_KILL_S = 10.0
"""Seconds beyond the time for the end after which a process is killed."""
_LAST_S = 5.0
"""Seconds for each when the parent cannot go on, and for a process that has lost its parent."""
_LINE_BYTES = 1 << 20
_UNANSWERED, _BAD, _INTERRUPTED = 1, 2, 3


def serve_in_processes(
    request: Serve, listeners: Listeners, journal: Journal, ready: Ready
) -> int:
    """Serve in several until told to end; return how many ended with requests unanswered.

    One that dies is started again, after a pause that grows; the others go on. Raises OrtuneError:
    a process could not begin, and none is left then; KeyboardInterrupt: it was told to end twice.
    """
    unanswered = asyncio.run(_Supervisor(request, listeners, journal, ready).run())
    if unanswered is None:
        raise KeyboardInterrupt
    return unanswered


class _Supervisor:
    """The parent of the processes."""

    def __init__(
        self, request: Serve, listeners: Listeners, journal: Journal, ready: Ready
    ) -> None:
        self._request, self._listeners = request, listeners
        self._journal, self._ready = journal, ready
        self._count = request.processes or 1
        self._running: dict[int, Process] = {}
        self._listening: dict[int, Listening] = {}
        self._ending = asyncio.Event()

    async def run(self) -> int | None:
        """Return how many ended with requests unanswered; None where it was told twice."""
        keeping = [
            asyncio.create_task(self._keep_running(place, cpus))
            for place, cpus in enumerate(divide_cpus(usable_cpus(), self._count))
        ]
        try:
            with handle_signals(self._request_end):
                return sum(code != 0 for code in await asyncio.gather(*keeping))
        except asyncio.CancelledError:
            return None
        finally:
            for task in keeping:
                task.cancel()
            for end in (Process.terminate, Process.kill):
                ends = [
                    asyncio.ensure_future(process.wait()) for process in self._running.values()
                ]
                self._end_processes(end)
                if ends:
                    await asyncio.wait(ends, timeout=_LAST_S)

    def _request_end(self) -> None:
        self._ending.set()
        self._end_processes()

    def _end_processes(self, end: Callable[[Process], None] = Process.terminate) -> None:
        for process in self._running.values():
            with suppress(ProcessLookupError):
                end(process)

    async def _keep_running(self, place: int, cpus: Sequence[int]) -> int:
        """Run one process, again and again until the end; return its last exit code."""
        loop, pause, has_served = asyncio.get_running_loop(), _FIRST_PAUSE_S, False
        while not self._ending.is_set():
            since = loop.time()
            process = self._running[place] = await asyncio.create_subprocess_exec(
                *make_python_command("-m", "ortune.serving.server.processes"),
                stdin=PIPE,
                stdout=PIPE,
                limit=_LINE_BYTES,
                start_new_session=True,  # Ctrl-C of a terminal is its parent's to pass on
            )
            if self._ending.is_set():  # told while it was started
                self._end_processes()
            outcome = await self._start_process(process, cpus)
            if isinstance(outcome, Listening):
                has_served = True
                # Say that all are ready once they are, and later who took a dead one's place.
                missing = self._count - len(self._listening)
                self._listening[place] = outcome
                if missing and len(self._listening) == self._count:
                    pids = [
                        pid for listening in self._listening.values() for pid in listening.pids
                    ]
                    self._ready(replace(outcome, pids=pids))
                elif not missing:
                    self._journal.log_event("info", f"process {outcome.pids[0]} serves")
            elif not has_served and not self._ending.is_set():
                raise outcome
            code = await self._wait_for_exit(process)
            self._running.pop(place, None)
            if self._ending.is_set():
                return code
            pause = _FIRST_PAUSE_S if loop.time() - since > _STABLE_S else pause
            self._journal.log_event(
                "error",
                f"process {process.pid} {_describe_exit(code)}; another one takes its place "
                f"in {pause:g} s",
                **({"error": outcome.what} if isinstance(outcome, OrtuneError) else {}),
            )
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ending.wait(), pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)
        return 0

    async def _start_process(
        self, process: Process, cpus: Sequence[int]
    ) -> Listening | OrtuneError:
        """Tell a process what to do; return what it says when it is ready, or why it is not."""
        assert process.stdin is not None and process.stdout is not None
        addresses = self._listeners.http, self._listeners.grpc
        job = {
            "request": spell_request(self._request),
            "addresses": [None if address is None else asdict(address) for address in addresses],
            "cpus": list(cpus),
        }
        with suppress(ConnectionError):
            process.stdin.write(json.dumps(job).encode() + b"\n")
            await process.stdin.drain()
        line = await process.stdout.readline()
        if not line:
            return OrtuneError(
                f"a process {_describe_exit(await process.wait())} while it loaded the models",
                fix="see its log above, or start with --processes 1",
            )
        answer = json.loads(line)
        if "what" in answer:
            return OrtuneError(answer["what"], fix=answer["fix"])
        return Listening(**answer)

    async def _wait_for_exit(self, process: Process) -> int:
        """Return the exit code of a process; one that does not end when told to is killed."""
        end = asyncio.ensure_future(process.wait())
        ending = asyncio.create_task(self._ending.wait())
        await asyncio.wait({end, ending}, return_when=asyncio.FIRST_COMPLETED)
        ending.cancel()
        if not end.done():
            await asyncio.wait({end}, timeout=self._request.drain + _KILL_S)
        if not end.done():
            self._journal.log_event("error", f"process {process.pid} did not end and is killed")
            with suppress(ProcessLookupError):
                process.kill()
        return await end


def _describe_exit(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    return f"was ended by {signal.Signals(-code).name}"


def main() -> int:
    """Serve as the line on stdin says, until told to or until the parent is gone."""
    from ortune.serving.server.run import serve_here

    line = b""  # byte by byte: a buffer's lock would outlive the thread that waits for the end
    while not line.endswith(b"\n") and (byte := os.read(0, 1)):
        line += byte
    job = json.loads(line)
    request = parse_request(job["request"])
    http, grpc = (None if address is None else Address(**address) for address in job["addresses"])
    parent = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print goes to the log

    def answer(message: Any) -> None:
        with suppress(OSError):  # the parent is gone, and so will this process be
            parent.write(json.dumps(message).encode() + b"\n")
            parent.flush()

    def end_with_parent() -> None:
        with suppress(OSError):
            while os.read(0, 1):
                pass
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(request.drain + _LAST_S)
        os._exit(_INTERRUPTED)

    threading.Thread(target=end_with_parent, name="ortune parent", daemon=True).start()
    if job["cpus"]:
        set_usable_cpus(job["cpus"])
    try:
        with open_journal(request, make_spans(request.trace)) as journal:
            listeners = open_listeners(request, lambda text: None, http, grpc)
            unanswered = serve_here(
                request, listeners, journal, lambda listening: answer(asdict(listening))
            )
        code = _UNANSWERED if unanswered else 0
    except OrtuneError as error:
        answer({"what": error.what, "fix": error.fix})
        code = _BAD
    except KeyboardInterrupt:
        code = _INTERRUPTED
    end_soon(code)
    return code


if __name__ == "__main__":
    sys.exit(main())
