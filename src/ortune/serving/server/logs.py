"""The log of a server: a line an event or a request; and spans, for who collects them."""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from logging.handlers import QueueHandler, QueueListener
from pathlib import Path
from queue import Full, Queue
from typing import TYPE_CHECKING, Any, Literal, TextIO

from ortune.core.errors import BadSettings, OrtuneError, escape_control_chars, shorten_text
from ortune.serving.server.settings import Serve

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter


Level = Literal["info", "warning", "error"]

_LIBRARIES = ("uvicorn", "uvicorn.error", "asyncio", "grpc", "concurrent.futures", "opentelemetry")
_OK = (200, "OK")
_BUGS = (500, "INTERNAL", "UNKNOWN")
_FAILED_PER_SECOND, _ALL_PER_SECOND = 100, 1000
"""Lines a second at most: a flood of requests is no flood of the disk."""
_QUEUED_LINES = 10_000
"""Lines that wait at most for whoever reads them; further ones are dropped."""
_FIELD_CHARS = 300
"""Characters of what a client may have chosen."""
_CLOSE_S = 2.0


@dataclass(slots=True)
class LoggedRequest:
    """A request that got its answer by ``http`` or ``grpc``, with its ``traceparent`` header.

    It took so many ms from when it was read to when its answer was made, `queue_ms` of them until
    a worker took it.
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


class Journal:
    """Lines for a log, of JSON if told; bodies, headers and tokens never get into one.

    Control characters are escaped, in text as in JSON: a line is one line. Lines are written by a
    thread, so that a terminal or a pipe that stands still holds no request up: what is too much is
    left out, and counted. `every`: requests that went well too; `observer` sees all.
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        *,
        as_json: bool = False,
        log_successes: bool = False,
        observer: Spans | None = None,
    ) -> None:
        self._log_successes, self._observer = log_successes, observer
        self._most = _ALL_PER_SECOND if log_successes else _FAILED_PER_SECOND
        self._second = self._logged = self._left_out = 0
        self._queue: Queue[Any] = Queue(_QUEUED_LINES)
        self._logger = logging.Logger("ortune.server")
        self._logger.addHandler(_Enqueuer(self._queue))
        # A process may have been started without stderr.
        stream = stream or sys.stderr or Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
        writer = _LineWriter(stream)
        writer.setFormatter(_JsonLine() if as_json else _TextLine())
        self._listener = QueueListener(self._queue, writer)
        self._listener.start()

    def log_request(self, answered: LoggedRequest) -> None:
        """Log a request that was answered."""
        if self._observer is not None:
            self._observer.observe(answered)
        is_ok = answered.status in _OK
        if (is_ok and not self._log_successes) or not self._has_room():
            return
        level: Level = "info" if is_ok else "error" if answered.status in _BUGS else "warning"
        fields = asdict(answered)
        del fields["trace"]
        if version := fields.pop("version"):
            fields["model"] += f"/{version}"
        fields |= {"ms": round(answered.ms, 3), "queue_ms": round(answered.queue_ms, 3)}
        self.log_event(level, "request", **{key: value for key, value in fields.items() if value})

    def log_event(self, level: Level, text: str, **fields: object) -> None:
        """Log what happened to the server itself."""
        number = logging.getLevelNamesMapping()[level.upper()]
        self._logger.log(number, text, extra={"fields": fields})

    @contextmanager
    def relay_loggers(self, *names: str) -> Iterator[None]:
        """Have what the loggers of libraries warn of logged here, and nowhere else."""
        handler = _Enqueuer(self._queue)
        handler.setLevel(logging.WARNING)
        before = {
            logger: (logger.handlers, logger.propagate) for logger in map(logging.getLogger, names)
        }
        for logger in before:
            logger.handlers, logger.propagate = [handler], False
        try:
            yield
        finally:
            for logger, (handlers, propagate) in before.items():
                logger.handlers, logger.propagate = handlers, propagate

    def close(self) -> None:
        """Write what waits, unless nobody reads it."""
        self._report_left_out()
        stop = threading.Thread(target=self._listener.stop, daemon=True)
        stop.start()
        stop.join(_CLOSE_S)

    def _has_room(self) -> bool:
        """Whether this second has room for a line; what was left out before is said first."""
        now = int(time.monotonic())
        if now != self._second:
            self._second, self._logged = now, 0
            self._report_left_out()
        self._logged += 1
        if self._logged > self._most or self._queue.full():
            self._left_out += 1
            return False
        return True

    def _report_left_out(self) -> None:
        left_out, self._left_out = self._left_out, 0
        if left_out:
            self.log_event("warning", "requests were left out of this log", count=left_out)


class _Enqueuer(QueueHandler):
    """Hands records to the thread that writes; what does not fit into the queue is dropped."""

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        """Return a record as text; of an exception its type, text and place."""
        record = copy(record)
        fields: dict[str, object] = getattr(record, "fields", {})
        record.msg, record.args = record.getMessage(), None
        if not hasattr(record, "fields"):  # a library's
            record.msg = f"{record.name}: {record.msg}"
        if record.exc_info and (error := record.exc_info[1]) is not None:
            frame = traceback.extract_tb(error.__traceback__)[-1:]
            fields = {
                "error": f"{type(error).__name__}: {error}",
                "at": "".join(f"{place.filename}:{place.lineno}" for place in frame),
            }
        record.exc_info = None
        record.fields = {
            key: shorten_text(value, _FIELD_CHARS) if isinstance(value, str) else value
            for key, value in fields.items()
        }
        return record

    def enqueue(self, record: logging.LogRecord) -> None:
        with suppress(Full):
            self.queue.put_nowait(record)


