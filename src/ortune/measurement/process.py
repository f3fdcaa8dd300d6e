"""The parent's side of a worker: start it, ask it, watch its time and memory."""

from __future__ import annotations

import json
import os
import queue
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields
from functools import cache, cached_property
from pathlib import Path
from typing import IO, Any, Self

from ortune.backends.cpu import Cpu
from ortune.backends.runtimes.onnxruntime import messages
from ortune.core.backend import Backend
from ortune.core.capabilities import HERE, Capabilities
from ortune.core.errors import (
    BackendMissing,
    BadModel,
    BadSettings,
    CutShort,
    Interruption,
    OrtuneError,
    escape_control_chars,
    summarize_error,
)
from ortune.core.event import Progress, Sink, ignore_event
from ortune.core.hardware import memory
from ortune.core.hardware.cpus import read_scheduled_ns, usable_cpus
from ortune.core.plugins import codec
from ortune.core.progress import time_limit
from ortune.core.python_process import make_python_command
from ortune.core.temporary_folder import open_temporary_folder
from ortune.core.wording import format_count
from ortune.core.workload import Workload
from ortune.data import sizes
from ortune.data.stream import Stream
from ortune.measurement.allowance import process_allowance
from ortune.measurement.devices import LOST, Link, LinkLost, find_lease, start_remote_worker
from ortune.measurement.environment import find_interpreter, worker_variables
from ortune.measurement.job import MAIN, Failure, WorkerJob
from ortune.measurement.workloads.latency import Latency

_LISTENING_S = 5.0
_LONGEST_BUILD_S = 3600.0
_STARVED, _ALONE = 0.25, 0.75
"""Share of a time-out that threads waited for a CPU from which others made it, unless the process
had this share of its CPUs: then its threads waited for each other."""
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_LATENCY = Latency()
_NUMBERING = threading.Lock()
INSPECT = "run `ortune inspect` on it"
"""What to do with a model that does not run, where nobody says more."""
PROGRAM = ("ortune.measurement.worker",)
"""Module that a worker runs, and words behind its job's file."""
_FROM_OUTSIDE = ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGPWR", "SIGXCPU")
"""Signals that no fault of a process's own sends it: the kernel does for want of memory, or a
person, or the end of a terminal."""
LARGE_PAIR = 1 << 31
"""Bytes of model files of two workers from which they may hold their models in turns."""
LOADING = 2  # bytes at most that a model takes while it is loaded, as a multiple of its file
_WITHOUT_MODEL = ("unload", "wait_idle")  # what is asked of a worker without its model
_LESS_BUSY = "close other programs, or give more --time where the command has that option"
_MORE_MEMORY = "give a higher --memory-limit, a smaller batch or smaller samples"


class WorkerFailed(Exception):
    """A worker crashed, hung, exceeded its memory or reported an error. Carries the value."""

    def __init__(self, failure: Failure, worker: Worker) -> None:
        super().__init__(failure.reason)
        self.failure = failure
        self.worker = worker

    @property
    def interruption(self) -> Interruption | None:
        """What ended the worker from outside; None where the work itself failed."""
        return self.failure.interruption

    def demand_verdict(self) -> None:
        """Pass where the failure is the fault of what was run.

        Raises:
            CutShort: Something from outside ended the worker.
        """
        if self.interruption is not None:
            raise CutShort(
                self.failure.reason,
                fix=self.failure.fix or "run the same command again",
                interruption=self.interruption,
            )


class NoAnswer(WorkerFailed):
    """A worker did not answer a command in time."""


@contextmanager
def translate_failures(problem: str, fix: str = INSPECT) -> Iterator[None]:
    """Have a worker that fails be an error of the model.

    Args:
        problem: What did not succeed.
        fix: What to do where the worker does not say; empty names the command to repeat.

    Raises:
        BadModel: It fails.
    """
    try:
        yield
    except WorkerFailed as error:
        failure = error.failure
        fix = failure.fix or fix or f"to run it alone: {failure.reproduce}"
        raise BadModel(f"{problem}: {failure.reason}", fix=fix) from None


