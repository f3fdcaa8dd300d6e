"""The log of a server: a line an event or a request, as text or JSON, written by a thread."""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from queue import SimpleQueue
from typing import Literal, Protocol, TextIO

from ortune.core.errors import shortened, visible

Level = Literal["info", "warning", "error"]

_OK = (200, "OK")
_BUGS = (500, "INTERNAL", "UNKNOWN")
_FAILED_A_SECOND, _ALL_A_SECOND = 100, 1000
"""Lines a second at most: a flood of requests is no flood of the disk."""
_WAITING = 10_000
"""Lines that wait at most for whoever reads them; further ones are dropped."""
_LONGEST = 300
"""Characters of what a client may have chosen."""
_CLOSE_S = 2.0


@dataclass(frozen=True, slots=True)
class LoggedRequest:
    """A request that got its answer.

    Attributes:
        front: ``http`` or ``grpc``.
        id: The request's, from its header or its body.
        status: HTTP's number or gRPC's name.
        ms: From when it was read to when its answer was made.
        queue_ms: Of these, until a worker took it.
        rows: Of its batch.
        error: What it was told.
        trace: Its ``traceparent`` header, W3C Trace Context.
    """

    front: str
    model: str
    version: str
    id: str
    status: int | str
    ms: float
    queue_ms: float = 0.0
    rows: int = 0
    error: str = ""
    trace: str = ""


class RequestObserver(Protocol):
    """Sees every request."""

    def observe(self, answered: LoggedRequest) -> None:
        """Take note of it."""


class Journal:
    """Lines for a log; bodies, headers and tokens never get into one.

    Control characters are escaped, in text as in JSON: a line is one line. Lines are written by a
    thread, so that a terminal or a pipe that stands still holds no request up: what is too much
    is left out, and counted.

    Args:
        stream: stderr without it.
        as_json: One JSON object a line.
        every: Requests that went well too.
        observer: Sees every request, logged or not.
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        *,
        as_json: bool = False,
        every: bool = False,
        observer: RequestObserver | None = None,
    ) -> None:
        # A process may have been started without stderr.
        self._stream = stream or sys.stderr or Path(os.devnull).open("w")  # noqa: SIM115
        self._json, self._every, self._observer = as_json, every, observer
        self._most = _ALL_A_SECOND if every else _FAILED_A_SECOND
        self._second = self._told = self._left_out = 0
        self._lines: SimpleQueue[str | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._write, name="ortune journal", daemon=True)
        self._thread.start()

    def request(
        self,
        front: str,
        model: str,
        version: str,
        id: str,
        status: int | str,
        ms: float,
        queue_ms: float = 0.0,
        rows: int = 0,
        error: str = "",
        trace: str = "",
    ) -> None:
        """Log a request that was answered; see `LoggedRequest`."""
        well = status in _OK
        if well and not self._every and self._observer is None:
            return
        found = LoggedRequest(front, model, version, id, status, ms, queue_ms, rows, error, trace)
        if self._observer is not None:
            self._observer.observe(found)
        if (well and not self._every) or not self._may():
            return
        level: Level = "info" if well else "error" if status in _BUGS else "warning"
        fields: dict[str, object] = {
            "front": front,
            "model": f"{model}/{version}" if version else model,
            "id": id,
            "status": status,
            "ms": round(ms, 3),
            "queue_ms": round(queue_ms, 3),
            "rows": rows,
            "error": error,
        }
        self._put(level, "request", {k: v for k, v in fields.items() if v})

    def event(self, level: Level, text: str, **fields: object) -> None:
        """Log what happened to the server itself."""
        self._put(level, text, fields)

    def close(self) -> None:
        """Write what waits, unless nobody reads it."""
        if self._left_out:
            self._say_left_out()
        self._lines.put(None)
        self._thread.join(_CLOSE_S)

    def _may(self) -> bool:
        """Whether this second has room for a line; what was left out before is said first."""
        now = int(time.monotonic())
        if now != self._second:
            self._second, self._told = now, 0
            if self._left_out:
                self._say_left_out()
        self._told += 1
        if self._told > self._most or self._lines.qsize() > _WAITING:
            self._left_out += 1
            return False
        return True

    def _say_left_out(self) -> None:
        left_out, self._left_out = self._left_out, 0
        self._put("warning", "requests were left out of this log", {"count": left_out})

    def _put(self, level: Level, text: str, fields: Mapping[str, object]) -> None:
        now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%f}"[:-3] + "Z"
        if self._json:
            held = {key: _short(value) for key, value in fields.items()}
            head = {"time": now, "level": level, "pid": os.getpid(), "event": text}
            line = json.dumps({**head, **held}, default=str)
        else:
            told = "".join(f" {key}={_word(_short(value))}" for key, value in fields.items())
            line = f"{now} {level.upper()} {visible(' '.join(text.split()))}{told}"
        self._lines.put(f"{line}\n")

    def _write(self) -> None:
        while (line := self._lines.get()) is not None:
            with suppress(OSError, ValueError):  # nobody reads it, or it was closed
                self._stream.write(line)
                self._stream.flush()


def _short(value: object) -> object:
    return shortened(value, _LONGEST) if isinstance(value, str) else value


def _word(value: object) -> str:
    """Spell a value as one word; text that is none is quoted as in JSON."""
    text = str(value)
    plain = text.isascii() and text.isprintable() and not set(text) & set(' "=\\')
    return text if plain and text else json.dumps(text)


class Relay(logging.Handler):
    """What libraries have to say goes into the journal, until `detach`.

    Args:
        names: Their loggers; they log here alone.
    """

    def __init__(self, journal: Journal, *names: str) -> None:
        super().__init__(logging.WARNING)
        self._journal = journal
        self._before = {
            one: (one.handlers, one.propagate) for one in map(logging.getLogger, names)
        }
        for logger in self._before:
            logger.handlers, logger.propagate = [self], False

    def detach(self) -> None:
        """Have the loggers log where they did before."""
        for logger, (handlers, propagate) in self._before.items():
            logger.handlers, logger.propagate = handlers, propagate

    def emit(self, record: logging.LogRecord) -> None:
        """Log a warning or an error; of an exception its type, text and place."""
        error = record.exc_info[1] if record.exc_info else None
        fields = {}
        if error is not None:
            frames = traceback.extract_tb(error.__traceback__)[-1:]
            fields["error"] = f"{type(error).__name__}: {error}"
            fields["at"] = "".join(f"{one.filename}:{one.lineno}" for one in frames)
        level: Level = "error" if record.levelno >= logging.ERROR else "warning"
        self._journal.event(level, f"{record.name}: {record.getMessage()}", **fields)