class _LineWriter(logging.Handler):
    """Writes lines to a stream; nobody reads it, or it was closed: then they are lost."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream

    def createLock(self) -> None:  # noqa: N802 (logging's own name)
        """Take no lock: one thread writes, and the end of the process must not wait for it."""
        self.lock = None

    def handle(self, record: logging.LogRecord) -> bool:
        """Write a record; from Python 3.13 on logging's own takes the lock unasked."""
        self.emit(record)
        return True

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError, ValueError):
            self._stream.write(f"{self.format(record)}\n")
            self._stream.flush()


class _JsonLine(logging.Formatter):
    """One JSON object a record."""

    def format(self, record: Any) -> str:
        head = {
            "time": _format_time(record),
            "level": record.levelname.lower(),
            "pid": record.process,
            "event": record.msg,
        }
        return json.dumps({**head, **record.fields}, default=str)


class _TextLine(logging.Formatter):
    """A record as words; a value that is no word is quoted as in JSON."""

    def format(self, record: Any) -> str:
        words = [
            _format_time(record),
            record.levelname,
            escape_control_chars(" ".join(record.msg.split())),
        ]
        for key, value in record.fields.items():
            text = str(value)
            is_word = text.isascii() and text.isprintable() and not set(text) & set(' "=\\')
            words.append(f"{key}={text if is_word and text else json.dumps(text)}")
        return " ".join(words)


def _format_time(record: logging.LogRecord) -> str:
    return f"{datetime.fromtimestamp(record.created, UTC):%Y-%m-%dT%H:%M:%S.%f}"[:-3] + "Z"


@contextmanager
def open_journal(request: Serve, observer: Spans | None = None) -> Iterator[Journal]:
    """Open the log, into which libraries and warnings go too, and close it with its observer."""
    journal = Journal(
        as_json=request.log_json, log_successes=request.log_requests, observer=observer
    )
    try:
        with journal.relay_loggers(*_LIBRARIES), warnings.catch_warnings():
            warnings.simplefilter("always", RuntimeWarning)
            warnings.showwarning = lambda message, *_: journal.log_event("warning", str(message))
            yield journal
    finally:
        if observer is not None:
            observer.close()
        journal.close()


_OTLP_PATH = "/v1/traces"
"""Path of a collector where an endpoint names none: as in OTLP's own specification."""


class Spans:
    """A span a request, with two inside it: the wait in the queue and what came after it.

    They are made when the request is answered, so that it waits for none; a thread sends them, and
    drops what the collector does not take in time. OpenTelemetry's own variables
    (``OTEL_TRACES_SAMPLER``, ``OTEL_SERVICE_NAME``, ...) hold.
    """

    def __init__(self, exporter: SpanExporter) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace.propagation import tracecontext

        name = os.environ.get("OTEL_SERVICE_NAME", "ortune")
        resource = Resource.create({"service.name": name})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("ortune.server")
        self._context = tracecontext.TraceContextTextMapPropagator()

    def observe(self, answered: LoggedRequest) -> None:
        """Make the spans of one request, below the caller's where it has sent its own."""
        from opentelemetry.trace import SpanKind, StatusCode, set_span_in_context

        end = time.time_ns()
        start = end - int(answered.ms * 1e6)
        dequeued = min(end, start + int(answered.queue_ms * 1e6))
        carrier = {"traceparent": answered.trace} if answered.trace else {}
        span = self._tracer.start_span(
            f"infer {answered.model}",
            context=self._context.extract(carrier),
            kind=SpanKind.SERVER,
            start_time=start,
            attributes={
                "ortune.model": answered.model,
                "ortune.version": answered.version,
                "ortune.rows": answered.rows,
                "ortune.request_id": answered.id,
                "network.protocol.name": answered.front,
                "ortune.status": str(answered.status),
            },
        )
        if answered.error:
            span.set_status(StatusCode.ERROR, answered.error)
        else:
            inside = set_span_in_context(span)
            for name, since, until in (("queue", start, dequeued), ("compute", dequeued, end)):
                part = self._tracer.start_span(name, context=inside, start_time=since)
                part.end(end_time=until)
        span.end(end_time=end)

    def close(self) -> None:
        """Send what is left."""
        self._provider.shutdown()


def make_spans(endpoint: str | None) -> Spans | None:
    """Return what sends spans to a collector, such as ``http://127.0.0.1:4318``; None for none.

    Raises BadSettings: it is no http address; OrtuneError: the extra is not installed.
    """
    if endpoint is None:
        return None
    scheme, sign, address = endpoint.partition("://")
    if scheme not in ("http", "https") or not sign or not address.strip("/"):
        raise BadSettings(
            f"--trace {endpoint} is no http address",
            fix="give that of an OTLP collector, such as http://127.0.0.1:4318",
        )
    url = endpoint if "/" in address.rstrip("/") else f"{endpoint.rstrip('/')}{_OTLP_PATH}"
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        return Spans(OTLPSpanExporter(endpoint=url))
    except ImportError:
        raise OrtuneError(
            "--trace needs opentelemetry-sdk and its OTLP exporter",
            fix="pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-http",
        ) from None
