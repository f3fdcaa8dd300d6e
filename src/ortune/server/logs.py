"""The log of one process: requests, warnings, and what libraries have to say."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from ortune.server.journal import Journal, Relay
from ortune.server.settings import Serve
from ortune.server.tracing import spans

_LIBRARIES = ("uvicorn", "uvicorn.error", "asyncio", "grpc", "concurrent.futures", "opentelemetry")


@contextmanager
def journal_of(asked: Serve, *, traced: bool = True) -> Iterator[Journal]:
    """Open the log, into which libraries and warnings go too, and close it.

    Args:
        traced: Send spans, where that is asked for.
    """
    observer = spans(asked.trace) if traced else None
    journal = Journal(as_json=asked.log_json, every=asked.log_requests, observer=observer)
    relay = Relay(journal, *_LIBRARIES)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", RuntimeWarning)
            warnings.showwarning = lambda message, *_: journal.event("warning", str(message))
            yield journal
    finally:
        relay.detach()
        if observer is not None:
            observer.close()
        journal.close()
