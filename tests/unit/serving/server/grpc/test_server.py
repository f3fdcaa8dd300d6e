"""Ports, TLS, the number of calls, and an end that loses nothing."""

import asyncio
import io
import os
import socket
import subprocess
import sys
import time
from contextlib import closing, suppress
from pathlib import Path
from random import Random
from textwrap import dedent
from typing import Any

import grpc
import numpy as np
import onnx
import psutil
import pytest
import tritonclient.grpc.aio as aio_client
from tests import http2
from tests.certificates import pair
from tests.fuzz import mutate, wire
from tests.unit.serving.server.grpc.scripted import (
    Doubling,
    Models,
    answer,
    body,
    connected,
    path,
    refusal,
    serving,
    settled,
)

from ortune.bundle.engine.load import load_engine
from ortune.core.errors import BadSettings
from ortune.serving.protocol import messages
from ortune.serving.server.grpc import connections, inference
from ortune.serving.server.grpc import server as front_module
from ortune.serving.server.grpc.server import GrpcServer, count_calls
from ortune.serving.server.listeners import Access, Certificate
from ortune.serving.server.logs import Journal
from ortune.serving.server.repository import memory_budget
from ortune.serving.server.repository.repository import Repository
from ortune.serving.server.repository.served import Limits
from ortune.serving.server.repository.sources import ModelSource


def made(address: str) -> GrpcServer:
    return GrpcServer(Models(), Access(), Journal(io.StringIO()), None, address)  # type: ignore[arg-type]


@pytest.mark.parametrize("address", ["192.0.2.1:0", "no.such.host.invalid:0", "127.0.0.1:x"])
async def test_an_address_of_another_machine_is_refused(address: str) -> None:
    with pytest.raises(BadSettings, match=r"gRPC cannot listen on .+: .+"):
        made(address)


async def test_several_servers_share_a_port_that_is_kept_for_them() -> None:
    with socket.socket() as kept:
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        kept.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{kept.getsockname()[1]}"
        both = [made(address), made(address)]
        for one in both:
            await one.start()
        for _ in range(8):
            async with grpc.aio.insecure_channel(
                address, options=[("grpc.use_local_subchannel_pool", 1)]
            ) as channel:
                await channel.unary_unary(path("ModelInfer"))(body(), timeout=10)
        for one in both:
            await one.stop(1)


async def test_tls_with_the_public_client(tmp_path: Path) -> None:
    held = pair(tmp_path)
    certificate = Certificate(held.certificate, held.key)
    async with serving(certificate=certificate) as (_, address):
        port = address.rpartition(":")[2]
        client = aio_client.InferenceServerClient(
            f"localhost:{port}", ssl=True, root_certificates=str(held.certificate)
        )
        async with client:
            x = aio_client.InferInput("x", [1], "FP32")
            x.set_data_from_numpy(np.ones(1, np.float32))
            assert (await client.infer("m", [x])).as_numpy("x_out")[0] == 2
        async with grpc.aio.insecure_channel(address) as channel:
            call = channel.unary_unary(path("ModelInfer"))(body(), timeout=10)
            assert (await refusal(call))[0] == "UNAVAILABLE"


async def test_more_calls_than_may_be_open_are_refused() -> None:
    model = Doubling()
    model.go.clear()
    async with serving(Models(model, max_queue=0)) as (_, address):
        apart = [("grpc.use_local_subchannel_pool", 1)]
        async with (
            grpc.aio.insecure_channel(address, options=apart) as one,
            grpc.aio.insecure_channel(address, options=apart) as other,
        ):
            first = [one.unary_unary(path("ModelInfer"))(body()) for _ in range(32)]
            await settled(lambda: len(model.seen) == 32)
            status, _ = await refusal(other.unary_unary(path("ModelInfer"))(body()))
            assert status == "UNAVAILABLE", "of one address, whatever its channels"
            model.go.set()
            assert len(await asyncio.gather(*first)) == 32
            assert await other.unary_unary(path("ModelInfer"))(body())