class Worker:
    """A live worker process that answers commands. Use as a context manager.

    A command that has no deadline of its own is given `timeout_s`; `sink` receives how far a long
    one is. All live workers together may take the least of their limits. `program` is another than
    the usual one: a module and words behind the job's file.

    Attributes:
        limit: Bytes that it and all others may take together.
    """

    def __init__(
        self,
        job: WorkerJob,
        *,
        timeout_s: float = 300,
        memory_limit: int | None = None,
        deadlines: Mapping[str, float] | None = None,
        sink: Sink = ignore_event,
        program: Sequence[str] = PROGRAM,
    ) -> None:
        lease = find_lease(job.environment)
        python = None if lease else find_interpreter(job.environment)
        path = {} if lease else worker_variables(job.environment)
        self._timeout_s, self._deadlines, self._sink = timeout_s, deadlines or {}, sink
        # No more threads than twice the CPUs, and no batch beyond memory, wherever they come from.
        here, batch = lease is None, job.workload.batch
        for feed in job.feeds.values() if batch > 1 else ():
            subject = f"a run of {format_count(batch, 'sample')}"
            sizes.require_memory(batch * Stream(feed).widest, subject, "give a smaller --batch")
        for plugin in (job.backend, job.workload):
            codec.check_numbers(plugin, [item.name for item in fields(plugin)], here=here)
        self._limit_requested = bool(memory_limit or memory.read_limit())
        self.limit = memory_limit or memory.count_allowed_bytes(process_allowance().count_bytes())
        self._ended = ""
        self._models = tuple(job.models.values())
        self._rival: Worker | None = None
        self._holds: bool | None = None  # its model; None before it was loaded
        job.out.mkdir(parents=True, exist_ok=True)
        self._job = job.out / "job.json"
        self._job.write_text(json.dumps(codec.encode(job), indent=1), encoding="utf-8")
        self._commands = job.out / "commands.jsonl"
        self._commands.unlink(missing_ok=True)
        self._log = job.out / "worker.log"
        command = make_python_command("-m", program[0], self._job, *program[1:], python=python)
        words = [f"{name}={shlex.quote(text)}" for name, text in path.items()]
        self.reproduce = " ".join(
            [*words, shlex.join(command), "<", shlex.quote(str(self._commands))]
        )
        with self._log.open("wb") as log:
            stderr = subprocess.PIPE if job.verbose else log
            self._trace: dict[str, Any] = {}
            if lease is not None:
                began = time.time()
                self._link = start_remote_worker(lease, job, stderr)
                self._trace = {"device": lease.device.name, "began": began, **self._link.readings}
                self.reproduce = f"{self._link.reproduce} < {shlex.quote(str(self._commands))}"
            else:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=stderr,
                    start_new_session=True,
                    env={**os.environ, **path},
                )
                self._link = Link(None, process)
        self._process = self._link.process
        if self._process.stderr is not None:
            threading.Thread(
                target=_forward_log, args=(self._process.stderr,), daemon=True
            ).start()
        self._answers: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._listener = threading.Thread(target=self._forward_answers, daemon=True)
        self._listener.start()
        process_allowance().add(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, do: str, *, timeout_s: float | None = None, **arguments: Any) -> dict[str, Any]:
        """Send one command and wait for its answer, until the deadline that the command has.

        Raises:
            WorkerFailed: It crashed, hung, took too much memory or answered with an error.
        """
        if do not in _WITHOUT_MODEL:
            if self._rival is not None and self._rival._holds and self._rival.alive:
                self._rival.ask("unload")
            if self._holds is False and do != "load":
                self.ask("load")
                self.ask("first")
        limit_s = timeout_s or self._deadlines.get(do, self._timeout_s)
        with self._report_lost():
            arguments = self._link.send_arguments(arguments)
        line = json.dumps({"do": do, **codec.encode(arguments)})
        with self._commands.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        pipe = self._process.stdin
        assert pipe is not None
        before = self._read_times_s()
        memory.release_maps()
        try:
            pipe.write(line.encode() + b"\n")
            pipe.flush()
        except BrokenPipeError:
            raise self._make_death() from None
        answer = self._read_answer(limit_s, do, before)
        process_allowance().check()
        if self._ended:
            raise self._make_death()
        if "error" in answer:
            cause = answer.get("interruption")
            raise self._make_failure(
                str(answer["error"]),
                str(answer.get("fix", "")),
                None if cause is None else Interruption(cause),
            )
        with self._report_lost():
            self._link.fetch_outputs()
        if do in ("load", "unload"):
            self._holds = do == "load"
        return answer

    def take_turns_with(self, other: Worker) -> None:
        """Hold no model while the other does, where two so large ones are too much for the limit.

        Loading again takes long: what fits stays loaded. Whichever is asked something has its
        model loaded, and run once, the other's closed: one at a time is timed. A model of less
        than half the other's size stays beside it.
        """
        small, large = sorted((self._file_bytes, other._file_bytes))
        scarce = LOADING * (small + large) > min(self.limit, other.limit)
        if scarce and small + large >= LARGE_PAIR and 2 * small >= large:
            self._rival, other._rival = other, self

    def unload(self) -> None:
        """Give back what a large model takes until something is asked that needs it."""
        if self._holds and 2 * self._file_bytes >= LARGE_PAIR:
            self.ask("unload")

    @cached_property
    def _file_bytes(self) -> int:
        from ortune.graph.io import file

        with suppress(OrtuneError):
            return sum(map(file.count_file_bytes, self._models))
        return 0

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    def end(self, why: str) -> None:
        """Kill the process; what was asked of it fails for this reason."""
        self._ended = why
        self._link.kill()

    def close(self) -> None:
        """End the process: politely first."""
        process_allowance().drop(self)
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):
                self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=2)
        if self._process.returncode is None:
            self._link.kill()
        self._link.kill_process()
        self._process.wait()
        if self._trace:
            self._trace.setdefault("ended", time.time())
            text = json.dumps(self._trace, indent=1)
            self._job.with_name("device.json").write_text(text, encoding="utf-8")
        self._listener.join(timeout=_LISTENING_S)  # whoever else holds its pipe is not waited for
        if self._process.stdout is not None and not self._listener.is_alive():
            self._process.stdout.close()

    @contextmanager
    def _report_lost(self) -> Iterator[None]:
        try:
            yield
        except LinkLost as error:
            raise self._make_failure(str(error), interruption=Interruption.LINK) from None

    def _read_times_s(self) -> tuple[float, float, float]:
        """Return the time, and the seconds that the process' threads ran and waited for a CPU."""
        ran, waited = read_scheduled_ns(Path(f"/proc/{self.pid}/task"))
        return time.monotonic(), ran / 1e9, waited / 1e9

    def _read_answer(
        self, timeout_s: float, do: str, before: tuple[float, float, float]
    ) -> dict[str, Any]:
        """Return the answer; what tells how far it is goes to the sink.

        While an engine is being built the deadline moves on with every word of it.
        """
        began = before[0]
        until = began + min(timeout_s, time_limit.compute_remaining_s())
        while True:
            try:
                line = self._answers.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                now = self._read_times_s()
                seconds, ran, waited = (
                    late - early for early, late in zip(before, now, strict=True)
                )
                alone = ran >= _ALONE * seconds * len(usable_cpus())
                starved = waited > _STARVED * seconds and not alone
                busy = Interruption.BUSY if starved else None
                self._link.kill()
                time_limit.check_time()
                reason = f"no answer to '{do}' after {timeout_s:.3g} s"
                if busy:
                    reason = f"{reason}: {busy}"
                fix = _LESS_BUSY if busy else ""
                raise NoAnswer(Failure(reason, self.reproduce, fix, busy), self) from None
            if not line:
                raise self._make_death()
            answer: dict[str, Any] = json.loads(line)
            if "progress" not in answer:
                return answer
            self._sink(Progress(*answer["progress"]))
            if answer.get("building"):
                until = max(until, min(time.monotonic() + timeout_s, began + _LONGEST_BUILD_S))

    def _forward_answers(self) -> None:
        """Pass answers on from the pipe; an empty one marks its end. Selecting is not portable."""
        pipe = self._process.stdout
        if pipe is not None:
            for line in pipe:
                self._answers.put(line)
        self._answers.put(b"")

    def _make_death(self) -> WorkerFailed:
        """Return how the process ended.

        A limit that nobody asked for is what the machine had free at that moment: it tells
        nothing of the work.
        """
        ended = self._process.wait()
        code: int | None = ended
        if self._link.lease is not None and ended == LOST:
            code = None
        elif self._link.lease is not None and ended > 128:  # as a shell tells signals
            code = 128 - ended
        if self._ended:
            memory_gone = None if self._limit_requested else Interruption.MEMORY
            return self._make_failure(self._ended, interruption=memory_gone)
        lines = self._log.read_text(errors="replace").strip().splitlines()
        tail = f": {summarize_error(lines[-1])}" if lines else ""
        if code is None:
            reason = f"the connection to the device is lost{tail}"
            return self._make_failure(reason, interruption=Interruption.LINK)
        if code < 0:
            signal_names = {entry.value: entry.name for entry in signal.Signals}
            name = signal_names.get(-code, str(-code))
            if name in _FROM_OUTSIDE:
                reason = f"the worker was killed by {name}, from outside{tail}"
                return self._make_failure(reason, interruption=Interruption.KILLED)
            return self._make_failure(f"the worker was killed by {name}{tail}")
        return self._make_failure(f"the worker ended with exit code {code}{tail}")

    def _make_failure(
        self, reason: str, fix: str = "", interruption: Interruption | None = None
    ) -> WorkerFailed:
        fix = fix or (_MORE_MEMORY if self._ended else "")
        return WorkerFailed(Failure(reason, self.reproduce, fix, interruption), self)


