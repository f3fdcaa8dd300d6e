"""The loops that issue requests: callers that wait for answers, arrivals that do not."""

from __future__ import annotations

import asyncio
import itertools
import math
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

GIVEN_UP = "not sent in time"
LOST = "connection lost"
REFUSED = "connection refused"
TIMED_OUT = "timed out"
_PAUSE_S = 0.01
"""A caller without a server tries again after this: it would count errors by the thousand."""


class Sender(Protocol):
    """A client of one protocol.

    Attributes:
        examples: What was wrong -> the text of its first error.
    """

    examples: dict[str, str]

    async def prepare(self, callers: int) -> None:
        """Open the connections that so many callers need; what fails is found when they call."""
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...

    async def send(self, ticket: int) -> str:
        """Send the request of a ticket, await its answer, and return what was wrong with it.

        Empty for a right answer: else the status, or what became of the connection.
        """
        ...


@dataclass
class Log:
    """What became of every request, in order of its end.

    Attributes:
        entries: Intended start, start and end in nanoseconds, and the place of its word; four
            numbers a request.
        words: What was wrong; the first stands for nothing.
    """

    entries: array[int] = field(default_factory=lambda: array("q"))
    words: list[str] = field(default_factory=lambda: [""])

    def add(self, due: int, sent: int, done: int, word: str) -> None:
        """Add one."""
        if word not in self.words:
            self.words.append(word)
        self.entries.extend((due, sent, done, self.words.index(word)))


async def closed(
    sender: Sender,
    log: Log,
    clock: Callable[[], int],
    *,
    at: int,
    callers: int,
    most: int = 0,
    seconds: float = 0.0,
) -> None:
    """Let callers send one request after another from a moment on, each when it has its answer.

    Args:
        clock: Nanoseconds.
        at: When they begin, by the clock.
        most: Requests of all of them; 0 for as many as there is time for.
        seconds: When they end, counted from `at`, without `most`.
    """
    until = math.inf if most else at + seconds * 1e9
    tickets = itertools.count()

    async def call() -> None:
        await _reach(at, clock)
        for ticket in tickets:
            start = clock()
            if start >= until or (most and ticket >= most):
                return
            word = await sender.send(ticket)
            log.add(start, start, clock(), word)
            if word in (LOST, REFUSED):
                await asyncio.sleep(_PAUSE_S)

    await asyncio.gather(*(call() for _ in range(callers)))


async def opened(
    sender: Sender,
    log: Log,
    clock: Callable[[], int],
    *,
    at: int,
    due: Sequence[int],
    room: int,
    patience_s: float,
) -> None:
    """Send requests when they are due, whether or not earlier ones are answered.

    Args:
        clock: Nanoseconds.
        at: The beginning, by the clock.
        due: Intended starts, nanoseconds from `at`.
        room: Requests under way at most; later ones wait here, and that time counts.
        patience_s: One that has waited for room so long is given up: counted, and not sent.
    """
    rooms = asyncio.Semaphore(room)

    async def call(ticket: int, moment: int) -> None:
        async with rooms:
            sent = clock()
            late = sent - moment > patience_s * 1e9
            word = GIVEN_UP if late else await sender.send(ticket)
            log.add(moment, sent, clock(), word)

    async with asyncio.TaskGroup() as calls:
        for ticket, moment in enumerate(due):
            await _reach(at + moment, clock)
            calls.create_task(call(ticket, at + moment))


async def _reach(moment: int, clock: Callable[[], int]) -> None:
    """Wait for a moment; for one that is past let others go on, so that they do not starve."""
    await asyncio.sleep(max(0, moment - clock()) / 1e9)
