"""Dynamic batching: a queue in front of a model, from any event loop and any thread."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from time import perf_counter_ns
from types import MappingProxyType
from typing import Any

from ortune.core import wording
from ortune.core.errors import OrtuneError
from ortune.core.session import Tensors
from ortune.engine.instances import MAX_BATCH, closed
from ortune.engine.joining import Answer, Joint, Outputs

MAX_QUEUE = 1024
"""Requests that wait at most."""


class QueueFull(OrtuneError):
    """More requests wait than may: a server answers 503."""


@dataclass(frozen=True)
class Batches:
    """What was computed in batches of one size.

    Attributes:
        count: Batches.
        requests: In them.
        queue_ns: Sum of what the requests waited, nanoseconds.
        compute_ns: Sum of what the batches took.
    """

    count: int = 0
    requests: int = 0
    queue_ns: int = 0
    compute_ns: int = 0


@dataclass(frozen=True)
class Statistics:
    """A queue's counts since it was made.

    Attributes:
        depth: Requests that wait now.
        failed: Requests that were computed and got an error.
        cancelled: Requests that were given up before their turn.
        refused: Requests that found the queue full.
        batches: Rows -> what was computed in batches of so many.
    """

    depth: int
    failed: int
    cancelled: int
    refused: int
    batches: Mapping[int, Batches]


@dataclass(eq=False, slots=True)
class _Request:
    feeds: Tensors
    rows: int
    future: asyncio.Future[Outputs]
    queued_ns: int


@dataclass(eq=False, slots=True)
class _Waiting:
    """Requests of one form, in the order that they came."""

    requests: deque[_Request] = field(default_factory=deque)
    rows: int = 0


class Batcher:
    """A queue whose requests of equal shapes are computed together.

    Greedy where no delay is set: a free worker takes what waits, however little. Forms take turns.
    Requests are checked by whoever gives them; one that the runtime refuses fails alone. A caller
    that is cancelled leaves the queue. The arrays of a request must not change before its answer.

    Args:
        name: The model's, for messages.
        joint: Computes requests, alone or joined.
        workers: Threads that compute. They start at once, so that they have the state of the
            thread that opened the sessions (denormals are flushed by thread).
        max_batch: Rows that are computed together at most.
        max_delay_us: Microseconds that a request waits for others.
        max_queue: Requests that wait at most.
    """

    def __init__(
        self,
        name: str,
        joint: Joint,
        *,
        workers: int = 1,
        max_batch: int = MAX_BATCH,
        max_delay_us: int = 0,
        max_queue: int = MAX_QUEUE,
    ) -> None:
        self._name, self._joint = name, joint
        self._most, self._delay_ns, self._bound = max_batch, 1000 * max_delay_us, max_queue
        self._waiting: dict[Hashable, _Waiting] = {}
        self._depth = self._failed = self._cancelled = self._refused = 0
        self._batches: dict[int, Batches] = {}
        self._changed = threading.Condition()
        self._closed = False
        self._threads = [
            threading.Thread(target=self._work, name=f"ortune {name}", daemon=True)
            for _ in range(workers)
        ]
        for thread in self._threads:
            thread.start()

    async def submit(self, feeds: Tensors) -> Outputs:
        """Queue one request and return its outputs.

        Raises:
            QueueFull: Too many wait.
            BadData: The runtime refuses it.
            OrtuneError: The queue was closed.
        """
        form, rows = self._joint.form(feeds)
        future: asyncio.Future[Outputs] = asyncio.get_running_loop().create_future()
        request = _Request(feeds, rows, future, perf_counter_ns())
        key: Hashable = id(request) if form is None else form  # what is not joined is alone in it
        self._add(request, key)
        try:
            return await future
        except asyncio.CancelledError:
            self._drop(request, key)
            raise

    def _add(self, request: _Request, form: Hashable) -> None:
        with self._changed:
            if self._closed:
                raise closed(self._name)
            if self._depth >= self._bound:
                self._refused += 1
                raise QueueFull(
                    f"{self._name}: {wording.count(self._depth, 'request')} wait, and no more may",
                    fix="send fewer at once, or load with more instances",
                )
            held = self._waiting.setdefault(form, _Waiting())
            held.requests.append(request)
            held.rows += request.rows
            self._depth += 1
            self._changed.notify()

    def _drop(self, request: _Request, form: Hashable) -> None:
        """Forget a request that nobody waits for any more, if it was not taken yet."""
        with self._changed:
            held = self._waiting.get(form)
            if held is None or request not in held.requests:
                return
            held.requests.remove(request)
            held.rows -= request.rows
            self._depth -= 1
            self._cancelled += 1
            if not held.requests:
                del self._waiting[form]

    @property
    def statistics(self) -> Statistics:
        """Counts as they are now."""
        with self._changed:
            counts = self._depth, self._failed, self._cancelled, self._refused
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

    # --- in a worker ------------------------------------------------------------------------

    def _work(self) -> None:
        while self._next():
            pass

    def _next(self) -> bool:
        """Compute one batch; False when there will be no more. Nothing is held while it waits."""
        batch = self._take()
        if batch:
            start = perf_counter_ns()
            answers = self._computed([one.feeds for one in batch])
            self._count(batch, answers, start, perf_counter_ns())
            _deliver(batch, answers)
        return bool(batch)

    def _take(self) -> list[_Request]:
        """Wait for a batch and return it, nothing when the queue is closed and empty."""
        with self._changed:
            while True:
                form, wait_ns = self._ready(perf_counter_ns())
                if form is not None:
                    if batch := self._pop(form):
                        return batch
                elif self._closed and not self._waiting:
                    return []
                else:
                    self._changed.wait(wait_ns and wait_ns / 1e9)

    def _ready(self, now: int) -> tuple[Hashable | None, int | None]:
        """Return a form whose requests may go, or how long the first of them still waits."""
        soonest = None
        for form, held in self._waiting.items():
            left = held.requests[0].queued_ns + self._delay_ns - now
            if left <= 0 or held.rows >= self._most or self._closed or isinstance(form, int):
                return form, None
            soonest = left if soonest is None else min(soonest, left)
        return None, soonest

    def _pop(self, form: Hashable) -> list[_Request]:
        """Take a batch of a form; what is left of it goes behind the other forms."""
        held = self._waiting.pop(form)
        batch: list[_Request] = []
        rows = 0
        while held.requests and (not batch or rows + held.requests[0].rows <= self._most):
            request = held.requests.popleft()
            held.rows -= request.rows
            self._depth -= 1
            if request.future.cancelled():
                self._cancelled += 1
            else:
                batch.append(request)
                rows += request.rows
        if held.requests:
            self._waiting[form] = held
        if self._waiting:
            self._changed.notify()
        return batch

    def _computed(self, samples: Sequence[Tensors]) -> Sequence[Answer]:
        """Return an answer to each, whatever happens: no worker ends with requests waiting."""
        try:
            return self._joint.answers(samples)
        except Exception as error:
            return [error] * len(samples)

    def _count(
        self, batch: Sequence[_Request], answers: Sequence[Answer], start: int, end: int
    ) -> None:
        rows = sum(one.rows for one in batch)
        with self._changed:
            before = self._batches.get(rows, Batches())
            self._batches[rows] = Batches(
                before.count + 1,
                before.requests + len(batch),
                before.queue_ns + sum(start - one.queued_ns for one in batch),
                before.compute_ns + end - start,
            )
            self._failed += sum(isinstance(one, Exception) for one in answers)


def _deliver(batch: Sequence[_Request], answers: Sequence[Answer]) -> None:
    """Wake every event loop once, however many of its requests are answered."""
    loops: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Outputs], Answer]]] = {}
    for request, answer in zip(batch, answers, strict=True):
        loops.setdefault(request.future.get_loop(), []).append((request.future, answer))
    for loop, pairs in loops.items():
        with suppress(RuntimeError):  # the loop was closed: nobody waits any more
            loop.call_soon_threadsafe(_settle, pairs)


def _settle(pairs: Sequence[tuple[asyncio.Future[Any], Answer]]) -> None:
    for future, answer in pairs:
        if future.done():
            continue
        if isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            future.set_result(answer)
