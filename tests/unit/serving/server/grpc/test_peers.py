"""No client locks out the others: its calls, its silence and what it does not read are bounded."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import numpy as np
import onnx
import pytest
from tests.unit.serving.server.grpc.scripted import (
    Models,
    answer,
    body,
    connected,
    path,
    serving,
    settled,
)

from ortune.bundle.engine.load import load_engine
from ortune.serving.server.grpc import inference
from ortune.serving.server.grpc.server import count_calls
from ortune.serving.server.repository.repository import Repository
from ortune.serving.server.repository.served import Limits
from ortune.serving.server.repository.sources import ModelSource

WIDE = """<ir_version: 8, opset_import: ["": 17]>
g (float[1] x, int64[1] width) => (float[n] y) { y = Expand(x, width) }
"""
WIDTH = 4_000_000
WATCH = "/grpc.health.v1.Health/Check"


def test_silent_streams_of_one_client_leave_room_for_health_and_for_half_of_all() -> None:
    async def run() -> None:
        models = Models(max_queue=8)
        most = count_calls(models.limits)
        async with serving(models) as (_, address):
            hostile = [
                grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])
                for _ in range(2)
            ]
            silent = [
                hostile[place % 2].stream_stream(path("ModelStreamInfer"))()
                for place in range(2 * most)
            ]
            for call in silent:
                await call.wait_for_connection()
            await settled(lambda: sum(call.done() for call in silent) >= len(silent) - most // 2)
            await asyncio.sleep(0.3)
            refused = [call for call in silent if call.done()]
            assert len(silent) - len(refused) == most // 2
            assert {await call.code() for call in refused} == {grpc.StatusCode.UNAVAILABLE}
            async with grpc.aio.insecure_channel(
                address, options=[("grpc.use_local_subchannel_pool", 1)]
            ) as channel:
                assert await channel.unary_unary(WATCH)(b"", timeout=10) == b"\x08\x01"
                assert await channel.unary_unary(path("ServerLive"))(b"", timeout=10)
            for call in silent:
                call.cancel()
            await asyncio.sleep(0.5)
            infer = hostile[0].unary_unary(path("ModelInfer"))
            assert answer(await infer(body(), timeout=10)).outputs
            for channel in hostile:
                await channel.close()

    asyncio.run(run())


def test_an_idle_stream_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inference, "IDLE_S", 0.3)

    async def run() -> None:
        async with connected() as (_, channel):
            call = channel.stream_stream(path("ModelStreamInfer"))()
            await call.write(body())
            assert await call.read()
            assert await asyncio.wait_for(call.code(), 10) is grpc.StatusCode.DEADLINE_EXCEEDED

    asyncio.run(run())


def wide() -> bytes:
    return body(model="wide", x=np.ones(1, np.float32), width=np.array([WIDTH]))


async def repository(folder: Path, **limits: int) -> Repository:
    """A model whose answers are much larger than its requests."""
    onnx.save(onnx.parser.parse_model(WIDE), folder / "wide.onnx")
    made = Repository(
        [ModelSource("wide", folder / "wide.onnx")],
        lambda file: load_engine(file, on="cpu(threads=1)"),
        limits=Limits(**limits),
    )
    await made.start()
    return made


def test_answers_that_nobody_reads_have_their_room_and_their_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each answer is 16 MB, twice in memory, and a client has 80 MB: most of ten are refused."""
    monkeypatch.setattr(inference, "PERIOD_S", 1.0)
    monkeypatch.setattr(inference, "RATE", 1 << 30)

    async def run() -> None:
        models = await repository(tmp_path, max_held=160_000_000)
        async with serving(models) as (_, address):
            hostile = grpc.aio.insecure_channel(
                address, options=[("grpc.max_receive_message_length", -1)]
            )
            # As a stream, of which nothing is read: flow control holds the answer back.
            unread = [hostile.stream_stream(path("ModelInfer"))(iter([wide()])) for _ in range(10)]
            await settled(lambda: models.memory.used_bytes > 48_000_000)
            await asyncio.sleep(0.3)
            assert models.memory.used_bytes <= 80_000_000
            await settled(lambda: models.memory.used_bytes == 0)  # cut off: nobody read
            assert len(unread) == 10
            await hostile.close()
            async with grpc.aio.insecure_channel(
                address,
                options=[
                    ("grpc.max_receive_message_length", -1),
                    ("grpc.use_local_subchannel_pool", 1),
                ],
            ) as channel:
                infer = channel.unary_unary(path("ModelInfer"))
                assert len(await infer(wide(), timeout=20)) > 4 * WIDTH
                await settled(lambda: models.memory.used_bytes == 0)
        await models.drain(5)

    asyncio.run(run())
