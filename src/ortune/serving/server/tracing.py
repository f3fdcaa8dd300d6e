"""Requests as OpenTelemetry spans, sent by OTLP: extra ``trace``.

OpenTelemetry's own instrumentation for gRPC cannot serve here: its interceptor iterates over the
handlers of streams, and ours write to their context. One observer makes the spans of both fronts.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from ortune.core.errors import BadSettings, OrtuneError
from ortune.serving.server.logs import LoggedRequest

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

_OTLP_PATH = "/v1/traces"
"""Path of a collector where an endpoint names none: as in OTLP's own specification."""


class Spans:
    """A span a request, with two inside it: the wait in the queue and what came after it.

    They are made when the request is answered, so that it waits for none; a thread sends them, and
    drops what the collector does not take in time. OpenTelemetry's own variables
    (``OTEL_TRACES_SAMPLER``, ``OTEL_SERVICE_NAME``, ...) hold.

    Args:
        exporter: Where they go.
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
