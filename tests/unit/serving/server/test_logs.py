"""The log and the spans: one line an event, bounded, and nobody waits for whoever reads it."""

import builtins
import io
import json
import logging
import threading
import time
from typing import Any

import pytest

from ortune.core.errors import BadSettings, OrtuneError
from ortune.serving.server.logs import Journal, LoggedRequest, Spans, make_spans

HOSTILE = 'a\nb\r\x1b[31m"\u2028\u202e x=y'


def lines(journal: Journal, out: io.StringIO) -> list[str]:
    journal.close()
    return out.getvalue().splitlines()


@pytest.mark.parametrize("as_json", [False, True])
def test_what_a_client_chose_cannot_begin_a_line(as_json: bool) -> None:
    out = io.StringIO()
    journal = Journal(out, as_json=as_json)
    journal.log_request(LoggedRequest("http", HOSTILE, "1", HOSTILE, 404, 1.25, error=HOSTILE))
    journal.log_event("warning", HOSTILE, path=HOSTILE)
    found = lines(journal, out)
    assert len(found) == 2
    assert all(line.isprintable() and line.isascii() for line in found)


def test_json_has_the_fields() -> None:
    out = io.StringIO()
    journal = Journal(out, as_json=True, log_successes=True)
    journal.log_request(LoggedRequest("grpc", "toy", "2", "id-7", "OK", 1.23456, 0.5, 4))
    (line,) = lines(journal, out)
    found = json.loads(line)
    assert found.pop("time").endswith("Z") and found.pop("pid")
    assert found == {
        "level": "info",
        "event": "request",
        "front": "grpc",
        "model": "toy/2",
        "id": "id-7",
        "status": "OK",
        "ms": 1.235,
        "queue_ms": 0.5,
        "rows": 4,
    }


@pytest.mark.parametrize(
    ("status", "level"),
    [(400, "warning"), (503, "warning"), (500, "error"), ("INTERNAL", "error")],
)
def test_failures_alone_are_logged_unless_asked(status: int | str, level: str) -> None:
    out = io.StringIO()
    journal = Journal(out, as_json=True)
    journal.log_request(LoggedRequest("http", "toy", "1", "", 200, 1.0))
    journal.log_request(LoggedRequest("http", "toy", "1", "", status, 1.0))
    (line,) = lines(journal, out)
    assert json.loads(line)["level"] == level


def test_a_flood_is_cut_and_counted() -> None:
    out = io.StringIO()
    journal = Journal(out, as_json=True)
    for _ in range(5000):
        journal.log_request(LoggedRequest("http", "toy", "1", "", 400, 1.0))
    found = [json.loads(line) for line in lines(journal, out)]
    told = [one for one in found if one["event"] == "request"]
    assert 100 <= len(told) <= 300, "a hundred a second, and a second may pass"
    assert sum(one["count"] for one in found if "count" in one) == 5000 - len(told)


def test_whoever_does_not_read_holds_nobody_up() -> None:
    free = threading.Event()

    class Stuck(io.StringIO):
        def write(self, text: str) -> int:
            free.wait(20)
            return super().write(text)

    journal = Journal(Stuck())
    began = time.monotonic()
    for number in range(1000):
        journal.log_event("info", "line", number=number)
    journal.close()
    assert time.monotonic() - began < 10
    free.set()


def test_libraries_log_here_until_detached() -> None:
    out = io.StringIO()
    journal = Journal(out, as_json=True)
    logger = logging.getLogger("ortune.test.library")
    with journal.relay_loggers(logger.name):
        logger.info("chatter")
        logger.warning("odd %s", HOSTILE)
        try:
            raise ValueError("broken")
        except ValueError:
            logger.exception("it failed")
    logger.warning("elsewhere")
    odd, failed = (json.loads(line) for line in lines(journal, out))
    assert odd["level"] == "warning" and odd["event"].startswith("ortune.test.library: odd")
    assert failed["level"] == "error" and failed["error"] == "ValueError: broken"
    assert "test_logs.py" in failed["at"]
    assert logger.propagate and not logger.handlers


memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def made(*requests: LoggedRequest) -> list[Any]:
    exporter = memory.InMemorySpanExporter()
    tracer = Spans(exporter)
    for one in requests:
        tracer.observe(one)
    tracer.close()
    return list(exporter.get_finished_spans())


def test_a_request_is_a_span_with_its_wait_and_its_work_inside() -> None:
    queue, compute, whole = made(LoggedRequest("grpc", "toy", "1", "id-7", "OK", 8.0, 2.0, 4))
    assert whole.name == "infer toy" and whole.parent is None
    assert whole.attributes["ortune.rows"] == 4
    assert whole.attributes["ortune.request_id"] == "id-7"
    assert whole.resource.attributes["service.name"] == "ortune"
    assert whole.end_time - whole.start_time == 8_000_000
    assert (queue.name, compute.name) == ("queue", "compute")
    assert queue.start_time == whole.start_time and queue.end_time == compute.start_time
    assert queue.end_time - queue.start_time == 2_000_000 and compute.end_time == whole.end_time
    for part in (queue, compute):
        assert part.parent.span_id == whole.context.span_id


def test_it_hangs_below_the_callers_own() -> None:
    whole = made(LoggedRequest("http", "toy", "1", "", 200, 1.0, trace=PARENT))[-1]
    assert f"{whole.context.trace_id:032x}" == PARENT.split("-")[1]
    assert f"{whole.parent.span_id:016x}" == PARENT.split("-")[2]


@pytest.mark.parametrize("trace", ["nonsense", "00-0-0-00", "é" * 99])
def test_a_header_that_is_none_is_passed_over(trace: str) -> None:
    assert made(LoggedRequest("http", "toy", "1", "", 200, 1.0, trace=trace))[-1].parent is None


def test_a_refusal_is_an_error() -> None:
    (whole,) = made(LoggedRequest("http", "toy", "1", "", 400, 1.0, error="no input 'z'"))
    assert not whole.status.is_ok and whole.status.description == "no input 'z'"


def test_nothing_is_made_where_nothing_is_asked() -> None:
    assert make_spans(None) is None


@pytest.mark.parametrize("endpoint", ["", "collector:4318", "ftp://x", "http://"])
def test_an_endpoint_that_is_none(endpoint: str) -> None:
    with pytest.raises(BadSettings, match="no http address"):
        make_spans(endpoint)


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def absent(name: str, *rest: Any) -> Any:
        if name.startswith("opentelemetry"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(OrtuneError) as caught:
        make_spans("http://127.0.0.1:4318")
    assert (
        caught.value.fix == "pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-http"
    )
