"""Ports, TLS, the number of calls, and an end that loses nothing."""

from __future__ import annotations

import asyncio
import io
import socket
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import grpc
import numpy as np
import pytest
import tritonclient.grpc.aio as aio_client
from tests.certificates import pair
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

from ortune.core.errors import BadSettings
from ortune.serving.server.grpc import server as front_module
from ortune.serving.server.grpc.server import GrpcServer
from ortune.serving.server.listeners import Access, Certificate
from ortune.serving.server.logs import Journal


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