async def test_thousands_of_calls_on_a_new_connection_are_all_answered() -> None:
    async with serving(Models()) as (_, address):
        apart = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(address, options=apart) as channel:
            infer = channel.unary_unary(path("ModelInfer"))
            assert (
                len(await asyncio.gather(*(infer(body(), timeout=60) for _ in range(3000))))
                == 3000
            )


async def test_calls_that_come_while_the_server_ends_are_told_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(front_module, "LAME_DUCK_S", 1.0)
    async with connected() as (front, channel):
        await channel.unary_unary(path("ServerLive"))(b"")
        ending = asyncio.create_task(front.stop(5))
        await asyncio.sleep(0.1)
        for name in ("ModelInfer", "ServerReady"):
            told = await refusal(channel.unary_unary(path(name))(body(), timeout=5))
            assert told == ("UNAVAILABLE", "the server is shutting down")
        monkeypatch.setattr(front_module, "LAME_DUCK_S", 0.0)
        await asyncio.wait_for(ending, 5)


async def test_the_end_waits_for_calls_that_run_and_takes_no_others() -> None:
    model = Doubling()
    model.go.clear()
    async with connected(Models(model)) as (front, channel):
        infer = channel.unary_unary(path("ModelInfer"))
        running = [infer(body(id=str(n))) for n in range(6)]
        await settled(lambda: len(model.seen) == 6)
        ending = asyncio.create_task(front.stop(20))
        await asyncio.sleep(0.1)
        assert (await refusal(infer(body(), timeout=10)))[0] == "UNAVAILABLE"
        model.go.set()
        found = [answer(one).id for one in await asyncio.gather(*running)]
        assert found == list("012345")
        await asyncio.wait_for(ending, 5)


async def test_the_end_gives_up_what_takes_too_long() -> None:
    model = Doubling()
    model.go.clear()
    async with connected(Models(model)) as (front, channel):
        call = channel.unary_unary(path("ModelInfer"))(body(id="slow"))
        await settled(lambda: model.seen)
        await asyncio.wait_for(front.stop(0.2), 5)
        assert (await refusal(call))[0] in ("UNAVAILABLE", "CANCELLED")
        # gRPC tells the task after the call: within 20 ms, where it was measured.
        await asyncio.wait_for(settled(lambda: model.given_up == ["slow"]), 1)


def test_what_the_core_of_grpc_says_is_no_log_of_ours(tmp_path: Path) -> None:
    """A handshake that fails writes nothing to stderr, where our server is what imports gRPC."""
    held = pair(tmp_path)
    script = r"""
        import asyncio, io, socket, sys
        from pathlib import Path
        from ortune.serving.server.listeners import Access
        from ortune.serving.server.grpc.server import GrpcServer
        from ortune.serving.server.logs import Journal
        from ortune.serving.server.repository.repository import Repository
        from ortune.serving.server.listeners import Certificate

        async def main():
            held = Certificate(Path(sys.argv[1]), Path(sys.argv[2]))
            models, journal = Repository([], None), Journal(io.StringIO())
            made = GrpcServer(models, Access(), journal, held, "127.0.0.1:0")
            await made.start()
            with socket.create_connection(("127.0.0.1", made.port)) as client:
                client.sendall(b"GET / HTTP/1.1\r\n\r\n")
                assert await asyncio.to_thread(client.recv, 100) is not None
            await made.stop(1)

        asyncio.run(main())
    """
    done = subprocess.run(
        [sys.executable, "-c", dedent(script), str(held.certificate), str(held.key)],
        check=True,
        capture_output=True,
        timeout=60,
        cwd=tmp_path,
    )
    assert not done.stderr


# Broken messages against a server that runs: refused each in its words, and nobody is slower.


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
    "endless headers": lambda at: (
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


# No client locks out the others: its calls, its silence and what it does not read are bounded.


WIDE = """<ir_version: 8, opset_import: ["": 17]>
g (float[1] x, int64[1] width) => (float[n] y) { y = Expand(x, width) }
"""
WIDTH = 4_000_000
WATCH = "/grpc.health.v1.Health/Check"


async def test_silent_streams_of_one_client_leave_room_for_health_and_for_half_of_all() -> None:
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


async def test_an_idle_stream_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inference, "IDLE_S", 0.3)

    async with connected() as (_, channel):
        call = channel.stream_stream(path("ModelStreamInfer"))()
        await call.write(body())
        assert await call.read()
        assert await asyncio.wait_for(call.code(), 10) is grpc.StatusCode.DEADLINE_EXCEEDED


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


