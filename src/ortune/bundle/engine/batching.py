"""Dynamic batching: samples joined along what is proved to be a batch, and a queue of them."""

from __future__ import annotations

import asyncio
import threading
import warnings
from collections import deque
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate
from time import perf_counter_ns
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ortune.backends.bucketed import Bucketed
from ortune.bundle.engine.golden import snr_db
from ortune.bundle.engine.instances import MAX_BATCH, MAX_QUEUE, make_closed_error
from ortune.bundle.engine.manifest import Signature
from ortune.core import wording
from ortune.core.backend import Backend
from ortune.core.errors import OrtuneError
from ortune.core.facts import TensorSpec
from ortune.core.session import Tensors
from ortune.core.termination import RunTerminated, Termination
from ortune.data.stream import NO_DTYPE

Outputs: TypeAlias = dict[str, NDArray[Any]]
Answer: TypeAlias = Outputs | Exception
"""Outputs by name, or why there are none."""
Form: TypeAlias = tuple[tuple[int, ...], ...]
"""The shape of every input behind its first dimension, without the padding that is cut."""
SAME_DB = 60.0
"""Answers that differ by more depend on what they are computed with. Real models in float32 give
the same bits joined as alone; integers whose range is taken over the batch left 14 to 48 dB."""


class Joint:
    """Which samples of a model may be computed together, and their answers.

    They are joined along the first dimension where it is free in all inputs and outputs, under one
    name that no other dimension has. That name may still be no batch, such as the tokens of one
    text, so two samples are computed both ways before the first is joined; where answers disagree,
    samples of this model run one by one.

    A backend with length buckets would cut a run to the longest sample in it. So samples are cut
    before they are joined, each to its own bucket: those of one bucket have one shape whatever
    their padding was, and each gets what it gets alone.

    Every batch is filled up to `fill` rows, by repeating its last one; 0 fills none.
    """

    def __init__(
        self,
        name: str,
        signature: Signature,
        run: Callable[[Tensors], Outputs],
        backend: Backend | None = None,
        *,
        fill: int = 0,
    ) -> None:
        self._name, self._run, self._fill = name, run, fill
        self._compared: Callable[[Tensors, Tensors], Tensors] = (
            backend.compared if backend else lambda feeds, outputs: outputs
        )
        self._buckets = backend if isinstance(backend, Bucketed) else None
        self._inputs = [spec.name for spec in signature.inputs]
        self._joins = has_free_batch(signature)
        self._proved = False
        self._proving = threading.Lock()

    def find_form(self, feeds: Tensors) -> tuple[Form | None, int]:
        """Return what samples to be joined share, and this one's rows; None, 1 for one alone."""
        if not self._joins:
            return None, 1
        feeds = self._cut_to_bucket(feeds)
        shapes = [feeds[name].shape for name in self._inputs]
        rows = shapes[0][0]
        if not rows or any(shape[0] != rows for shape in shapes):
            return None, 1
        return tuple(shape[1:] for shape in shapes), rows

    def group_samples(self, samples: Sequence[Tensors], most: int) -> list[list[int]]:
        """Return the places of samples computed together, `most` rows a group where they fit."""
        groups: list[list[int]] = []
        last: dict[Form | None, tuple[list[int], int]] = {}
        for place, feeds in enumerate(samples):
            form, rows = self.find_form(feeds)
            group, group_rows = last.get(form, ([], most))
            if group_rows + rows > most:
                group, group_rows = [], 0
                groups.append(group)
            group.append(place)
            if form is not None:
                last[form] = group, group_rows + rows
        return groups

    def compute_answers(self, samples: Sequence[Tensors]) -> Sequence[Answer]:
        """Return each sample's answer; none fails for another's sake. Raises RunTerminated."""
        if (len(samples) > 1 or self._fill) and self.prove_joinable(samples):
            together = self._compute_together(samples)
            if together is not None:
                return together
        return [self._compute_alone(sample) for sample in samples]

    def prove_joinable(self, samples: Sequence[Tensors]) -> bool:
        """Say whether samples may be joined; asked for the first time, two are computed both ways.

        The second is one that differs from the first, or the first with its values in reverse
        order. The question stays open where a sample is refused, or all values are equal.
        """
        if self._proved or not self._joins:
            return self._proved
        with self._proving:
            if self._joins and not self._proved:
                first = self._cut_to_bucket(samples[0])
                reverse = {  # the same values: ids stay ids, masks stay masks
                    name: np.ascontiguousarray(array.ravel()[::-1]).reshape(array.shape)
                    for name, array in first.items()
                }
                candidates = (*map(self._cut_to_bucket, samples[1:]), reverse)
                other = next(
                    (candidate for candidate in candidates if not _are_equal(candidate, first)),
                    None,
                )
                if other is not None:
                    self._compare_pair(first, other)
        return self._proved

    def fill_up(self, feeds: Tensors) -> Tensors:
        """Return inputs with as many rows as every batch has; more, and no rows, stay so."""
        form, rows = self.find_form(feeds)
        if form is None or (missing := self._fill - rows) <= 0:
            return feeds
        return {
            name: np.concatenate([array, np.repeat(array[-1:], missing, 0)])
            for name, array in feeds.items()
        }

    def _cut_to_bucket(self, feeds: Tensors) -> Tensors:
        """Return a sample as its bucket has it."""
        length = self._buckets.choose_bucket(feeds) if self._buckets else 0
        return self._buckets.cut_feeds(feeds, length) if self._buckets and length else feeds

    def _compare_pair(self, *pair: Tensors) -> None:
        """Join two samples and find out whether each is answered as alone."""
        alone = [
            expected
            for expected in map(self._compute_alone, pair)
            if not isinstance(expected, Exception)
        ]
        if len(alone) < len(pair):
            return
        together = self._compute_together(pair)
        agreement_db = min(
            (
                snr_db(self._compared(feeds, expected), self._compared(feeds, actual))
                for feeds, expected, actual in zip(pair, alone, together or (), strict=False)
            ),
            default=float("-inf"),
        )
        self._proved = self._joins = agreement_db >= SAME_DB
        if not self._joins:
            warnings.warn(
                f"{self._name}: outputs change when samples are batched (SNR {agreement_db:.0f} "
                "dB), so each sample is computed alone",
                RuntimeWarning,
                stacklevel=2,
            )

    def _compute_alone(self, feeds: Tensors) -> Answer:
        try:
            return self._run(feeds)
        except RunTerminated:
            raise
        except Exception as error:
            return error

    def _compute_together(self, samples: Sequence[Tensors]) -> list[Outputs] | None:
        """Return the parts of one run's outputs; None where it fails or gives other rows."""
        rows = [sample[self._inputs[0]].shape[0] for sample in samples]
        ends = list(accumulate(rows))
        try:
            cut = [self._cut_to_bucket(sample) for sample in samples]
            feeds = self.fill_up(
                {n: np.concatenate([sample[n] for sample in cut]) for n in self._inputs}
            )
            outputs = self._run(feeds)
        except RunTerminated:
            raise
        except Exception:
            return None
        total = len(feeds[self._inputs[0]])
        if any(array.shape[:1] != (total,) for array in outputs.values()):
            return None
        parts = [
            {name: array[end - count : end].copy() for name, array in outputs.items()}
            for count, end in zip(rows, ends, strict=True)
        ]
        if (buckets := self._buckets) is None:
            return parts
        return [  # what was cut gets the length of its inputs again
            part if short is whole else buckets.pad_outputs(part, whole[buckets.mask].shape[1])
            for part, whole, short in zip(parts, samples, cut, strict=True)
        ]


def _are_equal(first: Tensors, second: Tensors) -> bool:
    return all(np.array_equal(array, second[name]) for name, array in first.items())


def has_free_batch(signature: Signature) -> bool:
    """Say whether inputs and outputs have one free first dimension, which is no other one too."""
    specs = (*signature.inputs, *signature.outputs)
    shapes = [spec.shape for spec in specs if spec.shape]
    if not signature.inputs or len(shapes) < len(specs) or not all(map(_is_dense, specs)):
        return False
    first = shapes[0][0]
    return isinstance(first, str) and all(
        shape[0] == first and first not in shape[1:] for shape in shapes
    )


def _is_dense(spec: TensorSpec) -> bool:
    """Whether values are numbers in an array: no text, no sequence."""
    try:
        return np.dtype(spec.dtype).kind not in "OUST" if spec.dtype else False
    except NO_DTYPE:
        return False


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
