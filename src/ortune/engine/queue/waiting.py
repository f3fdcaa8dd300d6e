"""Requests that wait, by their form: which of them make the next batch, and when it goes."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection, Hashable
from dataclasses import dataclass, field
from typing import NamedTuple

from ortune.core.session import Tensors
from ortune.engine.joining import Outputs


class Answered(NamedTuple):
    """A request's outputs, and when it was computed with how many.

    Attributes:
        outputs: By name.
        queued_ns: When it was queued, by `time.perf_counter_ns` as the other two.
        started_ns: When its batch was taken to be computed.
        ended_ns: When that had its answers.
        rows: Rows of the batch.
    """

    outputs: Outputs
    queued_ns: int
    started_ns: int
    ended_ns: int
    rows: int


@dataclass(eq=False, slots=True)
class QueuedRequest:
    """What one caller waits for."""

    feeds: Tensors
    rows: int
    future: asyncio.Future[Answered]
    queued_ns: int


@dataclass(eq=False, slots=True)
class _Line:
    """Requests of one form, in the order that they came."""

    requests: deque[QueuedRequest] = field(default_factory=deque)
    rows: int = 0


class WaitingRequests:
    """Requests by form; forms take turns. Not safe for threads: its owner holds a lock.

    A form that is an int holds one request, which goes at once and alone.

    Args:
        most: Rows of a batch at most.
        delay_ns: What a request waits for others.
        preferred: Rows that are enough for a batch to wait no longer. It has the largest of these
            sizes that is there.
    """

    def __init__(self, most: int, delay_ns: int = 0, preferred: Collection[int] = ()) -> None:
        self._delay_ns = delay_ns
        self._sizes = sorted({most, *(rows for rows in preferred if rows < most)})
        self._lines: dict[Hashable, _Line] = {}
        self.depth = 0

    def add(self, request: QueuedRequest, form: Hashable) -> None:
        """Put a request behind those of its form."""
        line = self._lines.setdefault(form, _Line())
        line.requests.append(request)
        line.rows += request.rows
        self.depth += 1

    def drop(self, request: QueuedRequest, form: Hashable) -> bool:
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

    def ready(self, now: int, *, hurry: bool = False) -> tuple[Hashable | None, int | None]:
        """Return a form whose requests may go, or how long the first of them still waits, in ns.

        Args:
            now: By the clock of the requests.
            hurry: Nobody waits for others any more.
        """
        soonest = None
        for form, line in self._lines.items():
            left = line.requests[0].queued_ns + self._delay_ns - now
            if left <= 0 or line.rows >= self._sizes[0] or hurry or isinstance(form, int):
                return form, None
            soonest = left if soonest is None else min(soonest, left)
        return None, soonest

    def take(self, form: Hashable) -> list[QueuedRequest]:
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
