"""Broken messages against a server that runs: refused each in its words, and nobody is slower."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import closing, suppress
from random import Random

import grpc
import numpy as np
import psutil
import pytest
from tests import http2
from tests.fuzz import mutate, wire
from tests.unit.serving.server.grpc.scripted import Models, answer, body, path, serving

from ortune.serving.protocol import messages
from ortune.serving.server.grpc import connections

ROUND = 100
CODES = {"OK", "INVALID_ARGUMENT", "NOT_FOUND", "UNIMPLEMENTED", "UNAVAILABLE"}


def broken(rng: Random) -> bytes:
    """Return a request in which something is wrong, or next to nothing right."""
    arrays = {
        name: np.arange(rng.randrange(5), dtype=kind)
        for name, kind in (("x", "float32"), ("ids", "int64"), ("h", "float16"))
    }
    valid = body(id="7", **arrays)
    return mutate.either(
        rng,
        lambda: mutate.raw(rng, valid),
        lambda: wire.change(
            rng, valid, messages.find_message_class("ModelInferRequest").DESCRIPTOR
        ),
        lambda: rng.randbytes(rng.randrange(200)),
        lambda: valid[: rng.randrange(len(valid) + 1)],
    )


@pytest.mark.parametrize("rounds", [4, pytest.param(100, marks=pytest.mark.long)])
async def test_the_server_stands(rounds: int, caplog: pytest.LogCaptureFixture) -> None:
    """After the first rounds its memory does not grow, and a good request is answered."""
    rng = Random(18)

    async def code(call: grpc.aio.UnaryUnaryCall) -> str:
        try:
            await call
        except grpc.aio.AioRpcError as error:
            assert "\n" not in (error.details() or "") and "ortune/" not in (error.details() or "")
        return str((await call.code()).name)

    process, before = psutil.Process(os.getpid()), 0
    async with serving() as (_, address), grpc.aio.insecure_channel(address) as channel:
        methods = [path(name) for name in messages.list_methods() if name != "ModelStreamInfer"]
        for number in range(rounds):
            chosen = [path("ModelInfer")] * ROUND
            if number % 4 == 3:
                chosen = [rng.choice(methods) for _ in range(ROUND)]
            calls = [channel.unary_unary(one)(broken(rng), timeout=30) for one in chosen]
            found = await asyncio.gather(*map(code, calls))
            assert set(found) <= CODES
            streamed = channel.stream_stream(path("ModelStreamInfer"))(
                [broken(rng) for _ in range(10)]
            )
            assert len([one async for one in streamed]) == 10
            good = await channel.unary_unary(path("ModelInfer"))(body(id="good"), timeout=10)
            assert answer(good).id == "good"
            if number == rounds // 4:
                before = process.memory_info().rss
        assert process.memory_info().rss < before * 1.1 + (8 << 20)
    assert not caplog.records


INFER = path("ModelInfer")
FLOODS = {
    "reset at once": lambda at: (
        http2.call(at, INFER) + http2.frame(http2.RST_STREAM, at, bytes(4))
    ),
    "settings": lambda at: http2.frame(http2.SETTINGS, 0),
    "pings": lambda at: http2.frame(http2.PING, 0, bytes(8)),
    "data of no stream": lambda at: http2.frame(http2.DATA, at),
    "headers too large": lambda at: http2.frame(
        http2.HEADERS,
        at,
        http2.call(at, INFER)[9:] + http2.field(b"x", b"y" * 120) * 100,
        http2.END_HEADERS,
    ),
    "headers without end": lambda at: (
        http2.call(1, INFER, 0) if at == 1 else http2.frame(http2.CONTINUATION, 1)
    ),
}


@pytest.mark.parametrize("flood", FLOODS)
async def test_who_floods_with_frames_is_cut_or_costs_nothing(flood: str) -> None:
    """Its connection ends, or its frames are read away; a good call is answered behind it.

    Memory does not grow by more than twice what was sent, as decoded headers are larger.
    """
    sent = b"".join(FLOODS[flood](at) for at in range(1, 4001, 2))

    def send(address: str) -> None:
        with closing(http2.connect(address)) as one, suppress(OSError):
            one.settimeout(0.5)
            one.sendall(sent)
            while one.recv(1 << 16):
                pass

    process = psutil.Process(os.getpid())
    async with serving() as (_, address), grpc.aio.insecure_channel(address) as channel:
        infer = channel.unary_unary(INFER)
        assert await infer(body(), timeout=10)
        before = process.memory_info().rss
        flooding = [asyncio.create_task(asyncio.to_thread(send, address)) for _ in range(3)]
        await asyncio.gather(*flooding)
        async with asyncio.timeout(20):
            while await refusal_or_id(infer(body(id="good"), timeout=10)) != "good":
                await asyncio.sleep(0.1)  # gRPC drops some, until those that were begun are gone
        grown = process.memory_info().rss - before
        assert grown < (64 << 20) + 2 * len(flooding) * len(sent)  # it holds no more than that


@pytest.mark.skipif(sys.platform != "linux", reason="the system counts no bytes of a connection")
async def test_headers_that_go_on_for_ever_end_with_their_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who sends 4 MB beside messages is cut off; who sends more, all of it messages, is not."""
    monkeypatch.setattr(connections, "GROWTH_BYTES", 0)
    monkeypatch.setattr(connections, "LOOK_S", 0.05)
    more = http2.frame(http2.CONTINUATION, 1, http2.field(b"x", b"y" * 120) * 100)

    def send_until_cut(address: str) -> int:
        with closing(http2.connect(address)) as one:
            one.sendall(http2.call(1, INFER, 0))
            for number in range(1 << 17):
                try:
                    one.sendall(more)
                except OSError:
                    return number * len(more)
        raise AssertionError("it was never cut off")

    models = Models(max_held=8 << 20, max_body=1 << 20)
    async with serving(models) as (_, address), grpc.aio.insecure_channel(address) as channel:
        infer = channel.unary_unary(INFER)
        sending = asyncio.create_task(asyncio.to_thread(send_until_cut, address))
        large, number = np.ones(200_000, np.float32), 0
        while not sending.done() or number < 10:
            number += 1
            good = await infer(body(large, id=str(number)), timeout=20, wait_for_ready=False)
            assert answer(good).id == str(number)
        assert await sending > 4 << 20


async def refusal_or_id(call: grpc.aio.UnaryUnaryCall) -> str:
    try:
        return str(answer(await call).id)
    except grpc.aio.AioRpcError as error:
        return str(error.code().name)
