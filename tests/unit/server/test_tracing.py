"""Spans of requests, as a collector gets them."""

from __future__ import annotations

import builtins
from typing import Any

import pytest

from ortune.core.errors import BadSettings, OrtuneError
from ortune.server.journal import LoggedRequest
from ortune.server.tracing import Spans, spans

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
    assert spans(None) is None


@pytest.mark.parametrize("endpoint", ["", "collector:4318", "ftp://x", "http://"])
def test_an_endpoint_that_is_none(endpoint: str) -> None:
    with pytest.raises(BadSettings, match="no http address"):
        spans(endpoint)


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def absent(name: str, *rest: Any) -> Any:
        if name.startswith("opentelemetry"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(OrtuneError) as caught:
        Spans(memory.InMemorySpanExporter())
    assert caught.value.fix == "pip install 'ortune[trace]'"
