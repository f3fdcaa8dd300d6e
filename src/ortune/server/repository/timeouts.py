"""One time-out for many requests: what began first is late first, so one timer does for all."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

T = TypeVar("T")


class Timeouts:
    """Gives up what takes longer than so many seconds. It belongs to one event loop.

    As `asyncio.timeout`, whose timer for each request costs as much as all else that is done for a
    small one.

    Args:
        seconds: 0 for no bound.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._due: dict[asyncio.Task[Any], float] = {}
        self._late: set[asyncio.Task[Any]] = set()
        self._timer: asyncio.TimerHandle | None = None

    async def within(self, work: Awaitable[T]) -> T:
        """Await some work in the current task.

        Raises:
            TimeoutError: It was cancelled, as its time was over.
        """
        task = asyncio.current_task()
        if not self._seconds or task is None:
            return await work
        loop, asked = asyncio.get_running_loop(), task.cancelling()
        self._due[task] = loop.time() + self._seconds
        if self._timer is None:
            self._timer = loop.call_later(self._seconds, self._look, loop)
        try:
            return await work
        except asyncio.CancelledError:
            if task in self._late and task.uncancel() <= asked:
                raise TimeoutError from None
            raise
        finally:
            del self._due[task]
            self._late.discard(task)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """Cancel what is late, and look again when the next one will be."""
        self._timer, now = None, loop.time()
        for task, due in self._due.items():
            if due > now:
                self._timer = loop.call_at(due, self._look, loop)
                return
            if task not in self._late:
                self._late.add(task)
                task.cancel()
