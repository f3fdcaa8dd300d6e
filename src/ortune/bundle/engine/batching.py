"""Dynamic batching: a queue in front of a model, from any event loop and any thread."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Collection, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from time import perf_counter_ns
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from ortune.bundle.engine.instances import MAX_BATCH, MAX_QUEUE, make_closed_error
from ortune.bundle.engine.joining import Answer, Joint, Outputs
from ortune.core import wording
from ortune.core.errors import OrtuneError
from ortune.core.session import Tensors
from ortune.core.termination import RunTerminated, Termination


class TimedAnswer(NamedTuple):
    """A request's outputs, and when it was computed with how many rows, by `perf_counter_ns`.

    It started when its batch was taken to be computed, and ended when that had its answers.
    """

    outputs: Outputs
    queued_ns: int
    started_ns: int
    ended_ns: int
    rows: int


@dataclass(eq=False, slots=True)
class QueuedRequest:
    """What one caller waits for; in a `batch` only while it is computed."""

    feeds: Tensors
    rows: int
    future: asyncio.Future[TimedAnswer]
    queued_ns: int
    batch: Batch | None = None


@dataclass(eq=False, slots=True)
class Batch:
    """Requests that are computed together, and what ends that."""

    requests: Sequence[QueuedRequest]
    termination: Termination = field(default_factory=Termination)

    def end_unless_awaited(self) -> None:
        """Tell the run to end where nobody waits for any of its answers."""
        if all(request.future.cancelled() for request in self.requests):
            self.termination.request()


@dataclass(eq=False, slots=True)
class _Line:
    """Requests of one form, in the order that they came."""

    requests: deque[QueuedRequest] = field(default_factory=deque)
    rows: int = 0


class WaitingRequests:
    """Requests by form; forms take turns. Not safe for threads: its owner holds a lock.

    A form that is an int holds one request, which goes at once and alone. Others wait `delay_ns`
    for a batch of `most` rows, or of one of the `preferred`, the largest that is there.
    """

    def __init__(self, most: int, delay_ns: int = 0, preferred: Collection[int] = ()) -> None:
        self._delay_ns = delay_ns
        self._sizes = sorted({most, *(rows for rows in preferred if rows < most)})
        self._lines: dict[Hashable, _Line] = {}
        self.depth = 0

    def add_request(self, request: QueuedRequest, form: Hashable) -> None:
        """Put a request behind those of its form."""
        line = self._lines.setdefault(form, _Line())
        line.requests.append(request)
        line.rows += request.rows
        self.depth += 1

    def drop_request(self, request: QueuedRequest, form: Hashable) -> bool:
        """Forget a request, and say whether it still waited."""
        line = self._lines.get(form)
        if line is None or request not in line.requests:
            return False
        line.requests.remove(request)
        line.rows -= request.rows
        self.depth -= 1
        if not line.requests:
            del self._lines[form]
        return True

    def find_ready(self, now: int, *, hurry: bool = False) -> tuple[Hashable | None, int | None]:
        """Return a form whose requests may go, or how long its first still waits, in ns.

        `now` is by the clock of the requests; in a `hurry` nobody waits for others any more.
        """
        soonest = None
        for form, line in self._lines.items():
            remaining_ns = line.requests[0].queued_ns + self._delay_ns - now
            if remaining_ns <= 0 or line.rows >= self._sizes[0] or hurry or isinstance(form, int):
                return form, None
            soonest = remaining_ns if soonest is None else min(soonest, remaining_ns)
        return None, soonest

    def take_batch(self, form: Hashable) -> list[QueuedRequest]:
        """Take a batch of a form; what is left of it goes behind the other forms."""
        line = self._lines.pop(form)
        fitting = (size for size in reversed(self._sizes) if size <= line.rows)
        most, rows = next(fitting, self._sizes[-1]), 0
        batch: list[QueuedRequest] = []
        while line.requests and (not batch or rows + line.requests[0].rows <= most):
            request = line.requests.popleft()
            line.rows -= request.rows
            self.depth -= 1
            rows += request.rows
            batch.append(request)
        if line.requests:
            self._lines[form] = line
        return batch


class QueueFull(OrtuneError):
    """More requests wait than may: a server answers 503."""


@dataclass(frozen=True)
class Batches:
    """What was computed in batches of one size; `queue_ns` is the sum of what requests waited."""

    count: int = 0
    requests: int = 0
    queue_ns: int = 0
    compute_ns: int = 0


@dataclass(frozen=True)
class Statistics:
    """A queue's counts since it was made, and what was computed by the rows of batches.

    Failed requests were computed and got an error. Cancelled ones were given up before their turn,
    or nobody waited for them any more: then their run was told to end. Refused ones found the
    queue full.
    """

    depth: int
    failed: int
    cancelled: int
    refused: int
    batches: Mapping[int, Batches]


_Settled: TypeAlias = tuple[asyncio.Future[TimedAnswer], TimedAnswer | Exception]


class Batcher:
    """A queue whose requests of equal shapes are computed together.

    Greedy where no delay is set: a free worker takes what waits, however little. Forms take turns.
    Requests are checked by whoever gives them; one that the runtime refuses fails alone. A caller
    that is cancelled leaves the queue; where no other one waits for what is being computed, that
    is told to end. The arrays of a request must not change before its answer.

    Workers start with the first request; `at_once` they start now, with the state of the thread
    that opened the sessions (denormals are flushed by thread). A batch of `preferred` rows waits
    no longer.
    """

    def __init__(
        self,
        name: str,
        joint: Joint,
        *,
        workers: int = 1,
        at_once: bool = False,
        max_batch: int = MAX_BATCH,
        max_delay_us: int = 0,
        preferred: Collection[int] = (),
        max_queue: int = MAX_QUEUE,
    ) -> None:
        self._name, self._joint = name, joint
        self._waiting = WaitingRequests(max_batch, 1000 * max_delay_us, preferred)
        self._bound = max_queue
        self._failed = self._cancelled = self._refused = 0
        self._batches: dict[int, Batches] = {}
        self._changed = threading.Condition()
        self._closed = self._terminated = False
        self._computing: set[Batch] = set()
        self._workers = workers
        self._threads: list[threading.Thread] = []
        if at_once:
            self._start_workers()

    def _start_workers(self) -> None:
        for _ in range(self._workers):
            thread = threading.Thread(
                target=self._run_worker, name=f"ortune {self._name}", daemon=True
            )
            thread.start()
            self._threads.append(thread)

    async def submit_request(self, feeds: Tensors) -> TimedAnswer:
        """Queue one request and return its outputs with its times.

        Raises QueueFull: too many wait; BadData: the runtime refuses it; OrtuneError: it was
        closed.
        """
        form, rows = self._joint.find_form(feeds)
        future: asyncio.Future[TimedAnswer] = asyncio.get_running_loop().create_future()
        request = QueuedRequest(feeds, rows, future, perf_counter_ns())
        key: Hashable = id(request) if form is None else form  # what is not joined is alone in it
        with self._changed:
            if self._closed:
                raise make_closed_error(self._name)
            if (depth := self._waiting.depth) >= self._bound:
                self._refused += 1
                raise QueueFull(
                    f"{self._name}: the queue is full: {wording.format_count(depth, 'request')} "
                    "wait",
                    fix="send fewer at once, or load with more instances",
                )
            if not self._threads:
                self._start_workers()
            self._waiting.add_request(request, key)
            self._changed.notify()
        try:
            return await future
        except asyncio.CancelledError:
            with self._changed:
                self._cancelled += self._waiting.drop_request(request, key)
                if request.batch is not None:
                    request.batch.end_unless_awaited()
            raise
        finally:
            del request, future  # an error keeps this frame, and they would keep the error

    @property
    def statistics(self) -> Statistics:
        """Counts as they are now."""
        with self._changed:
            counts = self._waiting.depth, self._failed, self._cancelled, self._refused
            return Statistics(*counts, MappingProxyType(dict(self._batches)))

    def close(self) -> None:
        """Take no more requests and return when those that wait are answered."""
        self.stop()
        for thread in self._threads:
            thread.join()

    def stop(self) -> None:
        """Take no more requests; the workers end behind those that wait."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def terminate(self) -> None:
        """Take no more requests; those that wait or are computed end without an answer."""
        self.stop()
        with self._changed:
            self._terminated = True
            for batch in self._computing:
                batch.termination.request()

    # --- in a worker ------------------------------------------------------------------------

    def _run_worker(self) -> None:
        """Compute one batch after the other; nothing is held while it waits.

        An error keeps the frames below it, also when they have returned: none of those that return
        may know the request that keeps the error.
        """
        while (batch := self._wait_for_batch()) is not None:
            start = perf_counter_ns()
            samples = [request.feeds for request in batch.requests]
            try:
                with batch.termination.scope():
                    answers = self._joint.compute_answers(samples)
            except Exception as error:  # no worker ends with requests waiting
                answers = [error] * len(samples)
            self._settle_batch(batch, answers, start)
            del batch, samples, answers

    def _settle_batch(self, batch: Batch, answers: Sequence[Answer], start: int) -> None:
        """Count a batch that was computed, and wake those who wait for it."""
        requests = batch.requests
        rows = sum(request.rows for request in requests)
        end = perf_counter_ns()
        with self._changed:
            self._computing.discard(batch)
            for request in requests:  # or each holds its inputs and outputs until a collection
                request.batch = None
            before = self._batches.get(rows, Batches())
            self._batches[rows] = Batches(
                before.count + 1,
                before.requests + len(requests),
                before.queue_ns + sum(start - request.queued_ns for request in requests),
                before.compute_ns + end - start,
            )
            terminated = sum(isinstance(answer, RunTerminated) for answer in answers)
            self._cancelled += terminated
            self._failed += sum(isinstance(answer, Exception) for answer in answers) - terminated
        # Every event loop is woken once, however many of its requests are answered.
        loops: dict[asyncio.AbstractEventLoop, list[_Settled]] = {}
        for request, answer in zip(requests, answers, strict=True):
            whole: TimedAnswer | Exception = (
                answer
                if isinstance(answer, Exception)
                else TimedAnswer(answer, request.queued_ns, start, end, rows)
            )
            loops.setdefault(request.future.get_loop(), []).append((request.future, whole))
        for loop, pairs in loops.items():
            with suppress(RuntimeError):  # the loop was closed: nobody waits any more
                loop.call_soon_threadsafe(_settle_futures, pairs)

    def _wait_for_batch(self) -> Batch | None:
        """Wait for a batch and return it, nothing when the queue is closed and empty."""
        with self._changed:
            while True:
                form, wait_ns = self._waiting.find_ready(perf_counter_ns(), hurry=self._closed)
                if form is not None:
                    if requests := self._drop_cancelled(self._waiting.take_batch(form)):
                        batch = Batch(requests)
                        for request in requests:
                            request.batch = batch
                        self._computing.add(batch)
                        if self._terminated:
                            batch.termination.request()
                        return batch
                elif self._closed:
                    return None
                else:
                    self._changed.wait(wait_ns and wait_ns / 1e9)

    def _drop_cancelled(self, requests: Sequence[QueuedRequest]) -> list[QueuedRequest]:
        """Return those of a batch that somebody waits for; another worker sees to what is left."""
        if self._waiting.depth:
            self._changed.notify()
        batch = [request for request in requests if not request.future.cancelled()]
        self._cancelled += len(requests) - len(batch)
        return batch


def _settle_futures(pairs: Sequence[_Settled]) -> None:
    for future, answer in pairs:
        if future.done():
            continue
        if isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            future.set_result(answer)
