"""A limit in time for a piece of work, which whoever does it asks about now and then.

Building reads weights through `ortune.graph.ir.edit` and waits for workers: both ask, so that
no step, a plugin's of the user's either, needs to know of it.
"""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from ortune.core.errors import OutOfTime

NONE = math.inf
_LIMIT: ContextVar[tuple[float, float]] = ContextVar("limit", default=(NONE, NONE))
"""When it is reached, by the monotonic clock, and the seconds that it allowed."""


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Let what is done inside take so many seconds; a nearer limit around it stays.

    Threads that are started inside do not know of it.
    """
    token = _LIMIT.set(min(_LIMIT.get(), (time.monotonic() + seconds, seconds)))
    try:
        yield
    finally:
        _LIMIT.reset(token)


def compute_remaining_s() -> float:
    """Return the seconds that are left; infinity without a limit, negative beyond it."""
    return _LIMIT.get()[0] - time.monotonic()


def check_time() -> None:
    """Pass while there is time left.

    Raises:
        OutOfTime: There is none.
    """
    if compute_remaining_s() <= 0:
        raise OutOfTime(
            f"ran out of time: {_LIMIT.get()[1]:.0f} s were left to build it",
            fix="search for longer, with --time",
        )
