"""Several processes on the same ports, each on its own CPUs: started, watched, ended."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from ortune.core.errors import OrtuneError
from ortune.core.hardware.cpus import shares, usable_cpus
from ortune.server.addresses import Address
from ortune.server.doors import Doors
from ortune.server.journal import Journal
from ortune.server.settings import Listening, Ready, Serve, read, spelled
from ortune.server.signals import told

_FIRST_S, _LONGEST_S = 0.5, 30.0
"""Seconds until a process that died is started again: first, and at most, doubled each time."""
_STABLE_S = 60.0
"""Seconds after which a process counts as one that works."""
_KILL_S = 10.0
"""Seconds beyond the time for the end after which a process is killed."""
_LAST_S = 5.0
"""Seconds for each when the parent cannot go on."""
_LINE = 1 << 20


@dataclass(frozen=True)
class ServingJob:
    """What one of the processes is told; it comes as a line of JSON on stdin.

    Its stdin stays open as long as its parent lives: the end of it is the end of the process.
    """

    asked: Serve
    http: Address | None
    grpc: Address | None
    cpus: Sequence[int]

    def line(self) -> bytes:
        """Return it as JSON."""
        places = [None if one is None else [one.host, one.port] for one in (self.http, self.grpc)]
        written = {"asked": spelled(self.asked), "places": places, "cpus": list(self.cpus)}
        return json.dumps(written).encode() + b"\n"

    @classmethod
    def of(cls, line: bytes) -> ServingJob:
        """Return what `line` wrote."""
        given = json.loads(line)
        http, grpc = (None if one is None else Address(*one) for one in given["places"])
        return cls(read(given["asked"]), http, grpc, given["cpus"])


def serve_in_processes(asked: Serve, doors: Doors, journal: Journal, ready: Ready) -> int:
    """Serve in several processes until told to end.

    One that dies is started again, after a pause that grows; the others go on.

    Returns:
        Processes that ended with requests unanswered.

    Raises:
        OrtuneError: A process could not begin; none is left then.
        KeyboardInterrupt: It was told to end twice.
    """
    left = asyncio.run(_Supervisor(asked, doors, journal, ready).run())
    if left is None:
        raise KeyboardInterrupt
    return left


class _Supervisor:
    """The parent of the processes."""

    def __init__(self, asked: Serve, doors: Doors, journal: Journal, ready: Ready) -> None:
        self._asked, self._doors, self._journal, self._ready = asked, doors, journal, ready
        self._live: dict[int, Process] = {}
        self._told: dict[int, Listening] = {}
        self._ending = asyncio.Event()

    async def run(self) -> int | None:
        """Return how many ended with requests unanswered; None where it was told twice."""
        jobs = [
            ServingJob(self._asked, self._doors.http, self._doors.grpc, cpus)
            for cpus in shares(usable_cpus(), self._asked.processes)
        ]
        keeping = [asyncio.create_task(self._keep(place, job)) for place, job in enumerate(jobs)]
        try:
            with told(self._end):
                return sum(code != 0 for code in await asyncio.gather(*keeping))
        except asyncio.CancelledError:
            return None
        finally:
            for task in keeping:
                task.cancel()
            await self._kill()

    def _end(self) -> None:
        self._ending.set()
        for process in self._live.values():
            _send(process, signal.SIGTERM)

    async def _keep(self, place: int, job: ServingJob) -> int:
        """Run one process, again and again until the end; return its last exit code."""
        loop, pause, begun = asyncio.get_running_loop(), _FIRST_S, False
        while not self._ending.is_set():
            since = loop.time()
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-P", "-m", "ortune.server.worker"),  # not from the folder that it runs in
                stdin=PIPE,
                stdout=PIPE,
                limit=_LINE,
                start_new_session=True,  # Ctrl-C of a terminal is its parent's to pass on
            )
            self._live[place] = process
            if self._ending.is_set():  # told while it was started
                _send(process, signal.SIGTERM)
            listening = await self._begun(process, job)
            if isinstance(listening, OrtuneError) and not begun and not self._ending.is_set():
                raise listening
            if isinstance(listening, Listening):
                begun = True
                self._announce(place, listening)
            code = await self._ended(process)
            self._live.pop(place, None)
            if self._ending.is_set():
                return code
            pause = _FIRST_S if loop.time() - since > _STABLE_S else pause
            self._journal.event(
                "error",
                f"process {process.pid} {_how(code)}; another one takes its place in {pause:g} s",
                **({"error": listening.what} if isinstance(listening, OrtuneError) else {}),
            )
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ending.wait(), pause)
            pause = min(2 * pause, _LONGEST_S)
        return 0

    async def _begun(self, process: Process, job: ServingJob) -> Listening | OrtuneError:
        """Tell a process what to do and return what it says when it is ready, or why it is not."""
        assert process.stdin is not None and process.stdout is not None
        with suppress(ConnectionError):
            process.stdin.write(job.line())
            await process.stdin.drain()
        line = await process.stdout.readline()
        if not line:
            code = await process.wait()
            return OrtuneError(
                f"a process {_how(code)} while it loaded the models",
                fix="see its log above, or start with --processes 1",
            )
        said = json.loads(line)
        if "what" in said:
            return OrtuneError(said["what"], fix=said["fix"])
        return Listening(**said)

    def _announce(self, place: int, listening: Listening) -> None:
        """Say that all are ready once they are, and later who took a dead one's place."""
        first = len(self._told) < self._asked.processes
        self._told[place] = listening
        if first and len(self._told) == self._asked.processes:
            pids = [pid for one in self._told.values() for pid in one.pids]
            self._ready(replace(listening, pids=pids))
        elif not first:
            self._journal.event("info", f"process {listening.pids[0]} serves")

    async def _ended(self, process: Process) -> int:
        """Return the exit code of a process; one that does not end when told to is killed."""
        wait = asyncio.ensure_future(process.wait())
        ending = asyncio.create_task(self._ending.wait())
        await asyncio.wait({wait, ending}, return_when=asyncio.FIRST_COMPLETED)
        ending.cancel()
        if not wait.done():
            await asyncio.wait({wait}, timeout=self._asked.drain + _KILL_S)
        if not wait.done():
            self._journal.event("error", f"process {process.pid} did not end and is killed")
            _send(process, signal.SIGKILL)
        return await wait

    async def _kill(self) -> None:
        """Leave no process behind; each has a moment to remove what it unpacked."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            for process in self._live.values():
                _send(process, number)
            waits = [asyncio.ensure_future(one.wait()) for one in self._live.values()]
            if waits:
                await asyncio.wait(waits, timeout=_LAST_S)


def _send(process: Process, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        process.send_signal(number)


def _how(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    return f"was ended by {signal.Signals(-code).name}"
