"""The end of the program: signals that interrupt it, and an exit that nothing holds up."""

import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from ortune.core.termination import Termination, end_soon

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def handle_interruptions(code: int) -> Iterator[None]:
    """Have SIGTERM interrupt this program as Ctrl-C does; a second of both ends it, by `code`.

    Python hears of a signal between two of its instructions alone. A thread hears of it at once,
    and tells a model that runs in the main thread to end.
    """
    termination, (here, there) = Termination(), socket.socketpair()
    there.setblocking(False)

    def watch() -> None:
        seen = 0
        while numbers := here.recv(1):
            if numbers[0] in _SIGNALS:
                seen += 1
                termination.request()
                if seen > 1:
                    end_soon(code)

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    fd = signal.set_wakeup_fd(there.fileno(), warn_on_full_buffer=False)
    threading.Thread(target=watch, name="ortune signals", daemon=True).start()
    try:
        with termination.scope():
            yield
    finally:
        signal.set_wakeup_fd(fd)
        signal.signal(signal.SIGTERM, before)
        there.close()


@contextmanager
def hold_interruptions() -> Iterator[None]:
    """Have what takes a moment come to its end though a signal arrives; a second one ends it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, lambda *_: None) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, action in before.items():
            signal.signal(number, action)
