"""SIGTERM and Ctrl-C: the first asks for the end, the second demands it."""

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def handle_signals(ask_to_end: Callable[[], None]) -> Iterator[None]:
    """Have the first signal call `ask_to_end`, and the second one cancel the present task.

    Nothing is done in threads and on systems where a loop sees no signals.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    seen = 0

    def handle() -> None:
        nonlocal seen
        seen += 1
        if seen == 1:
            ask_to_end()
        elif task is not None:
            task.cancel()

    with suppress(NotImplementedError, RuntimeError, ValueError):
        for number in _SIGNALS:
            loop.add_signal_handler(number, handle)
    try:
        yield
    finally:
        with suppress(NotImplementedError, RuntimeError, ValueError):
            for number in _SIGNALS:
                loop.remove_signal_handler(number)