def _forward_log(log: IO[bytes]) -> None:
    """Pass on what a runtime logs; names in it, a stranger's, cannot steer the terminal."""
    with log:
        for line in log:
            text = _COLOUR.sub("", line.decode(errors="replace"))
            sys.stderr.write(escape_control_chars(text))
            if why := messages.explain_line(text):
                sys.stderr.write(f"  harmless: {why}\n")


def ask_once(job: WorkerJob, *commands: tuple[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Start a worker, load, put the commands to it, and end it.

    Raises:
        WorkerFailed: See `Worker.ask`.
    """
    with Worker(job) as worker:
        worker.ask("load")
        return [worker.ask(do, **arguments) for do, arguments in commands]


def single_model_job(
    model: Path,
    backend: Backend,
    stream: Path,
    root: Path,
    label: str,
    *,
    workload: Workload = _LATENCY,
    environment: str = HERE,
    engines: Path | None = None,
) -> WorkerJob:
    """Return the job of a single model: its samples in `stream`, its files below `root`.

    A folder of built engines stands in the place of the user's.
    """
    out = worker_folder(root.resolve() / "workers", label)
    return WorkerJob(
        {MAIN: model.absolute()},
        backend,
        {MAIN: stream.resolve()},
        out,
        workload,
        environment=environment,
        engines=engines,
    )


def worker_folder(root: Path, label: str) -> Path:
    """Return a fresh numbered folder for a worker's files."""
    root.mkdir(parents=True, exist_ok=True)
    with _NUMBERING:
        folder = root / f"{sum(1 for _ in root.iterdir()):04}-{label}"
        folder.mkdir(exist_ok=True)
    return folder


def query_capabilities(backend: Backend, environment: str = HERE) -> Capabilities:
    """Return what an environment offers a backend.

    Raises:
        BadSettings: The runtime there does not know a setting, or there is no such environment.
    """
    place = find_lease(environment) or find_interpreter(environment)
    return _query_uncached(backend, environment, place)


@cache
def _query_uncached(backend: Backend, environment: str, place: object) -> Capabilities:
    """Ask it; another device or interpreter under the same name is another environment."""
    with open_temporary_folder() as folder:
        job = WorkerJob({}, backend, {}, Path(folder), environment=environment)
        try:
            with Worker(job) as worker:
                answer = worker.ask("capabilities")
        except WorkerFailed as error:
            raise BadSettings(
                error.failure.reason,
                fix=error.failure.fix or f"check the installation of {backend.name()}",
            ) from None
    return codec.decode(Capabilities, answer)


def require_backend(backend: Backend, environment: str = HERE) -> Capabilities:
    """Return what an environment offers a backend that can run there.

    Raises:
        BackendMissing: It cannot.
        BadSettings: As `query_capabilities`.
    """
    offer = query_capabilities(backend, environment)
    if offer.missing:
        where = HERE if environment == HERE else f"in environment '{environment}'"
        raise BackendMissing(f"backend '{backend.name()}' cannot run {where}", fix=offer.missing)
    return offer


def optimize_in_worker(
    model: Path, backend: Backend, out: Path, environment: str = HERE, timeout_s: float = 300
) -> None:
    """Let a worker write a model as a backend rewrites, converts or builds it.

    Raises:
        WorkerFailed: It does not.
    """
    with open_temporary_folder() as folder:
        job = WorkerJob({MAIN: model.absolute()}, backend, {}, folder, environment=environment)
        with Worker(job, timeout_s=timeout_s) as worker:
            worker.ask("optimize", out=str(out.resolve()))


def optimize_offline(model: Path, backend: Cpu, out: Path) -> Path:
    """Write `model` as the runtime rewrites it at a backend's level to `out`.

    Args:
        backend: At its level ``all`` the file is bound to this hardware.

    Raises:
        BadModel: The runtime does not load the model.
    """
    with translate_failures(f"{model.name} is not optimized"):
        optimize_in_worker(model, backend, out)
    return out


def keep_outputs(
    worker: Worker,
    indices: Sequence[int],
    path: Path,
    timeout_s: float | None = None,
    without: Sequence[str] = (),
) -> Stream:
    """Have a loaded worker write its outputs on some samples, but for those named.

    Raises:
        WorkerFailed: It does not run.
    """
    worker.ask(
        "score",
        indices=list(indices),
        metrics=[],
        save=path.resolve(),
        without=list(without),
        timeout_s=timeout_s,
    )
    return Stream(path)


def compute_outputs(job: WorkerJob, indices: Sequence[int], path: Path) -> Stream:
    """Like `keep_outputs`, of a worker that is started for it.

    Raises:
        WorkerFailed: The model does not run on these samples.
    """
    with Worker(job) as worker:
        worker.ask("load")
        return keep_outputs(worker, indices, path)
