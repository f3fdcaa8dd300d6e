"""Run inputs in a forked process that is watched: its time, its memory, and that it lives."""

from __future__ import annotations

import gc
import multiprocessing
import os
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import psutil
from numpy._core._exceptions import _ArrayMemoryError

import ortune
from ortune.core import runtime_conflict
from ortune.core.errors import OrtuneError
from ortune.measurement.machine import machine
from tests.fuzz.target import Broken, Case, Target

PATIENCE = float(os.environ.get("FUZZ_PATIENCE", "1"))
"""How often the time is allowed: more than once where other work is at the machine's CPUs."""
SECONDS = 5.0 * PATIENCE
"""Of processor time: what shares a core makes an input cost more."""
MAKING = 3.0
"""Seconds that making an input may take: this limit is kept from outside."""
BYTES = 1 << 30
"""Peak memory beyond what the input itself has."""
_FENCE = 3 * BYTES
"""Address space beyond what the process has: what is asked for above it is refused."""


@dataclass(frozen=True)
class Finding:
    """What an input did that none may do.

    Attributes:
        kind: ``exception``, ``time``, ``memory``, ``disk``, ``died`` or ``broken``.
        where: One text for all inputs that hit the same place.
        text: The stack, or the figures.
    """

    target: str
    index: int
    name: str
    kind: str
    where: str
    text: str


@dataclass(frozen=True)
class Seen:
    """What became of one input.

    Attributes:
        seconds: Of processor time, with that of processes that the reader started.
        bytes: Peak memory beyond what there was before, or of the largest process that a reader
            of this run has started; both 0 where the process fell.
    """

    index: int
    finding: Finding | None
    seconds: float = 0.0
    bytes: int = 0


def watch(target: Target, seed: int, indices: Sequence[int]) -> Iterator[Seen]:
    """Yield what became of each input, in order; a process that falls is started anew."""
    left = list(indices)
    target.draw(Random(0))  # what inputs are made of is made once, not in each process
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=_memory()) as name:
        while left:
            for seen in _process(target, seed, left, Path(name)):
                left = left[1:]
                yield seen


def _memory() -> Path | None:
    shared = Path("/dev/shm")
    return shared if shared.is_dir() else None


def _process(target: Target, seed: int, indices: Sequence[int], folder: Path) -> Iterator[Seen]:
    """Run inputs until one falls; that one is the last that is yielded."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    child = context.Process(
        target=_work, args=(target, seed, indices, folder, theirs), daemon=True
    )
    child.start()
    theirs.close()
    try:
        for index in indices:
            try:
                yield _answer(child, ours, target)
            except _Fallen as fallen:
                name, why = target.case(seed, index).name, str(fallen)
                yield Seen(index, Finding(target.name, index, name, fallen.kind, why, why))
                return
    finally:
        child.kill()
        child.join()
        for left in folder.iterdir():
            shutil.rmtree(left, ignore_errors=True)


class _Fallen(Exception):
    """The process will answer no more."""

    def __init__(self, kind: str, why: str) -> None:
        super().__init__(why)
        self.kind = kind


def _answer(child: multiprocessing.process.BaseProcess, pipe: Connection, target: Target) -> Seen:
    """Wait for the answer to one input.

    Raises:
        _Fallen: The process died, or used up its time.
    """
    process = psutil.Process(child.pid)
    first = last = _used(process)
    moved = time.monotonic()
    while not pipe.poll(0.2):
        used = _used(process)
        if used > last + 0.2:
            last, moved = used, time.monotonic()
        if used - first > SECONDS + MAKING:
            raise _Fallen("time", f"more than {SECONDS:g} s of processor time")
        if time.monotonic() - moved > target.patience:
            raise _Fallen("time", f"at a standstill for {target.patience:g} s")
    try:
        found: Seen = pipe.recv()
    except (EOFError, OSError):
        child.join(10)
        number = -(child.exitcode or 0)
        how = f"by {signal.Signals(number).name}" if number > 0 else f"with {child.exitcode}"
        raise _Fallen("died", f"the process ended {how}") from None
    return found


def _used(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return times.user + times.system


def _work(
    target: Target, seed: int, indices: Sequence[int], folder: Path, pipe: Connection
) -> None:
    """Run inputs one after the other, in the forked process."""
    quiet = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(quiet, number)
    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_FSIZE, (BYTES, BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for module, name in ((runtime_conflict, "list_runtimes"), (machine, "version")):
        setattr(module, name, cache(getattr(module, name)))  # the disk's answer stays the same
    home = Path.cwd()
    for index in indices:
        pipe.send(_one(target, seed, index, folder))
        os.chdir(home)


def _one(target: Target, seed: int, index: int, folder: Path) -> Seen:
    case = target.case(seed, index)
    place = case.write(folder / str(index))
    place.mkdir(exist_ok=True)
    os.chdir(place)
    tempfile.tempdir = str(place)
    _fence()
    gc.collect(0)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before, began, others = _kilobytes("VmHWM"), time.process_time(), _started()
    with _refused_memory() as refused:
        found = _tried(target, case, place, refused)
    took, more = time.process_time() - began, (_kilobytes("VmHWM") - before) * 1024
    shutil.rmtree(place, ignore_errors=True)
    if found is None and more > BYTES + case.size:
        found = "memory", "peak", f"{more / 1e6:.0f} MB beyond the input's {case.size} bytes"
    if found is None and took > SECONDS:
        found = "time", "slow", f"{took:.1f} s of processor time"
    made = None if found is None else Finding(target.name, index, case.name, *found)
    seconds, largest = (now - then for now, then in zip(_started(), others, strict=True))
    return Seen(index, made, took + seconds, max(more, others[1] + largest if seconds else 0))


def _started() -> tuple[float, int]:
    """Return processor seconds and peak bytes of all processes that this one has started."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime, used.ru_maxrss * 1024


