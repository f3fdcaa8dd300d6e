"""Workers of tests are forked from one process that has imported what they need.

To start Python and import NumPy, onnxruntime and ortune takes 0.4 s of a processor, twelve times
for a search of two trials: a third of the whole suite. `starting` has what ``python -P -m
ortune.measurement.worker JOB.json`` would run start as a fork instead, with the pipes, the
session, the folder and the exit status it would have. What is asked of another interpreter, or
with other variables that Python or a library reads as it starts, is started as ever; so is every
worker where ``ORTUNE_REAL_WORKERS`` is set, in processes that tests start, and on other systems
than Linux.
Timings of tests are not evidence, so that forks share one layout of addresses does no harm here;
a search of a user's never does this.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from select import select
from typing import Any, NoReturn

from ortune.core.plugins import catalog
from ortune.core.python_process import make_python_command

PROGRAMS = {
    "ortune.measurement.worker": "ortune.measurement.worker.__main__",
    "ortune.analysis.benchmark.frame_worker": "ortune.analysis.benchmark.frame_worker",
}
"""What is run as a program -> the module whose `main` that calls."""
SETTLED = ("PYTHON", "LD_", "OMP_", "OPENBLAS_", "MKL_", "KMP_", "CUDA_", "ORT")
"""How variables begin that are read at a start or an import: with others nothing is forked."""
_LATER = "CUDA_DEVICE_ORDER"
"""It is read where CUDA begins, in the fork; who asks for CUDA's devices leaves it set."""
_LONGEST = 1 << 16
_more: list[str] = []


def _settled(given: Any) -> dict[str, str]:
    return {k: v for k, v in given.items() if k.startswith(SETTLED) and k != _LATER}


class Zygote:
    """The process that forks, as seen by the one that asks it."""

    def __init__(self, more: Sequence[str]) -> None:
        self._settled = _settled(os.environ)
        self._lock = threading.Lock()
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, __file__, str(theirs.fileno()), *more]
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], start_new_session=True
        )
        theirs.close()

    def fits(self, env: Any) -> bool:
        """Say whether a process with this environment can be forked from it."""
        return _settled(env) == self._settled

    def fork(self, words: list[str], env: Any, cwd: Any, fds: list[int]) -> int:
        """Return the new process's id."""
        asked = {"words": words, "env": dict(env), "cwd": str(Path(cwd or ".").absolute())}
        with self._lock:
            socket.send_fds(self._ours, [json.dumps(asked).encode()], fds)
            return int(self._ours.recv(32))

    def close(self) -> None:
        """End it."""
        self._ours.close()
        self._process.wait()


@contextmanager
def importing(*names: str) -> Iterator[None]:
    """Have workers also start with modules, the heavy ones of whole files of tests, imported."""
    kept = _more[:]
    _more[:] = names
    try:
        yield
    finally:
        _more[:] = kept


@contextmanager
def starting() -> Iterator[None]:
    """Have workers be forks for a while."""
    if sys.platform != "linux" or "ORTUNE_REAL_WORKERS" in os.environ:
        yield
        return
    process = importlib.import_module("ortune.measurement.process")
    zygotes: dict[tuple[str, ...], Zygote] = {}

    class Popen(subprocess.Popen):  # type: ignore[type-arg]
        """A worker that is forked where it can be."""

        _status: int | None = None

        def _execute_child(self, args: Any, *more: Any) -> None:
            cwd, env = more[4:6]
            pipes = more[9:15]  # of stdin, stdout and stderr: to read and to write
            streams = [pipes[0], pipes[3], pipes[5]]
            ours = [*args[:3]] == make_python_command("-m") and args[3] in PROGRAMS
            if ours and tuple(_more) not in zygotes:
                zygotes[tuple(_more)] = Zygote(_more)
            zygote = zygotes.get(tuple(_more))
            if not ours or not zygote or min(streams) < 0 or not zygote.fits(env):
                super()._execute_child(args, *more)  # type: ignore[misc]
                return
            self._status, written = os.pipe()
            self.pid = zygote.fork(args[3:], env, cwd, [*streams, written])
            self._child_created = True
            os.close(written)
            self._close_pipe_fds(*pipes)

        def _try_wait(self, wait_flags: int) -> tuple[int, int]:
            if self._status is None:
                return super()._try_wait(wait_flags)  # type: ignore[misc, no-any-return]
            if wait_flags and not select([self._status], [], [], 0)[0]:
                return 0, 0
            word = os.read(self._status, 32)
            os.close(self._status)
            return self.pid, int(word or signal.SIGKILL)

        def _internal_poll(self, _deadstate: Any = None, **more: Any) -> int | None:
            if self._status is None:
                return super()._internal_poll(_deadstate, **more)  # type: ignore[misc, no-any-return]
            if self.returncode is None and self._waitpid_lock.acquire(False):
                try:
                    if self.returncode is None:
                        pid, status = self._try_wait(os.WNOHANG)
                        if pid:
                            self._handle_exitstatus(status)
                finally:
                    self._waitpid_lock.release()
            return self.returncode

    class Shim:
        """The module `subprocess`, but for one name."""

        def __getattr__(self, name: str) -> Any:
            return Popen if name == "Popen" else getattr(subprocess, name)

    kept, process.subprocess = process.subprocess, Shim()
    try:
        yield
    finally:
        process.subprocess = kept
        for one in zygotes.values():
            one.close()


def _serve(asks: socket.socket, more: Sequence[str]) -> None:
    """Fork whenever asked, and pass on with which status a fork ended."""
    del sys.path[0]  # the folder of this file: a worker starts in safe-path mode
    for name in ("onnxruntime", *PROGRAMS.values(), *more):
        importlib.import_module(name)
    catalog.list_plugin_packages()  # it opens every distribution
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ended, wakes = socket.socketpair()
    for one in (ended, wakes):
        one.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakes.fileno())
    forks: dict[int, int] = {}
    chosen = selectors.DefaultSelector()
    chosen.register(asks, selectors.EVENT_READ)
    chosen.register(ended, selectors.EVENT_READ)
    while True:
        ready = {key.fileobj for key, _ in chosen.select()}
        if ended in ready:
            with suppress(BlockingIOError):
                ended.recv(4096)
            while forks:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    break
                pipe = forks.pop(pid)
                with suppress(BrokenPipeError):
                    os.write(pipe, str(status).encode())
                os.close(pipe)
        if asks in ready:
            text, fds, _, _ = socket.recv_fds(asks, _LONGEST, 4)
            if not text:
                return
            pid = os.fork()
            if not pid:
                _become(json.loads(text), fds)
            for one in fds[:3]:
                os.close(one)
            forks[pid] = fds[3]
            asks.send(str(pid).encode())


def _become(asked: dict[str, Any], fds: list[int]) -> NoReturn:
    """Be the worker that was asked for, until its end."""
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        for stream, fd in enumerate(fds[:3]):
            os.dup2(fd, stream)
        os.closerange(3, 4096)
        os.environ.clear()
        os.environ |= asked["env"]
        os.chdir(asked["cwd"])
        program, *words = asked["words"]
        sys.argv = [program, *words]
        status = importlib.import_module(PROGRAMS[program]).main(*words)
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(BaseException):
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:])
