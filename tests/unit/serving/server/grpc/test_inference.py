"""ModelInfer: every type there and back, refusals in clean words, deadlines, calls given up."""

import asyncio
import gzip
import io
import queue
import zlib
from collections.abc import AsyncIterator, Iterable
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as sync_client
import tritonclient.grpc.aio as aio_client
from tests.unit.serving.server.grpc.scripted import (
    Doubling,
    Models,
    Seen,
    answer,
    body,
    connected,
    path,
    refusal,
    serving,
    settled,
)
from tritonclient.utils import np_to_triton_dtype

from ortune.serving.protocol import messages
from ortune.serving.protocol.refusals import RefusalKind, RequestRefused
from ortune.serving.server.grpc import inference as calls
from ortune.serving.server.grpc.connections import ConnectionWatch
from ortune.serving.server.grpc.inference import IN_FLIGHT, Inference
from ortune.serving.server.logs import Journal


def given(module: object, name: str, array: np.ndarray) -> sync_client.InferInput:
    made = module.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))  # type: ignore[attr-defined]
    made.set_data_from_numpy(array)
    return made


async def test_text_and_several_tensors_through_the_client_that_blocks() -> None:
    text = np.array([b"", b"caf\xc3\xa9", b"\x00\xff"], object)
    large = np.arange(200_000, dtype=np.float32).reshape(2, -1)
    async with serving() as (_, address):
        client = sync_client.InferenceServerClient(address)
        inputs = [given(sync_client, "t", text), given(sync_client, "x", large)]
        for compression in (None, "gzip", "deflate"):
            result = await asyncio.to_thread(
                client.infer, "m", inputs, compression_algorithm=compression
            )
            assert list(result.as_numpy("t_out")) == list(text)
            assert (result.as_numpy("x_out") == 2 * large).all()
        client.close()