def _fence() -> None:
    """Bound the address space; raised anew for every input, as libraries map more over time."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_kilobytes("VmSize") * 1024 + _FENCE, hard))


def _kilobytes(key: str) -> int:
    found = re.search(rf"^{key}:\s*(\d+)", Path("/proc/self/status").read_text(), re.MULTILINE)
    return int(found[1]) if found else 0


@contextmanager
def _refused_memory() -> Iterator[list[str]]:
    """Note where memory was refused, be the error caught by whoever asked.

    From Python 3.12 on every `MemoryError` that reaches a frame is seen, before that NumPy's.
    """
    refused: list[str] = []

    def note(error: BaseException, what: str = "") -> None:
        stack = "".join(traceback.format_stack()[-12:-2])
        refused.append(f"{stack}{type(error).__name__}: {what or error}")

    if sys.version_info >= (3, 12):
        seen = sys.monitoring
        seen.use_tool_id(seen.DEBUGGER_ID, "fuzz")
        seen.register_callback(
            seen.DEBUGGER_ID,
            seen.events.RAISE,
            lambda code, offset, error: note(error) if isinstance(error, MemoryError) else None,
        )
        seen.set_events(seen.DEBUGGER_ID, seen.events.RAISE)
        try:
            yield refused
        finally:
            seen.free_tool_id(seen.DEBUGGER_ID)
        return
    before = _ArrayMemoryError.__init__

    def begin(self: _ArrayMemoryError, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        before(self, shape, dtype)
        note(self, f"{shape} {dtype}")

    _ArrayMemoryError.__init__ = begin  # type: ignore[method-assign]
    try:
        yield refused
    finally:
        _ArrayMemoryError.__init__ = before  # type: ignore[method-assign]


def _tells_of_memory(error: BaseException | None) -> bool:
    """Say whether an error comes of a want of memory, and says so in the end."""
    while error is not None and not isinstance(error, MemoryError):
        error = error.__cause__ or error.__context__
    return error is not None


def _tried(
    target: Target, case: Case, folder: Path, refused: Sequence[str]
) -> tuple[str, str, str] | None:
    try:
        target.read(case, folder)
    except OrtuneError as error:
        if type(error).__name__ == "Unexpected":  # two lines in the place of a bug
            return "exception", f"unforeseen {error.what[:60]}", traceback.format_exc()[-4000:]
        if _tells_of_memory(error):
            return None
        if "File too large" in str(error):
            return "disk", "file", f"more than {BYTES} bytes are written: {error}"
    except Broken as error:
        return "broken", str(error).partition(":")[0], str(error)
    except MemoryError:
        return "memory", _where(), traceback.format_exc()[-4000:]
    except BaseException as error:
        return "exception", f"{type(error).__name__} {_where()}", traceback.format_exc()[-4000:]
    return ("memory", "swallowed", refused[0]) if refused else None


def _where() -> str:
    """Return the innermost place of ours in the stack that is being handled."""
    root = str(Path(ortune.__file__).parent)
    frames = traceback.extract_tb(sys.exc_info()[2])
    ours = [one for one in frames if one.filename.startswith(root)]
    if not ours:
        return frames[-1].name
    last = ours[-1]
    return f"{Path(last.filename).relative_to(root)}:{last.name}"