async def test_answers_that_nobody_reads_have_their_room_and_their_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each answer is 16 MB, twice in memory, and a client has 80 MB: most of ten are refused."""
    monkeypatch.setattr(connections, "PERIOD_S", 1.0)
    monkeypatch.setattr(connections, "RATE", 1 << 30)

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


async def test_answers_that_wait_are_copied_in_their_turn_and_nothing_more_is_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of 16 MB have room on a connection: of six the others stay as they were computed."""
    monkeypatch.setattr(memory_budget, "TURN_S", 20)
    each = 4 * WIDTH

    models = await repository(tmp_path)
    counters = models.find_model("wide").counters
    large = [
        ("grpc.max_receive_message_length", -1),
        ("grpc.use_local_subchannel_pool", 1),
    ]
    async with serving(models) as (_, address):
        hostile = grpc.aio.insecure_channel(address, options=large)
        ask = hostile.stream_stream(path("ModelInfer"))
        unread = [ask(iter([wide()])) for _ in range(6)]
        await settled(lambda: models.memory.used_bytes >= (3 + 2) * each)
        await asyncio.sleep(0.5)
        computed = counters.answered  # those that came before the first were in line
        assert (computed + 2) * each <= models.memory.used_bytes < (computed + 2.5) * each
        unread += [ask(iter([wide()])) for _ in range(6)]
        stream = hostile.stream_stream(path("ModelStreamInfer"))(iter([wide()] * 3))
        async with grpc.aio.insecure_channel(address, options=large) as channel:
            infer = channel.unary_unary(path("ModelInfer"))
            assert len(await infer(wide(), timeout=20)) > each
        await asyncio.sleep(0.3)
        assert models.memory.used_bytes < (computed + 2.5) * each
        assert counters.answered == computed + 1

        async def read(call: Any, count: int) -> None:
            for _ in range(count):
                assert len(await asyncio.wait_for(call.read(), 20)) > each

        reading = [read(call, 1) for call in unread]
        await asyncio.gather(*reading, read(stream, 3))
        await settled(lambda: models.memory.used_bytes == 0)
        assert counters.answered == 1 + len(unread) + 3
        unread = [ask(iter([wide()])) for _ in range(6)]
        await settled(lambda: models.memory.used_bytes >= 2 * each)
        await hostile.close()
        await settled(lambda: models.memory.used_bytes == 0)
        assert len(unread) == 6
    await models.drain(5)


def has_ended(connection: socket.socket) -> bool:
    """Read what has come of a connection; return whether it is closed behind that."""
    try:
        while connection.recv(1 << 20):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


@pytest.mark.skipif(sys.platform != "linux", reason="the system counts no bytes of a connection")
async def test_who_reads_too_slowly_is_cut_and_who_reads_on_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the rate that is asked for, an answer may take a minute."""
    monkeypatch.setattr(connections, "PERIOD_S", 0.5)
    monkeypatch.setattr(connections, "RATE", 1 << 18)

    models = await repository(tmp_path)
    async with serving(models) as (_, address):
        with closing(http2.connect(address)) as slow, closing(http2.connect(address)) as other:
            for one in (slow, other):
                one.sendall(http2.call(1, INFER) + http2.message(1, wide()))
                one.sendall(http2.frame(8, 0, b"\x7f\0\0\0"))  # any number of bytes
                one.sendall(http2.frame(8, 1, b"\x7f\0\0\0"))
                one.settimeout(0.5)
            read, until = 0, time.monotonic() + 6
            while time.monotonic() < until:
                read += len(await asyncio.to_thread(other.recv, 1 << 17))
                await asyncio.sleep(0.1)
            assert read > 1 << 20, "it is not cut"
            assert await asyncio.to_thread(has_ended, slow)
            assert not await asyncio.to_thread(has_ended, other)
    await models.drain(5)