@pytest.mark.parametrize("status", list(RefusalKind))
async def test_a_refusal_has_its_status_and_text(status: RefusalKind) -> None:
    model, seen = Doubling(), Seen()
    model.fails["bad"] = RequestRefused("what is wrong", status, "what to do")
    async with connected(Models(model), seen=seen) as (_, channel):
        call = channel.unary_unary(path("ModelInfer"))(body(id="bad"))
        assert await refusal(call) == (status.grpc, "what is wrong. what to do")
    (told,) = seen.requests
    assert (told.front, told.model, told.version, told.id) == ("grpc", "m", "1", "bad")
    assert (told.status, told.error) == (status.grpc, "what is wrong. what to do")


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (ValueError("/srv/models/secret/m.onnx broke\nTraceback"), "INTERNAL", "m.onnx broke"),
        (TimeoutError(), "DEADLINE_EXCEEDED", "Request timeout expired"),
    ],
)
async def test_an_error_that_nobody_foresaw_is_told_in_one_clean_line(
    error: Exception, status: str, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = Doubling()
    model.fails["bad"] = error
    async with connected(Models(model)) as (_, channel):
        call = channel.unary_unary(path("ModelInfer"))
        found, told = await refusal(call(body(id="bad")))
        assert found == status and text in told
        assert "secret" not in told and "\n" not in told
        assert answer(await call(body(id="good"))).id == "good"
    assert not caplog.records


@pytest.mark.parametrize(
    ("sent", "text"),
    [
        (b"\xff\xff", "failed to parse the request"),
        (b"\x0a\x7f", "failed to parse the request"),
        (b"\x2a\x00" * 40_000, "the request has more than"),
        (b"\x1f\x8b garbage", "the compressed message is damaged"),
        (gzip.compress(b"\x0a\x01m" * 9, mtime=0)[:-9], "the compressed message is damaged"),
        (zlib.compress(b"\xff\xff"), "failed to parse the request"),
        (body(model="other"), "Request for unknown model: 'other' is not found"),
        (b"", "Request for unknown model: '' is not found"),
    ],
)
async def test_what_is_no_request_is_refused(
    sent: bytes, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving() as (_, address), grpc.aio.insecure_channel(address) as channel:
        found, told = await refusal(channel.unary_unary(path("ModelInfer"))(sent))
        assert found in ("INVALID_ARGUMENT", "NOT_FOUND") and told.startswith(text)
    assert not caplog.records


async def test_a_request_larger_than_the_cap_is_refused_also_when_it_inflates(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The cap is that of the sent bytes and that of the inflated ones."""
    large = body(np.zeros(1 << 19))
    async with connected(Models(max_body=1 << 20)) as (_, channel):
        call = channel.unary_unary(path("ModelInfer"))
        status, text = await refusal(call(large))
        assert status == "RESOURCE_EXHAUSTED" and "larger than max" in text
        for packed in (gzip.compress(large), zlib.compress(large)):
            status, text = await refusal(call(packed))
            assert status == "RESOURCE_EXHAUSTED" and "when it is inflated" in text
        for algorithm in (grpc.Compression.Gzip, grpc.Compression.Deflate):
            status, text = await refusal(call(large, compression=algorithm))
            assert status == "RESOURCE_EXHAUSTED" and "when it is inflated" in text
        assert answer(await call(body(np.zeros(1 << 17), id="fits"))).id == "fits"
    assert not caplog.records


async def test_the_deadline_of_a_call_ends_its_wait(caplog: pytest.LogCaptureFixture) -> None:
    model, seen = Doubling(), Seen()
    model.go.clear()
    async with connected(Models(model), seen=seen) as (_, channel):
        call = channel.unary_unary(path("ModelInfer"))
        status, _ = await refusal(call(body(id="late"), timeout=0.3))
        assert status == "DEADLINE_EXCEEDED"
        await settled(lambda: model.given_up == ["late"])
        await settled(lambda: seen.requests)
        assert 0 < model.seen[0].timeout_us <= 310_000, "gRPC rounds a deadline up"
        assert seen.requests[0].status == "CANCELLED"
    assert not caplog.records


@pytest.mark.parametrize(
    ("asked_us", "deadline_s", "least", "most"),
    [
        (0, None, 0, 0),
        (5000, None, 5000, 5000),
        (5000, 10, 5000, 5000),
        (20_000_000, 10, 9_000_000, 11_000_000),
        (0, 600, 0, 0),  # the server's own limit is shorter
        (0, 10, 9_000_000, 11_000_000),
    ],
)
async def test_a_request_waits_no_longer_than_its_call(
    asked_us: int, deadline_s: float | None, least: int, most: int
) -> None:
    request = messages.find_message_class("ModelInferRequest").FromString(body())
    if asked_us:
        request.parameters["timeout"].int64_param = asked_us
    model = Doubling()
    async with connected(Models(model, timeout_s=60)) as (_, channel):
        call = channel.unary_unary(path("ModelInfer"))
        await call(request.SerializeToString(), timeout=deadline_s)
        assert least <= model.seen[0].timeout_us <= most


async def test_a_call_that_is_given_up_leaves_the_queue(caplog: pytest.LogCaptureFixture) -> None:
    model = Doubling()
    model.go.clear()
    async with connected(Models(model)) as (_, channel):
        call = channel.unary_unary(path("ModelInfer"))(body(id="gone"))
        await settled(lambda: model.seen)
        call.cancel()
        await settled(lambda: model.given_up == ["gone"])
    assert not caplog.records


async def test_a_client_that_sends_no_message_holds_no_place(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(calls, "RECEIVE_S", 0.3)
    async with serving() as (_, address), grpc.aio.insecure_channel(address) as channel:
        begun = channel.stream_unary(path("ModelInfer"))()
        status, text = await refusal(begun)
        assert (status, text) == (
            "DEADLINE_EXCEEDED",
            "the message did not arrive within 0.3 s",
        )
        ended = channel.stream_unary(path("ModelInfer"))()
        await ended.done_writing()
        assert await refusal(ended) == ("INVALID_ARGUMENT", "the call has no message")
    assert not caplog.records


async def test_a_log_line_has_the_ids_of_the_caller() -> None:
    seen = Seen()
    metadata = (("x-request-id", "from-header"), ("traceparent", "00-abc-def-01"))
    async with connected(seen=seen) as (_, channel):
        call = channel.unary_unary(path("ModelInfer"))
        assert answer(await call(body(), metadata=metadata)).id == ""
        await call(body(id="from-body"), metadata=metadata)
    assert [one.id for one in seen.requests] == ["from-header", "from-body"]
    assert {one.trace for one in seen.requests} == {"00-abc-def-01"}
    assert {one.status for one in seen.requests} == {"OK"}
    assert all(one.ms > 0 for one in seen.requests)
    assert {(one.queue_ms, one.rows) for one in seen.requests} == {(3.0, 2)}


# ModelStreamInfer: answers in the order of requests, errors among them, bounds, its end.


def replied(given: bytes) -> Any:
    return messages.find_message_class("ModelStreamInferResponse").FromString(given)


class Silent:
    """A stream whose client sends nothing."""

    ended: tuple[grpc.StatusCode, str] | None = None

    def invocation_metadata(self) -> None: ...

    def time_remaining(self) -> None: ...

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    async def read(self) -> None:
        await asyncio.sleep(60)

    async def abort(self, code: grpc.StatusCode, text: str) -> None:
        self.ended = code, text
        raise grpc.aio.AbortError


def x(value: float) -> aio_client.InferInput:
    made = aio_client.InferInput("x", [1], "FP32")
    return made.set_data_from_numpy(np.array([value], np.float32))


async def test_answers_come_in_the_order_of_the_requests() -> None:
    """The first is computed last; its answer is the first all the same."""

    async def requests() -> AsyncIterator[dict[str, Any]]:
        for n in range(20):
            name = "other" if n == 3 else "m"
            yield {"model_name": name, "inputs": [x(n)], "request_id": str(n)}

    model = Doubling()
    model.turns["0"] = asyncio.Event()
    model.fails["5"] = RequestRefused("no", RefusalKind.UNAVAILABLE)
    async with (
        serving(Models(model)) as (_, address),
        aio_client.InferenceServerClient(address) as client,
    ):
        replies = client.stream_infer(requests())
        await settled(lambda: len(model.seen) == 19)
        model.turns["0"].set()
        found = [one async for one in replies]
        assert len(found) == 20
        for n, (result, error) in enumerate(found):
            if n in (3, 5):
                assert result is None
                assert "is not found" in str(error) if n == 3 else str(error) == "no"
                continue
            assert error is None and result.as_numpy("x_out")[0] == 2 * n
            response = result.get_response()
            assert response.id == str(n)
            assert response.parameters["triton_final_response"].bool_param


async def test_the_client_with_callbacks_and_empty_final_responses() -> None:
    model = Doubling()
    async with serving(Models(model)) as (_, address):
        found: queue.Queue[Any] = queue.Queue()

        def ask() -> list[Any]:
            client = sync_client.InferenceServerClient(address)
            client.start_stream(lambda result, error: found.put((result, error)))
            for n in range(5):
                client.async_stream_infer(
                    "m", [x(n)], request_id=str(n), enable_empty_final_response=True
                )
            client.stop_stream()
            client.close()
            return [found.get(timeout=10) for _ in range(5)]

        replies = await asyncio.to_thread(ask)
        assert [error for _, error in replies] == [None] * 5
        assert [result.get_response().id for result, _ in replies] == list("01234")
        assert found.empty()


async def test_a_message_that_cannot_be_read_is_an_error_in_the_stream() -> None:
    async with serving() as (_, address), grpc.aio.insecure_channel(address) as channel:
        sent = [b"\xff", body(id="a", model="other"), body(id="b")]
        call = channel.stream_stream(path("ModelStreamInfer"))(sent)
        bad, unknown, good = [replied(one) async for one in call]
        assert bad.error_message.startswith("failed to parse") and not bad.infer_response.id
        assert "is not found" in unknown.error_message and unknown.infer_response.id == "a"
        assert not good.error_message and good.infer_response.id == "b"


async def test_a_stream_ends_with_its_first_error_where_that_is_asked_for() -> None:
    async with serving() as (_, address), grpc.aio.insecure_channel(address) as channel:
        call = channel.stream_stream(path("ModelStreamInfer"))(
            [body(id="a"), body(model="other"), body(id="c")],
            metadata=(("triton_grpc_error", "true"),),
        )
        assert replied(await call.read()).infer_response.id == "a"
        status, text = await refusal(call.read())
        assert status == "NOT_FOUND" and "'other' is not found" in text


async def test_so_many_requests_of_a_stream_are_read_and_no_more() -> None:
    model = Doubling()
    model.go.clear()
    sent = [body([n], id=str(n)) for n in range(IN_FLIGHT + 50)]
    async with connected(Models(model)) as (_, channel):
        call = channel.stream_stream(path("ModelStreamInfer"))(sent)
        await settled(lambda: len(model.seen) == IN_FLIGHT)
        await asyncio.sleep(0.1)
        assert len(model.seen) == IN_FLIGHT
        model.go.set()
        found = [replied(one).infer_response.id async for one in call]
        assert found == [str(n) for n in range(len(sent))]


@pytest.mark.parametrize("how", ["cancel", "deadline"])
async def test_a_stream_that_is_given_up_leaves_the_queue(
    how: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def endless(sent: Iterable[bytes]) -> AsyncIterator[bytes]:
        for one in sent:
            yield one
        await asyncio.sleep(60)

    model, seen = Doubling(), Seen()
    model.go.clear()
    async with connected(Models(model), seen=seen) as (_, channel):
        sent = endless(body(id=str(n)) for n in range(5))
        call = channel.stream_stream(path("ModelStreamInfer"))(
            sent, timeout=0.5 if how == "deadline" else None
        )
        reading = asyncio.create_task(refusal(call.read()))
        await settled(lambda: len(model.seen) == 5)
        if how == "cancel":
            call.cancel()
        await settled(lambda: sorted(model.given_up) == list("01234"))
        await asyncio.wait([reading])
        assert {one.status for one in seen.requests} == {"CANCELLED"}
    assert not caplog.records


async def test_a_message_above_the_cap_ends_the_stream(caplog: pytest.LogCaptureFixture) -> None:
    async with connected(Models(max_body=1 << 20)) as (_, channel):
        call = channel.stream_stream(path("ModelStreamInfer"))(
            [body(id="a"), body(np.zeros(1 << 19))]
        )

        async def every() -> None:
            async for _ in call:
                pass

        status, text = await refusal(every())
        assert status == "RESOURCE_EXHAUSTED" and "larger than max" in text
    assert not caplog.records


async def test_when_the_server_ends_a_stream_is_answered_as_far_as_it_was_read() -> None:
    model = Doubling()
    model.go.clear()
    async with connected(Models(model)) as (made, channel):
        call = channel.stream_stream(path("ModelStreamInfer"))()
        idle = channel.stream_stream(path("ModelStreamInfer"))()
        await call.write(body(id="a"))
        await idle.wait_for_connection()
        await settled(lambda: model.seen)
        ending = asyncio.create_task(made.stop(20))
        assert (await refusal(idle.read()))[0] == "UNAVAILABLE"
        model.go.set()
        assert replied(await call.read()).infer_response.id == "a"
        assert await refusal(call.read()) == ("UNAVAILABLE", "the server is shutting down")
        await asyncio.wait_for(ending, 5)


@pytest.mark.parametrize("begun", [False, True])
async def test_a_stream_that_begins_while_the_server_ends_is_told_so(begun: bool) -> None:
    """Its handler was chosen before, and runs after; or it runs, and reads nothing yet."""
    journal = Journal(io.StringIO())
    inference = Inference(Models(), journal, ConnectionWatch(1, journal), 1)
    call = Silent()
    if not begun:
        inference.end_streams()
    stream = asyncio.create_task(inference.infer_stream(None, call))
    await asyncio.sleep(0)
    inference.end_streams()
    with pytest.raises(grpc.aio.AbortError):
        await asyncio.wait_for(stream, 5)
    assert call.ended == (grpc.StatusCode.UNAVAILABLE, "the server is shutting down")
