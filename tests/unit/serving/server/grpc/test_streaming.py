"""ModelStreamInfer: answers in the order of requests, errors among them, bounds, its end."""

from __future__ import annotations

import asyncio
import io
import queue
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
    body,
    connected,
    path,
    refusal,
    serving,
    settled,
)

from ortune.serving.protocol import messages
from ortune.serving.protocol.status import RefusalKind, RequestRefused
from ortune.serving.server.grpc.connections import ConnectionWatch
from ortune.serving.server.grpc.inference import IN_FLIGHT, Inference
from ortune.serving.server.logs import Journal


def replied(given: bytes) -> Any:
    return messages.find_message_class("ModelStreamInferResponse").FromString(given)


class Silent:
    """A stream whose client sends nothing."""

    ended: tuple[grpc.StatusCode, str] | None = None

    def invocation_metadata(self) -> None: ...

    def time_remaining(self) -> None: ...

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
    inference = Inference(Models(), journal, ConnectionWatch(1, journal))
    call = Silent()
    if not begun:
        inference.end_streams()
    stream = asyncio.create_task(inference.infer_stream(None, call))
    await asyncio.sleep(0)
    inference.end_streams()
    with pytest.raises(grpc.aio.AbortError):
        await asyncio.wait_for(stream, 5)
    assert call.ended == (grpc.StatusCode.UNAVAILABLE, "the server is shutting down")
